"""The plan of a job: rewriter, search and fusion from a config, and everything that its outcome depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipelines.batch.answer_cache import make_key_function
from pipelines.batch.settings import BatchConfig
from pipelines.context import make_context
from pipelines.index.defaults import choose_retriever, index_folder
from pipelines.rerank.loading import (
    RerankerParts,
    choice_warning,
    choose,
    find_reranker,
    load_model,
    make_stage,
    retriever_words,
)
from pipelines.rewriters import PHRASING, RewriterParts, describe, find_parts, load_rewriter
from pipelines.search import ToolSearch
from pipelines.system_description import fusion_warning, retriever_label
from retrievers.errors import BadInput
from retrievers.index import Index
from retrievers.settings import RewriteFusion
from rewrite.rewriter import Rewriter

LOCATION_KEYS = ("path", "url", "trained_on")
"""Facts about a rewriter that do not change its answers."""
LEFT_OUT = (
    "the rewriter is not asked, because its fusion gives the raw query everything (raw is 1); set `rewriter.fusion` to "
    "ask it, or leave `index` out to write rewrites alone"
)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """All parts of a job, checked but not loaded."""

    config: BatchConfig
    rewriter: RewriterParts | None
    fusion: RewriteFusion
    fingerprint: str | None
    """Of the index."""
    warning: str = ""
    reranker: RerankerParts | None = None
    words: str = ""
    """The retriever in words, by which a reranker's card knows it."""

    @property
    def leaves_rewriter_out(self) -> bool:
        """True if the tools are those of the raw query in any case, so that the rewriter need not be asked."""
        return self.rewriter is not None and self.config.index is not None and self.fusion.raw >= 1

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the outcome depends on, except the input."""
        rewriter: dict[str, Any] | None = None
        if self.rewriter is not None and self.config.rewriter is not None:
            facts = {key: value for key, value in describe(self.rewriter).items() if key not in LOCATION_KEYS}
            template = hashlib.sha256(self.rewriter.template.dump().encode()).hexdigest()[:16]
            sampling = asdict(self.config.rewriter.sampling)
            if sampling["answers"] == 1:  # votes need several answers
                del sampling["max_lines"], sampling["min_votes"]
            rewriter = {**facts, "template_hash": template, "sampling": sampling}
            for key in ("dtype", "bits"):
                if (value := getattr(self.config.rewriter.backend, key, None)) is not None:
                    rewriter[key] = value
        index, settings = self.fingerprint, asdict(self.config.input)
        return {
            "rewriter": rewriter,
            "index": None if index is None else {"retriever": self.config.retriever, "fingerprint": index},
            "fusion": None if index is None or rewriter is None else asdict(self.fusion),
            "k": None if index is None else self.config.k,
            **({} if self.config.detect else {"detect": False}),
            **({} if self.config.min_score is None else {"min_score": self.config.min_score}),
            **({} if self.config.min_probability is None else {"min_probability": self.config.min_probability}),
            **({} if self.reranker is None else {"reranker": self._reranker_identity(self.reranker)}),
            "input": {key: settings[key] for key in ("text", "id", "max_characters")},
            "order": self.config.order,
            "chunk_size": self.config.chunk_size,
        }

    def _reranker_identity(self, parts: RerankerParts) -> dict[str, Any]:
        choice = choose(parts, self.words)
        return {"fingerprint": parts.fingerprint, "top": choice.top, "weight": choice.weight}

    def key_function(self) -> Callable[[str], str]:
        """A function from utterances to the keys of their cached answers."""
        identity = self.identity
        shows_tools = self.rewriter is not None and self.rewriter.template.candidates > 0
        return make_key_function(
            {"rewriter": identity["rewriter"], "index": identity["index"] if shows_tools else None}
        )


def make_plan(config: BatchConfig, device: str | None) -> BatchPlan:
    """Plan a job; refuse what cannot work before anything is read or loaded."""
    rewriter = None if config.rewriter is None else find_parts(config.rewriter)
    if rewriter is not None and rewriter.template.candidates and config.index is None:
        raise BadInput(f"the template {rewriter.template.name} shows retrieved tools; name the `index` they come from")
    fusion = config.rewriter.fusion if config.rewriter is not None else None
    card_fusion = rewriter.fusion if rewriter is not None else None
    fingerprint, warning, words = None, "", ""
    reranker = None if config.rerank is None else find_reranker(config.rerank)
    if config.index is not None:
        index = _open_index(config, device)
        config = replace(config, retriever=choose_retriever(index, config.retriever))
        fingerprint = index.retriever(config.retriever).fingerprint
        words = retriever_words(index, config.retriever)
        if reranker is None or not choose(reranker, words).calibration:
            ToolSearch(index, config.retriever).check_min_score(config.min_score, config.min_probability)
        warning = choice_warning(reranker, words) if reranker is not None else ""
        if rewriter is not None and fusion is None:
            warning = fusion_warning(rewriter, retriever_label(index, config.retriever), "rewriter.fusion") or warning
    fusion = fusion or card_fusion or RewriteFusion()
    plan = BatchPlan(config, rewriter, fusion, fingerprint, warning, reranker, words)
    return replace(plan, warning=LEFT_OUT) if plan.leaves_rewriter_out else plan


@dataclass(frozen=True, slots=True)
class LoadedParts:
    """The loaded models of a job."""

    rewriter: Rewriter | None
    """None without one, or where the fusion leaves it out."""
    search: ToolSearch | None
    fusion: RewriteFusion
    detect: bool = True
    min_score: float | None = None
    min_probability: float | None = None
    left_out: bool = False
    """The fusion leaves the rewriter out."""


def load_parts(plan: BatchPlan, device: str | None) -> LoadedParts:
    """Load the models that answer."""
    config, rewriter = plan.config, None
    if config.rewriter is not None and plan.rewriter is not None and not plan.leaves_rewriter_out:
        rewriter = load_rewriter(config.rewriter, plan.rewriter, device)
    search = None
    if config.index is not None:
        phrasing = plan.rewriter.phrasing if plan.rewriter is not None else PHRASING
        index, stage = _open_index(config, device), None
        if plan.reranker is not None:
            model = load_model(plan.reranker, device, index.context.vllm)
            stage = make_stage(plan.reranker, model, plan.words)
        search = ToolSearch(index, config.retriever, fusion=plan.fusion, phrasing=phrasing, reranker=stage)
    limits = config.min_score, config.min_probability
    return LoadedParts(rewriter, search, plan.fusion, config.detect, *limits, plan.leaves_rewriter_out)


def _open_index(config: BatchConfig, device: str | None) -> Index:
    return Index(index_folder(config.index or ""), make_context(device))
