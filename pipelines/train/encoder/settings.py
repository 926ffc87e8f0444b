"""Settings of `rewrite-train encoder`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le

from retrievers.errors import BadInput
from retrievers.settings import MixtureTraining
from retrievers.text import FIELDS


@dataclass(frozen=True, slots=True)
class EncoderSource:
    """A data set of a general encoder."""

    path: str
    """A data set folder, or `bundled:sample`."""
    licence: str = ""
    """Noted on the encoder's card."""
    where: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Keeps the queries whose metadata have one of these values: `{source: [pipeline]}`."""
    text: tuple[str, ...] = ()
    """Parts of a tool that are read; empty: those of `text` in the config."""

    @property
    def name(self) -> str:
        """Last part of the path."""
        return Path(self.path).name


@dataclass(frozen=True, slots=True)
class CompactForm:
    """Form of the adapter: the difference between the encoder and its base."""

    rank: Annotated[int, Ge(0)] = 0
    """Rank of two factors per matrix, in 8 bits; 0: the whole difference."""
    bits: Literal[4, 8] = 4
    """Bits per weight of the whole difference."""


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """`rewrite-train encoder`."""

    output: str
    """The run folder; the adapter is written to its folder `encoder`."""
    groups: dict[str, tuple[EncoderSource, ...]]
    """Data sets to train on, in groups of similar catalogues: `--leave-one-out` leaves out one group at a time."""
    judged: tuple[EncoderSource, ...] = ()
    """Data sets that are never trained on and choose nothing: the finished encoder is evaluated on them."""
    base: str = "bundled:minilm"
    """A Hugging Face id, a folder, or a bundled encoder."""
    training: MixtureTraining = field(default_factory=MixtureTraining)
    blends: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Shares of the tuned weights that are evaluated, the rest being the base."""
    blend: Annotated[float, Ge(0), Le(1)] | None = None
    """Share of the tuned weights in the finished encoder; none: chosen from the leave-one-out runs in `output`."""
    max_loss: Annotated[float, Ge(0)] = 0.005
    """Recall that a left-out data set may clearly lose under the chosen blend."""
    leave_out: str = ""
    """Name of a group: train without it and evaluate on it, nothing else."""
    form: CompactForm = field(default_factory=CompactForm)
    text: tuple[str, ...] = FIELDS
    """Parts of a tool that are read."""
    max_queries: Annotated[int, Ge(2)] = 8000
    """Training queries per data set; of larger ones a sample is drawn."""
    max_judged: Annotated[int, Ge(1)] = 500
    """Queries per data set to evaluate on, where it has no test queries."""
    seed: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        if any(not 0 <= blend <= 1 for blend in self.blends) or not {0.0, 1.0} <= set(self.blends):
            raise BadInput(f"must be shares between 0 and 1, with 0 and 1, got {list(self.blends)}", "blends")
        check_groups(self.groups, self.judged, self.leave_out)


def check_groups(
    groups: Mapping[str, Sequence[EncoderSource]], judged: Sequence[EncoderSource], leave_out: str | None
) -> None:
    """Refuse empty groups, a left-out group that is not one of several, and data sets that are named twice."""
    if not groups or not all(groups.values()):
        raise BadInput("name at least one group with at least one data set", "groups")
    if leave_out and (leave_out not in groups or len(groups) < 2):
        raise BadInput(f"no group {leave_out!r} beside another; groups: {', '.join(groups)}", "leave_out")
    counts = Counter(source.name for sources in (*groups.values(), judged) for source in sources)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise BadInput(f"the data set {twice[0]} is named twice", "groups")
