"""Statistics of rewriters: figures, samples and fusions, for the report and for metrics.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipelines.evaluate.fusion_selection import FusionScore
from pipelines.evaluate.rewritten_systems import DEV, METRIC, RewriterAnswers, SystemFusion
from pipelines.report.data import FusionRow, RewriteFigures, RewriterRow, RewriteSample, TriedRow
from rewrite.types import Rewrite

SAMPLES = 8
"""Rewrites shown of each rewriter, evenly spaced."""
TOP = 5
"""Fusions shown of those tried on dev: the chosen one and the best others."""


def figures(rewrites: Sequence[Rewrite], seconds: float) -> RewriteFigures:
    """Shares and means over all queries."""
    count = len(rewrites)

    def share(*statuses: str) -> float:
        return _round(sum(rewrite.status in statuses for rewrite in rewrites) / count)

    prompted = [rewrite for rewrite in rewrites if rewrite.status != "too-long"]
    lines = [len(rewrite.lines) for rewrite in rewrites if rewrite.status == "rewritten"]
    tokens = [rewrite.tokens for rewrite in prompted]
    return RewriteFigures(
        queries=count,
        parsed=share("rewritten", "none"),
        none=share("none"),
        unparseable=share("unparseable"),
        too_long=share("too-long"),
        unfinished=_round(sum(not rewrite.finished for rewrite in prompted) / count),
        cut=_round(sum(rewrite.cut > 0 for rewrite in prompted) / count),
        lines=_round(sum(lines) / len(lines)) if lines else None,
        # An answer has at least the token that ends it: 0 is a server that does not count.
        tokens=_round(sum(tokens) / len(tokens)) if tokens and all(tokens) else None,
        seconds_per_query=seconds / count,
    )


def _round(value: float) -> float:
    return round(value, 6)


def rewriter_row(name: str, answers: RewriterAnswers, order: Sequence[str], texts: Sequence[str]) -> RewriterRow:
    """A rewriter with its figures and samples."""
    facts, count = answers.facts, min(SAMPLES, len(order))
    samples = []
    for row in (number * len(order) // count for number in range(count)):
        rewrite = answers.rewrites[row]
        answer = rewrite.answer if rewrite.status == "unparseable" else ""
        samples.append(RewriteSample(order[row], texts[row], rewrite.status, rewrite.lines, answer))
    model = str(facts.get("path") or facts.get("base") or facts.get("model") or "")
    template = f"{facts['template']['name']} {facts['template']['version']}"
    return RewriterRow(name, model, template, figures(answers.rewrites, answers.seconds), tuple(samples))


def rewrite_json(rewrite: Rewrite) -> dict[str, Any]:
    """A rewrite in queries.jsonl."""
    answer = {"answer": rewrite.answer} if rewrite.status == "unparseable" else {}
    return {"status": rewrite.status, "lines": list(rewrite.lines), **answer}


def rewriters_json(rows: Sequence[RewriterRow], answers: Mapping[str, RewriterAnswers]) -> dict[str, Any]:
    """For metrics.json: name -> figures, parts of the rewriter, samples."""
    return {
        row.name: {
            **asdict(row.figures),
            "made_of": dict(answers[row.name].facts),
            "samples": [asdict(sample) for sample in row.samples],
        }
        for row in rows
    }


def fusion_row(system: str, used: SystemFusion, dev_queries: int) -> FusionRow:
    """The fusion of a system and, if it was chosen on dev, the alternatives."""
    fusion = used.fusion
    if not used.tried:
        return FusionRow(system, used.rewriter, fusion.method, fusion.raw, skip_rewrite_above=fusion.skip_rewrite_above)
    shown = list(used.tried[:TOP])
    if not any(score.fusion.raw == 1 for score in shown):
        shown += [score for score in used.tried[TOP:] if score.fusion.raw == 1][:1]
    tried = tuple(map(_tried_row, shown))
    return FusionRow(
        system, used.rewriter, fusion.method, fusion.raw, METRIC, dev_queries, tried, fusion.skip_rewrite_above
    )


def _tried_row(score: FusionScore) -> TriedRow:
    return TriedRow(score.fusion.method, score.fusion.raw, _round(score.score), score.fusion.skip_rewrite_above)


def fusions_json(rows: Sequence[FusionRow], fusions: Mapping[str, SystemFusion]) -> dict[str, Any]:
    """For metrics.json: system -> rewriter, fusion, and the dev scores if it was chosen there."""
    result = {}
    for row in rows:
        tried = [asdict(score) for score in row.tried]
        chosen = {"split": DEV, "queries": row.queries, "metric": row.metric, "tried": tried} if tried else None
        result[row.system] = {"rewriter": row.rewriter, **asdict(fusions[row.system].fusion), "chosen_on": chosen}
    return result
