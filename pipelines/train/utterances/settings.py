"""Settings of `rewrite-train utterances`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge

from pipelines.rewriters import RewriterSettings
from retrievers.errors import BadInput
from rewrite.settings import RulesSettings, Sampling


def _writer() -> RewriterSettings:
    return RewriterSettings(
        base="bundled:smollm2-135m", template="utterances", sampling=Sampling(0.6, 0.9, max_tokens=48)
    )


@dataclass(frozen=True, slots=True)
class UtterancesConfig:
    """`rewrite-train utterances`."""

    output: str
    """The data set folder to write."""
    index: str
    """The index of the catalogue."""
    retriever: str = "dense"
    """The retriever that must find the tool again."""
    writer: RewriterSettings = field(default_factory=_writer)
    """The model that writes: the bundled one, any other, or an OpenAI-compatible server; `template: utterances`."""
    draws: Annotated[int, Ge(1)] = 6
    """Answers sampled per tool."""
    max_per_tool: Annotated[int, Ge(1)] = 4
    """Utterances kept per tool, best rank first."""
    max_rank: Annotated[int, Ge(0)] = 20
    """An utterance is kept if the retriever finds its tool within this rank; 0: always."""
    test_one_in: Annotated[int, Ge(2)] = 5
    """One utterance in this many is for test, by a hash of its text; of the others one in `dev_one_in` is for dev; the
    rest is for training."""
    dev_one_in: Annotated[int, Ge(2)] = 10
    max_tools: Annotated[int, Ge(0)] = 0
    """Tools at most, drawn by the seed, for a quick look; 0: all."""
    seed: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        if self.writer.path is not None or isinstance(self.writer.backend, RulesSettings):
            raise BadInput("a language model writes utterances: name a `base`, or a backend of kind server", "writer")
        if self.writer.sampling.answers > 1:
            raise BadInput(f"leave `answers` out and set `draws`, got answers {self.writer.sampling.answers}", "writer")
        if self.writer.sampling.temperature == 0 and self.draws > 1:
            raise BadInput(
                f"greedy answers are all the same; set a temperature, or draws: 1, got {self.draws}", "draws"
            )
