"""What a job is made of: rewriter, search and fusion out of a config, and what of it an answer depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.batch.answer_cache import key_maker
from pipelines.batch.settings import BatchConfig
from pipelines.context import make_context
from pipelines.rewriters import PHRASING, Parts, describe, find_parts, load_rewriter
from pipelines.search import ToolSearch
from pipelines.system_description import fusion_warning, retriever_label
from retrievers.errors import BadInput
from retrievers.index import Index
from retrievers.settings import RewriteFusion
from rewrite.rewriter import Rewriter

ELSEWHERE = ("path", "url", "trained_on")
"""Where a model lies does not change what it is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything found and checked; nothing is loaded yet."""

    config: BatchConfig
    rewriter: Parts | None
    fusion: RewriteFusion
    fingerprint: str | None
    """The index's."""
    warning: str = ""
    """What whoever began the job should know before it runs."""

    @property
    def identity(self) -> dict[str, Any]:
        """What the outcome depends on, beside the input."""
        rewriter: dict[str, Any] | None = None
        if self.rewriter is not None and self.config.rewriter is not None:
            facts = {key: value for key, value in describe(self.rewriter).items() if key not in ELSEWHERE}
            template = hashlib.sha256(self.rewriter.template.dump().encode()).hexdigest()[:16]
            sampling = self.config.rewriter.sampling
            alone = {"max_lines", "min_votes"} if sampling.answers == 1 else set()
            decoding: dict[str, Any] = {"sampling": {k: v for k, v in asdict(sampling).items() if k not in alone}}
            if (dtype := getattr(self.config.rewriter.backend, "dtype", None)) is not None:
                decoding["dtype"] = dtype
            rewriter = {**facts, "template_hash": template, **decoding}
        settings = asdict(self.config.input)
        return {
            "rewriter": rewriter,
            "index": None if self.fingerprint is None else {"retriever": self.config.retriever, "is": self.fingerprint},
            "fusion": None if self.fingerprint is None or rewriter is None else asdict(self.fusion),
            "k": None if self.fingerprint is None else self.config.k,
            **({} if self.config.detect else {"detect": False}),
            "input": {key: settings[key] for key in ("text", "id", "max_characters")},
            "order": self.config.order,
            "chunk": self.config.chunk,
        }

    def keys(self) -> Callable[[str], str]:
        """From utterances to the keys of their answers."""
        identity = self.identity
        shows = self.rewriter is not None and self.rewriter.template.candidates > 0
        return key_maker({"rewriter": identity["rewriter"], "index": identity["index"] if shows else None})


def make_plan(config: BatchConfig, device: str | None) -> Plan:
    """The plan of a job; what cannot work is refused here, before anything is read or loaded."""
    rewriter = None if config.rewriter is None else find_parts(config.rewriter)
    if rewriter is not None and rewriter.template.candidates and config.index is None:
        raise BadInput(f"the template {rewriter.template.name} shows retrieved tools; name the `index` they come from")
    brought = rewriter.fusion if rewriter is not None else None
    fingerprint, warning = None, ""
    if config.index is not None:
        index = _index(config, device)
        fingerprint = index.retriever(config.retriever).fingerprint
        if rewriter is not None and config.fusion is None:
            warning = fusion_warning(rewriter, retriever_label(index, config.retriever), "fusion")
    return Plan(config, rewriter, config.fusion or brought or RewriteFusion(), fingerprint, warning)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a job works with."""

    rewriter: Rewriter | None
    search: ToolSearch | None
    detecting: bool = True
    """Is the index's detector asked, where it has one?"""


def load(plan: Plan, device: str | None) -> Loaded:
    """Loads models; this is what takes time and memory."""
    config, rewriter = plan.config, None
    if config.rewriter is not None and plan.rewriter is not None:
        rewriter = load_rewriter(config.rewriter, plan.rewriter, device)
    search = None
    if config.index is not None:
        phrasing = plan.rewriter.phrasing if plan.rewriter is not None else PHRASING
        search = ToolSearch(_index(config, device), config.retriever, fusion=plan.fusion, phrasing=phrasing)
    return Loaded(rewriter, search, config.detect)


def _index(config: BatchConfig, device: str | None) -> Index:
    return Index(Path(config.index or "").expanduser(), make_context(device))
