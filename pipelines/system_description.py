"""Describe a system: kind of retriever, kind of rewriter, number of parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.rewriters import RewriterParts
from retrievers.base import FindModel
from retrievers.errors import BadInput
from retrievers.index import Index
from retrievers.settings import hybrid_parts

MEMORY_TENSORS = ("tools/", "pool/")
"""Tensors that MassTool keeps of tools and queries: memory, not parameters."""


@dataclass(frozen=True, slots=True)
class SystemDescription:
    """A system as the tables of results name it."""

    retriever: str
    """The kind, with -tuned behind it where an encoder was tuned for this index."""
    rewriter: str = "none"
    """none, rules, zero-shot, sft, aligned, or replay if its origin is unknown."""
    parameters: int | None = 0
    """Of all models that answer a query; None if unknown, such as those of a server."""


def describe_system(
    index: Index, retriever: str, find_model: FindModel, rewriter: RewriterParts | None = None
) -> SystemDescription:
    """Describe a retriever of an index, with an optional rewriter in front."""
    kind, weights = _kind(index, retriever), _weights(index, retriever, find_model)
    if rewriter is None:
        return SystemDescription(kind, "none", weights)
    return SystemDescription(kind, rewriter_label(rewriter), _sum(weights, _rewriter_weights(rewriter)))


def rewriter_label(parts: RewriterParts) -> str:
    """The kind of a rewriter."""
    if parts.facts.get("backend") == "rules":
        return "rules"
    if parts.facts.get("backend") == "replay":
        return str(parts.facts["made_by"] or "replay")
    if not parts.trained_by:
        return "zero-shot"
    return "sft" if parts.trained_by.startswith("supervised") else "aligned"


def retriever_label(index: Index, retriever: str) -> str:
    """The kind of search of a retriever: dense, trained dense, hybrid of bm25 and trained masstool."""
    settings = index.manifest.retrievers[retriever].settings
    kind = "dense" if settings["kind"] == "milvus" else str(settings["kind"])
    if inner := settings.get("of"):
        return f"{kind} of {' and '.join(retriever_label(index, name) for name in inner)}"
    return f"trained {kind}" if settings.get("train") is not None else kind


def fusion_warning(parts: RewriterParts, behind: str, setting: str) -> str:
    """A warning if the raw query's share was chosen for other retrievers than this one, else "".

    In front of a trained retriever such a share may cost more than it gains (docs/results.md).
    """
    known = list(dict.fromkeys(str(row["searches"]) for row in parts.data if row.get("searches")))
    if parts.fusion is None or parts.fusion.raw >= 1 or not known or behind in known:
        return ""
    return (
        f"the rewriter's share of the raw query, {parts.fusion.raw:g}, was chosen in front of {', '.join(known)}, and "
        f"this is {behind}; choose one on dev with `choose_fusion` of rewrite-eval, and set `{setting}`"
    )


def count_parameters(folder: Path) -> int | None:
    """Number of parameters in a folder's safetensors files; None without readable files, or for packed weights."""
    total, files = 0, sorted(folder.rglob("*.safetensors"))
    for path in files:
        with path.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if not 0 < size < path.stat().st_size:
                return None
            try:
                head = json.loads(stream.read(size))
            except ValueError:
                return None
        for name, facts in head.items():
            if facts.get("dtype") in ("I8", "U8"):
                return None
            if (
                name != "__metadata__"
                and not name.startswith(MEMORY_TENSORS)
                and facts["dtype"].startswith(("F", "BF"))
            ):
                total += math.prod(facts["shape"])
    return total if files else None


def _sum(*counts: int | None) -> int | None:
    """The sum; None if a part is unknown."""
    return None if None in counts else sum(count for count in counts if count is not None)


def _kind(index: Index, retriever: str) -> str:
    settings = index.manifest.retrievers[retriever].settings
    inner = [_kind(index, name) for name in hybrid_parts(settings)]
    learned = settings["kind"] == "dense" and settings.get("train") is not None
    tuned = learned or any(kind.endswith("-tuned") for kind in inner)
    return f"{settings['kind']}{'-tuned' if tuned else ''}"


def _weights(index: Index, retriever: str, find_model: FindModel) -> int | None:
    part = index.manifest.retrievers[retriever]
    counts = [_weights(index, name, find_model) for name in hybrid_parts(part.settings)]
    trained = index.folder / part.model if part.model else None
    if trained:
        counts.append(count_parameters(trained))
    heads_alone = trained is not None and part.settings["kind"] == "masstool" and not (trained / "encoder").is_dir()
    if "model" in part.settings and (trained is None or heads_alone):
        counts.append(count_parameters(find_model(str(part.settings["model"]))))
    return _sum(*counts)


def _rewriter_weights(parts: RewriterParts) -> int | None:
    if parts.facts.get("backend") == "rules":
        return 0
    if parts.model is None:
        return None
    return _sum(count_parameters(parts.model), count_parameters(parts.adapter) if parts.adapter else 0)


def parse_description(value: Mapping[str, Any], source: str) -> SystemDescription:
    """Read the description of a system from metrics.json."""
    try:
        return SystemDescription(**value)
    except TypeError as error:
        raise BadInput(f"{source} does not describe its systems ({error}); run its command again") from error
