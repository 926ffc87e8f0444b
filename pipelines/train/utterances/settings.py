"""What `rewrite-train utterances` is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipelines.phrasing import NAMES
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
    """Who writes: the bundled model, any other, or any OpenAI-compatible server; `template: utterances`."""
    shown_as: str = "said"
    """How a tool is shown to the writer; one that says next to nothing, with its name and parameters."""
    draws: int = 6
    """Answers that are drawn for every tool."""
    per_tool: int = 4
    """Utterances of a tool that are kept at most, those that are found best first."""
    found_in: int = 20
    """An utterance is kept if its tool is among the first so many that the retriever finds; 0: whatever it finds."""
    shortest: int = 12
    """Characters."""
    longest: int = 300
    copied: float = 0.5
    """The share of its threes of words that an utterance may take from the tool's own text."""
    test_one_in: int = 5
    """One utterance in so many is for test, by a hash of its text; then one in `dev_one_in` for dev; the rest is to
    train on."""
    dev_one_in: int = 10
    most_tools: int = 0
    """Tools at most, drawn by the seed, for a quick look; 0: all."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.writer.path is not None or isinstance(self.writer.backend, RulesSettings):
            raise BadInput("a language model writes utterances: name a `base`, or a backend of kind server", "writer")
        if self.writer.sampling.answers > 1:
            raise BadInput("how often the model is asked is said by `draws`; leave `answers` out", "writer")
        if self.writer.sampling.temperature == 0 and self.draws > 1:
            raise BadInput("greedy answers are all the same; set a temperature, or draws: 1", "draws")
        if self.shown_as not in NAMES:
            raise BadInput(f"tools are shown as {', '.join(NAMES)}, not {self.shown_as!r}", "shown_as")
        if min(self.draws, self.per_tool, self.shortest) < 1 or self.longest < self.shortest:
            raise BadInput("draws, per_tool and shortest are at least 1, longest no less than shortest")
        if min(self.found_in, self.most_tools, self.seed) < 0 or not 0 <= self.copied <= 1:
            raise BadInput("found_in, most_tools and seed are not negative, copied is a share")
        if min(self.test_one_in, self.dev_one_in) < 2:
            raise BadInput("test_one_in and dev_one_in are at least 2")
