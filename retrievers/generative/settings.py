"""Settings of generative retrievers. Stdlib only, so that reading a config costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from retrievers.errors import BadInput
from retrievers.settings import TrainingSource


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the training."""

    epochs: Annotated[int, Ge(0)] = 1
    """0 skips the stage."""
    learning_rate: Annotated[float, Gt(0)] = 3e-4
    """The peak; it rises over the first 3 % of the steps, then falls along a cosine."""
    batch_size: Annotated[int, Ge(1)] = 64
    max_length: Annotated[int, Ge(16)] = 256
    """Tokens kept of one example; longer texts are cut at their end, never the tool's tokens."""
    rehearse: Annotated[float, Ge(0)] = 0.0
    """Examples of the stage before that are mixed in, as a share of this stage's own, so that it is not forgotten."""


@dataclass(frozen=True, slots=True)
class AgentStage(Stage):
    """The stage that teaches calling."""

    epochs: Annotated[int, Ge(0)] = 0
    trajectories: str = "bundled:sample"
    """A file of trajectories, JSON lines, or `bundled:sample`."""
    max_length: Annotated[int, Ge(16)] = 1024
    rehearse: Annotated[float, Ge(0)] = 1.0


@dataclass(frozen=True, slots=True)
class GenerativeTraining:
    """Training of a language model that memorises the catalogue and retrieves from it."""

    data: tuple[TrainingSource, ...]
    """Data sets whose tools are the index's."""
    protocol: Literal["official", "unseen-tools", "late-tools"] = "official"
    memorise: Stage = Stage(epochs=8)
    """Document to tool, for every tool of the catalogue."""
    retrieve: Stage = Stage(epochs=8)
    """Query to tool, one pair per gold tool; batch_size counts queries, each with all its pairs."""
    agent: AgentStage = AgentStage()
    """Thought, tool, document, arguments, over several turns."""
    method: Literal["full", "lora"] = "full"
    lora_rank: Annotated[int, Ge(1)] = 64
    """Rank of the adapters of `method: lora`; their alpha is twice the rank. They are merged when training ends."""
    eval_every: Annotated[int, Ge(1)] = 1
    """Epochs of retrieval training between evaluations on dev (recall@5); the last epoch is always evaluated."""
    patience: Annotated[int, Ge(1)] = 3
    """Evaluations without a better dev recall before retrieval training stops."""
    save_every: Annotated[int, Ge(1)] = 500
    """Steps between checkpoints; one is also written at the end of an epoch when the last is a minute old."""
    seed: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        if not self.data:
            raise BadInput("training needs at least one data set, got none", "data")
        if not (self.memorise.epochs or self.retrieve.epochs or self.agent.epochs):
            raise BadInput("all stages have epochs: 0; leave `train` out, or train at least one stage", "retrieve")
        if self.memorise.rehearse:
            raise BadInput(
                f"the first stage has nothing to rehearse, got rehearse: {self.memorise.rehearse:g}", "memorise"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerativeSettings:
    """Settings that all generative retrievers share."""

    model: str = "bundled:smollm2-135m"
    """A causal language model: a Hugging Face id, a folder, or `bundled:smollm2-135m`."""
    encoder: str = "bundled:minilm"
    """The model whose vectors of the tools' documents codes are made from."""
    train: GenerativeTraining | None = None
    """Train the model first; the weights are sealed with the index."""
    scores: Literal["catalogue", "vocabulary"] = "catalogue"
    """Log-probability among the tokens that can follow (all tools of the index sum to 1), or among all tokens."""
    beams: Annotated[int, Ge(1)] = 32
    """Prefixes kept at every step; a search for more tools than this keeps as many."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Queries searched together."""
    max_length: Annotated[int, Ge(16)] = 256
    """Tokens read of a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolGenSettings(GenerativeSettings):
    """A language model whose vocabulary holds the tools (ToolGen, arXiv 2410.03439)."""

    kind: Literal["toolgen"] = "toolgen"
    indexing: Literal["atomic", "semantic", "numeric", "hierarchical"] = "atomic"
    """A tool is written as a token of its own, its name, a number, or its path through clusters (of `encoder`)."""
