"""Settings of ToolWeaver. Stdlib only, so that reading a config costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from retrievers.generative.settings import GenerativeSettings, GenerativeTraining


@dataclass(frozen=True, slots=True)
class QuantiserSettings:
    """Collaborative residual quantisation: an autoencoder over the tools' vectors that turns them into codes."""

    levels: Annotated[int, Ge(2)] = 3
    """Tokens of a tool's code."""
    codebook_size: Annotated[int, Ge(2)] = 64
    """Codes per level. The model gains levels x codebook_size tokens; codebook_size ** levels tools have room."""
    width: Annotated[int, Ge(1)] = 64
    """Dimensions of the space that is quantised."""
    collaboration: Annotated[float, Ge(0)] = 1.0
    """Weight of the loss that draws tools together which are used together; 0: none."""
    uniform: bool = True
    """Spread the tools evenly over the codes of the last level (Sinkhorn); without it each takes the nearest."""
    steps: Annotated[int, Ge(1)] = 1000
    batch_size: Annotated[int, Ge(1)] = 2048
    """Tools per step; a smaller catalogue is one batch."""
    learning_rate: Annotated[float, Gt(0)] = 1e-3
    seed: Annotated[int, Ge(0)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWeaverSettings(GenerativeSettings):
    """A language model that generates tools as hierarchical codes (ToolWeaver, arXiv 2601.21947)."""

    train: GenerativeTraining
    """How the model learns the codes; co-usage is counted in the same data."""
    kind: Literal["toolweaver"] = "toolweaver"
    quantiser: QuantiserSettings = QuantiserSettings()
    new_tools: Literal["nearest", "token"] = "nearest"
    """A tool added later gets the nearest free code. `token`: and, until it is trained in, a token of its own that is
    made from its document."""
