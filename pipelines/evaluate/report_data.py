"""An evaluation as the data of its report page."""

from __future__ import annotations

import numpy as np

from pipelines.evaluate.run import Evaluation, means
from pipelines.report.data import (
    Change,
    Changes,
    CodedTool,
    CodeTree,
    GroupRow,
    RankedTool,
    ReportData,
    SystemRow,
)

SHOWN = 12
"""Gained and lost queries shown for each system."""
METRIC = "recall@5"


def report_data(evaluation: Evaluation, facts: dict[str, str]) -> ReportData:
    """Everything the page shows."""
    config, data = evaluation.config, evaluation.data
    queries = len(evaluation.order)
    return ReportData(
        title=f"{data.name}, {config.split}",
        dataset=data.name,
        split=config.split,
        protocol=config.protocol,
        queries=queries,
        tools=len(data.tools),
        baseline=evaluation.baseline,
        metrics=config.metrics,
        systems=tuple(
            SystemRow(
                name=name,
                values=means(evaluation.values[name]),
                intervals=dict(evaluation.intervals[name]),
                seconds_per_query=None if answer.seconds is None else answer.seconds / queries,
                fingerprint=answer.fingerprint,
            )
            for name, answer in evaluation.answers.items()
        ),
        comparisons=evaluation.comparisons,
        curve=dict(evaluation.curves),
        groups=tuple(
            GroupRow(name, int(mask.sum()), {system: means(v, mask) for system, v in evaluation.values.items()})
            for name, mask in evaluation.groups.items()
        ),
        changes=tuple(_changes(evaluation, name) for name in evaluation.answers if name != evaluation.baseline),
        facts=facts,
        notes=tuple(f"{what}: {count}" for what, count in data.report.items()),
        rewriters=evaluation.rewriter_rows,
        fusions=evaluation.fusion_rows,
        gains=evaluation.gains,
        trees=_trees(evaluation),
    )


def _trees(evaluation: Evaluation) -> tuple[CodeTree, ...]:
    """Of systems that say tools in codes, one an index."""
    names, found = evaluation.names, dict[str, CodeTree]()
    for system, answer in evaluation.answers.items():
        tools = tuple(CodedTool(tool, names.get(tool, tool), path) for tool, path in answer.branches.items())
        if tools:
            found.setdefault(answer.fingerprint, CodeTree(system, tools))
    return tuple(found.values())


def _changes(evaluation: Evaluation, system: str) -> Changes:
    """The queries that a system gained and lost most, told by recall@5."""
    difference = evaluation.values[system][METRIC] - evaluation.values[evaluation.baseline][METRIC]
    names = evaluation.names
    order = np.argsort(-difference, kind="stable")
    gained = [int(row) for row in order if difference[row] > 1e-12]
    lost = [int(row) for row in order[::-1] if difference[row] < -1e-12]
    return Changes(
        system,
        evaluation.baseline,
        METRIC,
        tuple(_change(evaluation, names, system, row, float(difference[row])) for row in gained[:SHOWN]),
        tuple(_change(evaluation, names, system, row, float(difference[row])) for row in lost[:SHOWN]),
        len(gained),
        len(lost),
    )


def _change(evaluation: Evaluation, names: dict[str, str], system: str, row: int, difference: float) -> Change:
    query = evaluation.order[row]
    gold = evaluation.data.gold[evaluation.config.split][query]
    lists = [
        tuple(RankedTool(tool, names.get(tool, tool), tool in gold) for tool in answer.rankings[query].ids[:5])
        for answer in (evaluation.answers[evaluation.baseline], evaluation.answers[system])
    ]
    seen = {tool.id for ranking in lists for tool in ranking}
    missing = tuple(names.get(tool, tool) for tool in sorted(gold - seen))
    return Change(evaluation.data.queries[query].text, lists[0], lists[1], missing, difference)
