"""`rewrite-eval`: evaluate, write the run folder, print the table."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pipelines import config as configs
from pipelines.eval_report import report_data
from pipelines.evaluate import EvalConfig, Evaluation, evaluate, means
from pipelines.index import make_context
from pipelines.report import render
from pipelines.runs import as_json, environment, write_files
from pipelines.trec import write_run


def run_eval(arguments: argparse.Namespace) -> int:
    config = configs.load(arguments.config, EvalConfig, arguments.set)
    if arguments.dry_run:
        print(configs.dump(config).rstrip())
        return 0
    evaluation = evaluate(config, make_context(arguments.device, sys.stderr.isatty()))
    write_evaluation(evaluation)
    print(table(evaluation))
    print(f"\n{config.output}/report.html, metrics.json, *.trec")
    return 0


def write_evaluation(evaluation: Evaluation) -> None:
    """The run folder: config, environment, metrics, a run file a system, every query's scores, the report."""
    config, world = evaluation.config, environment()
    facts = {
        "command": world["command"],
        "date": world["date"],
        "machine": world["machine"],
        "python": world["python"],
        "versions": ", ".join(f"{name} {version}" for name, version in world["versions"].items()),
        "seed": str(config.seed),
        "tests": "paired randomisation, 10,000 rounds; bootstrap intervals, 2,000 rounds; Holm's correction",
    }
    files = {
        "config.yaml": configs.dump(config),
        "environment.json": as_json(world),
        **{f"{name}.trec": write_run(each.rankings, name) for name, each in evaluation.answers.items()},
        "queries.jsonl": _per_query(evaluation),
        "report.html": render(report_data(evaluation, facts)),
        "metrics.json": as_json(evaluation.summary()),
    }
    write_files(Path(config.output), files)


def _per_query(evaluation: Evaluation) -> str:
    gold = evaluation.data.gold[evaluation.config.split]
    lines = []
    for row, query in enumerate(evaluation.order):
        scores = {
            name: {metric: round(float(column[row]), 6) for metric, column in values.items()}
            for name, values in evaluation.values.items()
        }
        line = {
            "_id": query,
            "text": evaluation.data.queries[query].text,
            "gold": sorted(gold[query]),
            "scores": scores,
        }
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return "".join(lines)


def table(evaluation: Evaluation) -> str:
    """Systems x metrics for the terminal; * marks a difference that holds after Holm's correction."""
    metrics = evaluation.config.metrics
    sure = {(each.system, each.metric) for each in evaluation.comparisons if each.p_holm < 0.05}
    width = max(map(len, [*evaluation.values, "system"]))
    rows = [f"{'system'.ljust(width)}  " + "  ".join(f"{metric:>9}" for metric in metrics)]
    for name, values in evaluation.values.items():
        cells = [f"{value:.3f}{'*' if (name, metric) in sure else ' '}" for metric, value in means(values).items()]
        rows.append(f"{name.ljust(width)}  " + "  ".join(f"{cell:>9}" for cell in cells))
    config = evaluation.config
    told = f"{evaluation.data.name}, {config.protocol} {config.split}: {len(evaluation.order)} queries"
    rows.append(f"{told}; * differs from {evaluation.baseline} (p < .05 after Holm's correction)")
    return "\n".join(rows)
