"""What can be set of a generative retriever. Stdlib only, so that reading a config costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from retrievers.errors import BadInput
from retrievers.settings import TrainingSource

Indexing = Literal["atomic", "semantic", "numeric", "hierarchical"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the training."""

    epochs: int = 1
    """0 skips the stage."""
    learning_rate: float = 3e-4
    batch_size: int = 64
    warmup: float = 0.03
    """The share of steps in which the learning rate rises; after it, it falls along a cosine."""
    max_length: int = 256
    """Tokens kept of one example; longer texts are cut at their end, never the tool's tokens."""
    rehearse: float = 0.0
    """Examples of the stage before mixed in, as a share of this stage's own, so that it is not forgotten."""

    def __post_init__(self) -> None:
        if min(self.epochs, self.rehearse) < 0 or self.batch_size < 1 or self.max_length < 16:
            raise BadInput("epochs and rehearse must not be negative, batch_size at least 1, max_length at least 16")
        if self.learning_rate <= 0 or not 0 <= self.warmup < 1:
            raise BadInput("learning_rate must be positive, warmup between 0 and 1")


@dataclass(frozen=True, slots=True)
class AgentStage(Stage):
    """The stage that teaches calling."""

    epochs: int = 0
    trajectories: str = "bundled:sample"
    """A file of trajectories, JSON lines, or `bundled:sample`."""
    max_length: int = 1024
    rehearse: float = 1.0


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """Low-rank adapters, merged into the weights when training ends."""

    rank: int = 64
    alpha: int = 128

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha < 1:
            raise BadInput("rank and alpha must be at least 1")


@dataclass(frozen=True, slots=True)
class GenerativeTraining:
    """How a language model learns the catalogue by heart."""

    data: tuple[TrainingSource, ...]
    """Data sets whose tools are the index's."""
    protocol: Literal["official", "unseen-tools"] = "official"
    hold_out: str = ""
    memorise: Stage = Stage(epochs=8)
    """Document to tool, for every tool of the catalogue."""
    retrieve: Stage = Stage(epochs=8)
    """Query to tool, one pair a gold tool; batch_size counts queries, each with all its pairs."""
    agent: AgentStage = AgentStage()
    """Thought, tool, document, arguments, over several turns."""
    method: Literal["full", "lora"] = "full"
    lora: LoraSettings = LoraSettings()
    weight_decay: float = 0.01
    clip: float = 1.0
    """The longest gradient that is taken as it is."""
    dev_queries: int = 512
    """Dev queries that judge an epoch of retrieval training by recall@5."""
    judge_every: int = 1
    """Epochs of retrieval training from one judging to the next; the last is always judged."""
    patience: int = 3
    """Judgings without a better dev recall before retrieval training stops."""
    save_every: int = 500
    """Steps between checkpoints; one is also written at the end of an epoch when the last is a minute old."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.data:
            raise BadInput("training needs at least one data set")
        if not (self.memorise.epochs or self.retrieve.epochs or self.agent.epochs):
            raise BadInput("all stages have epochs: 0; leave `train` out, or train something")
        if self.memorise.rehearse:
            raise BadInput("memorise is the first stage: it has nothing to rehearse; `rehearse` is for later ones")
        if min(self.dev_queries, self.judge_every, self.patience, self.save_every) < 1:
            raise BadInput("dev_queries, judge_every, patience and save_every must be at least 1")
        if min(self.seed, self.weight_decay) < 0 or self.clip <= 0:
            raise BadInput("seed and weight_decay must not be negative, clip must be positive")


class Asking(Protocol):
    """What a search needs to know of any generative retriever's settings."""

    @property
    def scores(self) -> str: ...
    @property
    def beams(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def max_length(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ToolGenSettings:
    """A language model whose vocabulary holds the tools (ToolGen, arXiv 2410.03439)."""

    kind: Literal["toolgen"] = "toolgen"
    model: str = "bundled:smollm2-135m"
    """A causal language model: a Hugging Face id, a folder, or `bundled:smollm2-135m`."""
    indexing: Indexing = "atomic"
    """How a tool is spelled: a token of its own, its name, a number, or its path through clusters of alike tools."""
    encoder: str = "bundled:minilm"
    """The model whose vectors are clustered by `hierarchical`."""
    train: GenerativeTraining | None = None
    """Train the model first; the weights are sealed with the index."""
    scores: Literal["catalogue", "vocabulary"] = "catalogue"
    """Log-probability among the tokens that can follow (all tools of the index sum to 1), or among all tokens."""
    beams: int = 32
    """Prefixes kept at every step; a search for more tools than this keeps as many. One token a tool needs none."""
    batch_size: int = 32
    """Queries at a time."""
    max_length: int = 256
    """Tokens read of a query."""

    def __post_init__(self) -> None:
        if min(self.beams, self.batch_size) < 1 or self.max_length < 16:
            raise BadInput("beams and batch_size must be at least 1, max_length at least 16")
