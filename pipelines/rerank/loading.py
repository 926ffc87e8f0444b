"""Make a rerank stage from a config: find and check folder, base model and engine, then load."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.models import cache_folder, find_base, find_model
from pipelines.rerank.settings import RerankSettings
from pipelines.rerank.stage import RerankStage
from retrievers.base import Reranker
from retrievers.dense.encoder import check_device, fingerprint
from retrievers.errors import BadInput
from retrievers.index import Index
from retrievers.rerank.folder import CARD_FILE, RerankChoice, RerankerFolder, open_reranker

log = logging.getLogger("toolrewrite")


@dataclass(frozen=True, slots=True)
class RerankerParts:
    """A reranker, found and checked; nothing is loaded yet."""

    settings: RerankSettings
    folder: RerankerFolder
    model: Path
    """The folder of the model to load: the reranker's own, or the base of its adapter."""
    fingerprint: str


def find_reranker(settings: RerankSettings) -> RerankerParts:
    """Find the parts that the settings name. Refuses an adapter of another base model."""
    folder = open_reranker(Path(settings.path).expanduser())
    if settings.engine == "vllm" and folder.card.kind != "language-model":
        raise BadInput(f"the reranker in {folder.path} is a {folder.card.kind}; vLLM runs language models", "engine")
    if settings.engine == "onnx" and folder.card.kind != "cross-encoder":
        raise BadInput(f"the reranker in {folder.path} is a {folder.card.kind}; onnx runs cross-encoders", "engine")
    if folder.adapter is None and settings.base is not None:
        raise BadInput(f"the reranker in {folder.path} is a whole model; leave `base` out", "base")
    model = find_model(str(folder.path)) if folder.adapter is None else _base_model(folder, settings.base)
    return RerankerParts(settings, folder, model, fingerprint(folder.path))


def _base_model(folder: RerankerFolder, named: str | None) -> Path:
    card = folder.card
    return find_base(f"the reranker in {folder.path}", card.base, card.base_fingerprint, named, "rerank.base")


def load_model(parts: RerankerParts, device: str | None, vllm: Callable[[], Any] | None = None) -> Reranker:
    """Load the model; takes time and memory. `vllm` returns the function that starts vLLM."""
    card = parts.folder.card
    limits = card.max_length, card.max_tool
    if card.kind == "cross-encoder":
        return _load_cross_encoder(parts, limits, device)
    if parts.settings.engine == "vllm":
        from retrievers.rerank.vllm_reranker import VllmReranker

        if vllm is None:
            raise BadInput("vLLM cannot be started here; take the engine transformers", "engine")
        return VllmReranker(vllm(), parts.model, parts.folder.adapter, *limits, parts.fingerprint)
    from retrievers.rerank.language_model import LanguageModelReranker

    return LanguageModelReranker(parts.model, *limits, device, parts.folder.adapter, parts.fingerprint)


def _load_cross_encoder(parts: RerankerParts, limits: tuple[int, int], device: str | None) -> Reranker:
    """On ONNX Runtime where the device is a CPU; PyTorch takes over where that fails, unless the config names onnx."""
    engine = parts.settings.engine
    if engine == "onnx" or (engine == "auto" and check_device(device) == "cpu"):
        from retrievers.dense.cpu.folder import NoCpuRuntime

        try:
            from retrievers.rerank.onnx_encoder import load_onnx_encoder

            return load_onnx_encoder(parts.model, limits, parts.fingerprint, cache_folder())
        except (NoCpuRuntime, ModuleNotFoundError) as error:
            reason = f"{error.name} is not installed" if isinstance(error, ModuleNotFoundError) else str(error)
            if engine == "onnx":
                raise BadInput(
                    f"ONNX Runtime cannot run {parts.folder.path}: {reason}; leave it out", "engine"
                ) from error
            log.warning("the reranker in %s runs on PyTorch, as %s", parts.folder.path, reason)
    from retrievers.rerank.cross_encoder import CrossEncoderReranker

    return CrossEncoderReranker(parts.model, *limits, device, parts.fingerprint)


def make_stage(parts: RerankerParts, model: Reranker, retriever: str) -> RerankStage:
    """The stage behind a retriever, named in words as `retriever_words` does."""
    choice = choose(parts, retriever)
    facts = {
        "path": str(parts.folder.path),
        "kind": parts.folder.card.kind,
        "base": parts.folder.card.base,
        "fingerprint": parts.fingerprint,
        "engine": getattr(model, "engine", parts.settings.engine),
        "top": choice.top,
        "weight": choice.weight,
    }
    return RerankStage(model, choice.top, choice.weight, choice.calibrate(), facts, choice.min_probability)


def choose(parts: RerankerParts, retriever: str) -> RerankChoice:
    """Depth and weight: those of the config, else those that dev chose for this retriever.

    A calibration holds for the depth and weight it was fitted with.
    """
    settings, choice = parts.settings, parts.folder.card.choose(retriever)
    top = choice.top if settings.top is None else settings.top
    weight = choice.weight if settings.weight is None else settings.weight
    if (top, weight) == (choice.top, choice.weight):
        return choice
    return RerankChoice(choice.retriever, top, weight)


def choice_warning(parts: RerankerParts, retriever: str) -> str:
    """A warning if depth and weight were chosen for other retrievers than this one, or speak against it; else ""."""
    card, settings = parts.folder.card, parts.settings
    if settings.top is not None and settings.weight is not None:
        return ""
    choice = card.choose(retriever)
    if choice.retriever != retriever:
        known = "; ".join(choice.retriever for choice in card.choices)
        return (
            f"depth and weight of the reranker were chosen in front of {known}, and this is {retriever}; train it with "
            "lists of this retriever, or set `rerank.top` and `rerank.weight`"
        )
    if not choice.weight and settings.weight is None:
        return f"{parts.folder.path / CARD_FILE} gives the reranker no weight: dev saw no gain, so it is not asked"
    return ""


def retriever_words(index: Index, retriever: str) -> str:
    """A retriever in words, with its encoders: `hybrid of bm25 and dense bundled:tools`.

    What a reranker gains depends on the bonus for names, so BM25 without it has another name.
    """
    settings = index.manifest.retrievers[retriever].settings
    kind = "dense" if settings["kind"] == "milvus" else str(settings["kind"])
    if inner := settings.get("of"):
        method = (settings.get("fusion") or {}).get("method", "")
        return f"{kind}{f' ({method})' if method else ''} of {' and '.join(retriever_words(index, n) for n in inner)}"
    if settings.get("train") is not None:
        return f"trained {kind}"
    if kind == "bm25" and settings.get("names") == 0:
        return "bm25 without names"
    return f"{kind} {settings['model']}" if kind == "dense" else kind
