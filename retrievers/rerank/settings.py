"""Settings of rerankers and of their training. Imports no library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

MIN_TOOL = 48
"""Tokens of a tool that are always read: a longer request is cut in its middle."""
SPECIAL = 4
"""Room for the special tokens of a cross-encoder."""


@dataclass(frozen=True, slots=True)
class CrossEncoderSettings:
    """An encoder that reads request and tool as one text."""

    base: str = "bundled:minilm"
    """A Hugging Face id, a folder, or a bundled encoder; a cross-encoder's own head is kept."""
    kind: Literal["cross-encoder"] = "cross-encoder"
    max_length: Annotated[int, Ge(128)] = 512
    """Tokens of request and tool together; of longer ones the tool is cut first."""
    max_tool: Annotated[int, Ge(MIN_TOOL)] = 128
    """Tokens read of a tool."""


@dataclass(frozen=True, slots=True)
class LanguageModelSettings:
    """A language model that answers whether the request needs the tool: logit of yes minus logit of no."""

    base: str
    """A Hugging Face id, a folder, or `bundled:smollm2-135m`."""
    kind: Literal["language-model"] = "language-model"
    method: Literal["lora", "full"] = "lora"
    """lora: an adapter, which shares its base with a rewriter's in one vLLM."""
    rank: Annotated[int, Ge(1), Le(512)] = 32
    """Rank of the adapter."""
    max_length: Annotated[int, Ge(128)] = 1024
    """Tokens of the prompt; of longer ones the tool is cut first."""
    max_tool: Annotated[int, Ge(MIN_TOOL)] = 192
    """Tokens read of a tool."""


RerankModelSettings = CrossEncoderSettings | LanguageModelSettings


@dataclass(frozen=True, slots=True)
class RerankTraining:
    """Training on lists that a retriever returns: which of them does the request need?"""

    steps: Annotated[int, Ge(1)] = 1000
    queries: Annotated[int, Ge(1)] = 6
    """Queries per step."""
    candidates: Annotated[int, Ge(2)] = 8
    """Tools per query: those it needs, at most half of them, and wrong ones from its list."""
    learning_rate: Annotated[float, Gt(0)] = 1e-4
    depth: Annotated[int, Ge(2)] = 30
    """Ranks of the list from which wrong tools are drawn."""
    binary: Annotated[float, Ge(0)] = 0.2
    """Weight of the binary cross entropy of single tools beside the softmax over the list."""
    freeze: tuple[str, ...] = ()
    """Parts of the names of weights that stay as they are, such as `embeddings`; an adapter's base always does."""
    mixture: Annotated[float, Ge(0), Le(1)] = 0.5
    """A data set has queries in proportion to its size to this power; 0: all alike, 1: by size."""
