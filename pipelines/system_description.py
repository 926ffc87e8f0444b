"""What a system is made of, so that a run folder tells by itself where in a table its figures belong."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.rewriters import Parts
from retrievers.base import FindModel
from retrievers.errors import BadInput
from retrievers.index import Index

REMEMBERED = ("tools/", "pool/")
"""What MassTool keeps of tools and queries beside its heads: memory, not parameters."""


@dataclass(frozen=True, slots=True)
class SystemDescription:
    """A system in two words and a number."""

    retriever: str
    """The kind, with -tuned behind it where an encoder was tuned for this index."""
    rewriter: str = "none"
    """none, rules, zero-shot, sft or aligned; written where nobody told."""
    parameters: int | None = 0
    """Of all models that answer a query; None: nobody here can count them, since a server has them, say."""


def describe_system(
    index: Index, retriever: str, find_model: FindModel, rewriter: Parts | None = None
) -> SystemDescription:
    """What a retriever of an index, with a rewriter before it or without, is made of."""
    kind, weights = _kind(index, retriever), _weights(index, retriever, find_model)
    if rewriter is None:
        return SystemDescription(kind, "none", weights)
    return SystemDescription(kind, rewriter_label(rewriter), _sum(weights, _rewriter_weights(rewriter)))


def rewriter_label(parts: Parts) -> str:
    """A rewriter in a word."""
    if parts.facts.get("backend") == "rules":
        return "rules"
    if parts.facts.get("backend") == "replay":
        return str(parts.facts["made_by"] or "replay")
    if not parts.how:
        return "zero-shot"
    return "sft" if parts.how.startswith("supervised") else "aligned"


def retriever_label(index: Index, retriever: str) -> str:
    """How a retriever searches, wherever its vectors lie: dense, trained dense, hybrid of bm25 and trained masstool."""
    settings = index.manifest.retrievers[retriever].settings
    kind = "dense" if settings["kind"] == "milvus" else str(settings["kind"])
    if inner := settings.get("of"):
        return f"{kind} of {' and '.join(retriever_label(index, name) for name in inner)}"
    return f"trained {kind}" if settings.get("train") is not None else kind


def fusion_warning(parts: Parts, behind: str, setting: str) -> str:
    """A sentence where the share of the raw query was chosen in front of other retrievers than this one, else nothing.

    In front of a retriever that has learned from queries such a share may cost more than it brings (docs/results.md).
    Cards of rewriters that were trained before cards told this say nothing.
    """
    known = list(dict.fromkeys(str(each["searches"]) for each in parts.data if each.get("searches")))
    if parts.fusion is None or parts.fusion.raw >= 1 or not known or behind in known:
        return ""
    return (
        f"the rewriter's share of the raw query, {parts.fusion.raw:g}, was chosen in front of {', '.join(known)}, and "
        f"this is {behind}; have dev choose one in front of it (`choose_fusion` of rewrite-eval) and set `{setting}`"
    )


def count_parameters(folder: Path) -> int | None:
    """Of the weights in a folder, told by the heads of its safetensors files; None where there are none to be read.

    Neither where weights are packed into bytes: how many lie in one is the quantiser's secret.
    """
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
            if name != "__metadata__" and not name.startswith(REMEMBERED) and facts["dtype"].startswith(("F", "BF")):
                total += math.prod(facts["shape"])
    return total if files else None


def _sum(*counts: int | None) -> int | None:
    """Of what is known; None where a part is not."""
    return None if None in counts else sum(count for count in counts if count is not None)


def _kind(index: Index, retriever: str) -> str:
    settings = index.manifest.retrievers[retriever].settings
    inner = [_kind(index, name) for name in settings.get("of", ())]
    learned = settings["kind"] == "dense" and settings.get("train") is not None
    tuned = learned or any(kind.endswith("-tuned") for kind in inner)
    return f"{settings['kind']}{'-tuned' if tuned else ''}"


def _weights(index: Index, retriever: str, find_model: FindModel) -> int | None:
    part = index.manifest.retrievers[retriever]
    counts = [_weights(index, name, find_model) for name in part.settings.get("of", ())]
    trained = index.folder / part.model if part.model else None
    if trained:
        counts.append(count_parameters(trained))
    heads_alone = trained is not None and part.settings["kind"] == "masstool" and not (trained / "encoder").is_dir()
    if "model" in part.settings and (trained is None or heads_alone):
        counts.append(count_parameters(find_model(str(part.settings["model"]))))
    return _sum(*counts)


def _rewriter_weights(parts: Parts) -> int | None:
    if parts.facts.get("backend") == "rules":
        return 0
    if parts.model is None:
        return None
    return _sum(count_parameters(parts.model), count_parameters(parts.adapter) if parts.adapter else 0)


def parse_description(value: Mapping[str, Any], source: str) -> SystemDescription:
    """What metrics.json says of a system."""
    try:
        return SystemDescription(**value)
    except TypeError as error:
        raise BadInput(f"{source} does not say what its systems are made of ({error}); run it again") from error
