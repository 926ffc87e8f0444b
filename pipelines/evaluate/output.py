"""Write the run folder of an evaluation: metrics, rankings, per-query scores and the report page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pipelines import config as configs
from pipelines.data.trec import write_run
from pipelines.evaluate.rewriter_stats import rewrite_json
from pipelines.evaluate.run import Evaluation, means
from pipelines.report import render
from pipelines.report.data import (
    CodedTool,
    CodeTree,
    GroupRow,
    QueryChange,
    RankedTool,
    ReportData,
    SystemChanges,
    SystemRow,
)
from pipelines.report.wording import headline
from pipelines.runs import as_json, environment, write_files

SHOWN = 12
"""Gained and lost queries shown per system."""
METRIC = "recall@5"


def write_evaluation(evaluation: Evaluation) -> str:
    """Write the run folder; returns the report's headline."""
    config, world = evaluation.config, environment()
    facts = {
        **{name: world[name] for name in ("command", "date", "machine", "python")},
        "versions": ", ".join(f"{name} {version}" for name, version in world["versions"].items()),
        "seed": str(config.seed),
        "tests": "paired randomisation, 10,000 rounds; bootstrap intervals, 2,000 rounds; Holm's correction",
    }
    data = report_data(evaluation, facts)
    files = {
        "config.yaml": configs.dump(config),
        "environment.json": as_json(world),
        **{f"{name}.trec": write_run(answer.rankings, name) for name, answer in evaluation.answers.items()},
        "queries.jsonl": "".join(_query_line(evaluation, row) for row in range(len(evaluation.order))),
        "report.html": render(data),
        "metrics.json": as_json(evaluation.summary()),
    }
    write_files(Path(config.output), files)
    return headline(data)


def _query_line(evaluation: Evaluation, row: int) -> str:
    query, data = evaluation.order[row], evaluation.data
    line: dict[str, Any] = {
        "_id": query,
        "text": data.queries[query].text,
        "gold": sorted(data.gold[evaluation.config.split][query]),
        "scores": {
            name: {metric: round(float(column[row]), 6) for metric, column in values.items()}
            for name, values in evaluation.values.items()
        },
    }
    if evaluation.rewriters:
        line["rewrites"] = {name: rewrite_json(answers.rewrites[row]) for name, answers in evaluation.rewriters.items()}
    return json.dumps(line, ensure_ascii=False) + "\n"


def report_data(evaluation: Evaluation, facts: dict[str, str]) -> ReportData:
    """The data of the report page."""
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
            GroupRow(
                name,
                int(mask.sum()),
                {system: means(v, mask) for system, v in evaluation.values.items()},
                evaluation.group_comparisons[name],
            )
            for name, mask in evaluation.groups.items()
        ),
        changes=tuple(_changes(evaluation, name) for name in evaluation.answers if name != evaluation.baseline),
        facts=facts,
        notes=tuple(f"{reason}: {count}" for reason, count in data.report.items()),
        rewriters=evaluation.rewriter_rows,
        fusions=evaluation.fusion_rows,
        gains=evaluation.gains,
        trees=_trees(evaluation),
    )


def _trees(evaluation: Evaluation) -> tuple[CodeTree, ...]:
    """The code trees of generative systems, one per index."""
    names, trees = evaluation.names, dict[str, CodeTree]()
    for system, answer in evaluation.answers.items():
        tools = tuple(CodedTool(tool, names.get(tool, tool), path) for tool, path in answer.branches.items())
        if tools:
            trees.setdefault(answer.fingerprint, CodeTree(system, tools))
    return tuple(trees.values())


def _changes(evaluation: Evaluation, system: str) -> SystemChanges:
    """The queries that a system gained and lost most, by recall@5."""
    difference = evaluation.values[system][METRIC] - evaluation.values[evaluation.baseline][METRIC]
    order = np.argsort(-difference, kind="stable")
    gained = [int(row) for row in order if difference[row] > 1e-12]
    lost = [int(row) for row in order[::-1] if difference[row] < -1e-12]
    return SystemChanges(
        system,
        evaluation.baseline,
        METRIC,
        tuple(_change(evaluation, system, row, float(difference[row])) for row in gained[:SHOWN]),
        tuple(_change(evaluation, system, row, float(difference[row])) for row in lost[:SHOWN]),
        len(gained),
        len(lost),
    )


def _change(evaluation: Evaluation, system: str, row: int, difference: float) -> QueryChange:
    query, names = evaluation.order[row], evaluation.names
    gold = evaluation.data.gold[evaluation.config.split][query]
    before, after = (
        tuple(RankedTool(tool, names.get(tool, tool), tool in gold) for tool in answer.rankings[query].ids[:5])
        for answer in (evaluation.answers[evaluation.baseline], evaluation.answers[system])
    )
    missing = sorted(gold - {tool.id for tool in (*before, *after)})
    text = evaluation.data.queries[query].text
    return QueryChange(text, before, after, tuple(names.get(tool, tool) for tool in missing), difference)
