"""Settings of `rewrite-train rerank`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge

from pipelines.train.encoder.settings import EncoderSource, check_groups
from retrievers.errors import BadInput
from retrievers.registry import RetrieverSettings
from retrievers.rerank.settings import RerankModelSettings, RerankTraining
from retrievers.text import FIELDS


@dataclass(frozen=True, slots=True)
class RerankSource(EncoderSource):
    """A data set of a reranker."""

    index: str = ""
    """An index of its tools whose lists are reranked too, such as one with a trained retriever; empty: none."""
    retriever: str = "auto"
    """The retriever of that index."""


@dataclass(frozen=True, slots=True)
class RerankConfig:
    """`rewrite-train rerank`."""

    output: str
    """The run folder; the reranker is written to its folder `reranker`."""
    model: RerankModelSettings
    retrievers: dict[str, RetrieverSettings]
    """Retrievers without training, as in an index; each data set is indexed with them for the time of the run."""
    fronts: tuple[str, ...]
    """Those whose lists are reranked; the lists of the first one are trained on."""
    groups: dict[str, tuple[RerankSource, ...]]
    """Data sets to train on, in groups of similar catalogues: `--leave-one-out` leaves out one group at a time."""
    judged: tuple[RerankSource, ...] = ()
    """Data sets that are never trained on and choose nothing: the finished reranker is evaluated on them."""
    training: RerankTraining = field(default_factory=RerankTraining)
    weights: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    """Shares of the reranker to choose from; 0: the first order."""
    tops: tuple[int, ...] = (10, 20, 30)
    """Depths to choose from."""
    max_loss: Annotated[float, Ge(0)] = 0.005
    """Recall that a data set may clearly lose under the chosen depth and weight."""
    leave_out: str = ""
    """Name of a group: train without it and evaluate on it, nothing else."""
    text: tuple[str, ...] = FIELDS
    """Parts of a tool that are read."""
    max_queries: Annotated[int, Ge(2)] = 8000
    """Training queries per data set; of larger ones a sample is drawn."""
    max_judged: Annotated[int, Ge(1)] = 500
    """Queries per data set to evaluate on; of larger ones a sample is drawn."""
    max_dev: Annotated[int, Ge(1)] = 200
    """Dev queries per data set to choose depth and weight on, where no group was left out."""
    seed: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        if 0.0 not in self.weights or any(not 0 <= weight <= 1 for weight in self.weights):
            raise BadInput(f"must be shares between 0 and 1, with 0, got {list(self.weights)}", "weights")
        if not self.tops or any(not 2 <= top <= 100 for top in self.tops):
            raise BadInput(f"must be numbers from 2 to 100, got {list(self.tops)}", "tops")
        if not self.fronts or any(name not in self.retrievers for name in self.fronts):
            raise BadInput(f"must name some of {', '.join(self.retrievers)}, got {list(self.fronts)}", "fronts")
        learned = [name for name, settings in self.retrievers.items() if getattr(settings, "train", None)]
        if learned:
            raise BadInput(f"{learned[0]!r} has to be trained; name its finished index under a data set", "retrievers")
        check_groups(self.groups, self.judged, self.leave_out)
