"""The block `rerank` of a config. Imports no heavy library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le


@dataclass(frozen=True, slots=True)
class RerankSettings:
    """A trained reranker, which reads the first tools of the fused list once more."""

    path: str
    """A reranker's folder, or the training run that wrote it."""
    top: Annotated[int, Ge(1), Le(100)] | None = None
    """Tools that are reranked; None: as its card says for this retriever."""
    weight: Annotated[float, Ge(0), Le(1)] | None = None
    """Share of the reranker beside the first order; None: as its card says for this retriever."""
    engine: Literal["auto", "onnx", "transformers", "vllm"] = "auto"
    """auto: onnx (ONNX Runtime) for a cross-encoder on a CPU, else transformers. vllm: for a language model; a server
    lets it share the vLLM of a rewriter with the same base."""
    base: str | None = None
    """The present location of an adapter's base model; None: as its card says."""
