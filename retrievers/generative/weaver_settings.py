"""What can be set of a ToolWeaver. Stdlib only, so that reading a config costs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from retrievers.errors import BadInput
from retrievers.generative.settings import GenerativeTraining
from retrievers.weaver.settings import WeaveSettings

WEAVE = "0-weave.safetensors"
"""The codes of a training under way."""


@dataclass(frozen=True, slots=True)
class ToolWeaverSettings:
    """A language model that says tools in hierarchical codes (ToolWeaver, arXiv 2601.21947)."""

    train: GenerativeTraining
    """How the model learns the codes; what is used together is told by the same data."""
    kind: Literal["toolweaver"] = "toolweaver"
    model: str = "bundled:smollm2-135m"
    """A causal language model: a Hugging Face id, a folder, or `bundled:smollm2-135m`."""
    encoder: str = "bundled:minilm"
    """The model whose vectors of the tools' documents are woven into codes."""
    weave: WeaveSettings = field(default_factory=WeaveSettings)
    newcomers: Literal["nearest", "said", "token"] = "nearest"
    """A later tool's code: the nearest free one, or of the nearest free ones what the model says of its document.
    `token`: the nearest free one, and until it is trained in a token of its own, made of its document, says it."""
    scores: Literal["catalogue", "vocabulary"] = "catalogue"
    """Log-probability among the tokens that can follow (all tools of the index sum to 1), or among all tokens."""
    beams: int = 32
    """Prefixes kept at every step; a search for more tools than this keeps as many."""
    batch_size: int = 32
    """Queries at a time."""
    max_length: int = 256
    """Tokens read of a query."""
    indexing: ClassVar[str] = "woven"

    def __post_init__(self) -> None:
        if min(self.beams, self.batch_size) < 1 or self.max_length < 16:
            raise BadInput("beams and batch_size must be at least 1, max_length at least 16")
