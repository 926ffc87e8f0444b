"""What rewriters did to the queries, in figures, samples and fusions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipelines.evaluate.fusion_selection import Tried
from pipelines.evaluate.rewritten_systems import DEV, METRIC, Fused, Rewritten
from pipelines.report.data import FusionRow, RewriteFigures, RewriterRow, RewriteSample, TriedRow
from rewrite.types import Rewrite

SAMPLES = 8
"""Rewrites shown of each rewriter, evenly drawn."""
TOP = 5
"""Of the ways to fuse that were tried on dev, so many are told: the one that was taken, and the best others."""


def figures(rewrites: Sequence[Rewrite], seconds: float) -> RewriteFigures:
    """Shares and means over all queries."""
    count = len(rewrites)
    share = {status: sum(each.status == status for each in rewrites) / count for status in _STATUSES}
    asked = [each for each in rewrites if each.status != "too-long"]
    lines = [len(each.lines) for each in rewrites if each.status == "rewritten"]
    tokens = [each.tokens for each in asked]
    return RewriteFigures(
        queries=count,
        parsed=_round(share["rewritten"] + share["none"]),
        none=_round(share["none"]),
        unparseable=_round(share["unparseable"]),
        too_long=_round(share["too-long"]),
        unfinished=_round(sum(not each.finished for each in asked) / count),
        cut=_round(sum(each.cut > 0 for each in asked) / count),
        lines=_round(sum(lines) / len(lines)) if lines else None,
        # An answer has at least the token that ends it: 0 is a server that does not count.
        tokens=_round(sum(tokens) / len(tokens)) if tokens and all(tokens) else None,
        seconds_per_query=seconds / count,
    )


_STATUSES = ("rewritten", "none", "unparseable", "too-long")


def _round(value: float) -> float:
    return round(value, 6)


def rewriter_row(name: str, rewritten: Rewritten, order: Sequence[str], texts: Sequence[str]) -> RewriterRow:
    """A rewriter with its figures and some of what it wrote."""
    facts, count = rewritten.facts, min(SAMPLES, len(order))
    chosen = [place * len(order) // count for place in range(count)]
    return RewriterRow(
        name,
        str(facts.get("path") or facts.get("base") or facts.get("model") or ""),
        f"{facts['template']['name']} {facts['template']['version']}",
        figures(rewritten.rewrites, rewritten.seconds),
        tuple(_sample(order[place], texts[place], rewritten.rewrites[place]) for place in chosen),
    )


def _sample(query: str, text: str, rewrite: Rewrite) -> RewriteSample:
    told = rewrite.answer if rewrite.status == "unparseable" else ""
    return RewriteSample(query, text, rewrite.status, rewrite.lines, told)


def per_query(rewrite: Rewrite) -> dict[str, Any]:
    """A line's share of queries.jsonl."""
    told = {"answer": rewrite.answer} if rewrite.status == "unparseable" else {}
    return {"status": rewrite.status, "lines": list(rewrite.lines), **told}


def rewriters_json(rows: Sequence[RewriterRow], rewritten: Mapping[str, Rewritten]) -> dict[str, Any]:
    """For metrics.json: name -> figures, what the rewriter is made of, samples."""
    return {
        row.name: {
            **asdict(row.figures),
            "made_of": dict(rewritten[row.name].facts),
            "samples": [asdict(sample) for sample in row.samples],
        }
        for row in rows
    }


def fusion_row(system: str, fused: Fused, dev_queries: int) -> FusionRow:
    """How a system fuses and, where that was chosen, among what."""
    way = fused.fusion
    if not fused.tried:
        return FusionRow(system, fused.rewriter, way.method, way.raw, sure=way.sure)
    told = [
        TriedRow(each.fusion.method, each.fusion.raw, _round(each.score), each.fusion.sure)
        for each in _told(fused.tried)
    ]
    return FusionRow(system, fused.rewriter, way.method, way.raw, METRIC, dev_queries, tuple(told), way.sure)


def _told(tried: Sequence[Tried]) -> list[Tried]:
    """What was taken, the best others, and what the raw query reaches alone."""
    alone = [each for each in tried[TOP:] if each.fusion.raw == 1]
    return [*tried[:TOP], *([] if any(each.fusion.raw == 1 for each in tried[:TOP]) else alone[:1])]


def fusions_json(rows: Sequence[FusionRow], fused: Mapping[str, Fused]) -> dict[str, Any]:
    """For metrics.json: system -> rewriter, fusion, and what dev said where it was chosen there."""
    found = {}
    for row in rows:
        chosen = {
            "split": DEV,
            "queries": row.queries,
            "metric": row.metric,
            "tried": [asdict(each) for each in row.tried],
        }
        way = asdict(fused[row.system].fusion)
        found[row.system] = {"rewriter": row.rewriter, **way, "chosen_on": chosen if row.tried else None}
    return found
