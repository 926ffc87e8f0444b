"""`rewrite-eval`: evaluate systems, attack an index, check and publish figures."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.evaluate.attack_run import AttackConfig, attack
from pipelines.evaluate.output import write_evaluation
from pipelines.evaluate.published.check import ExpectedConfig, check
from pipelines.evaluate.published.figures import read_figures
from pipelines.evaluate.published.keep import keep
from pipelines.evaluate.published.page import page, page_rows, plot_csv
from pipelines.evaluate.run import EvalConfig, Evaluation, evaluate, means
from pipelines.evaluate.seeds import compare_seeds, read_run
from pipelines.report.data import RewriterRow
from pipelines.report.wording import find_row, p_clause
from pipelines.runs import as_json, check_output, environment, write_files
from retrievers.text import clean

NUM_SAMPLES = 3
"""Rewrites printed per rewriter."""
METRIC = "recall@5"
"""Metric of the groups."""
MAX_WIDTH = 110
"""Characters of a printed sample."""


@dataclass(frozen=True, slots=True)
class MatrixConfig:
    """`rewrite-eval matrix`."""

    page: str
    """The page to write."""
    figures: str
    """The folder of files of figures."""
    pictures: str
    """The folder of the plots that the page links to; `python docs/plot.py` draws them."""


def run_eval(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, EvalConfig)
    if config is None:
        return 0
    check_output(Path(config.output))
    evaluation = evaluate(config, make_context(arguments.device, True))
    headline = write_evaluation(evaluation)
    print(table(evaluation))
    if evaluation.groups:
        print(f"\n{groups(evaluation)}")
    if evaluation.gains:
        print(f"\n{gains(evaluation)}")
    if evaluation.rewriters:
        print(f"\n{rewrites(evaluation)}")
    print(f"\n{headline}\n{config.output}/report.html, metrics.json, *.trec")
    return 0


def run_attack(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, AttackConfig)
    if config is None:
        return 0
    results = attack(config, make_context(arguments.device, sys.stderr.isatty()))
    files = {
        "config.yaml": configs.dump(config),
        "environment.json": as_json(environment()),
        "metrics.json": as_json(results),
    }
    write_files(Path(config.output), files)
    print(attack_table(results))
    print(f"\n{config.output}/metrics.json")
    return 0


def run_matrix(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, MatrixConfig)
    if config is None:
        return 0
    for run in arguments.keep:
        print(f"{run} -> {keep(run, Path(config.figures), arguments.note)}")
    count = make_page(config, arguments.config)
    print(f"{config.page}: {count} figures of {config.figures}; `python docs/plot.py` draws the pictures")
    return 0


def make_page(config: MatrixConfig, source: Path) -> int:
    """Write the page, and rows.csv next to the figures for docs/plot.py; returns the number of rows."""
    target, figures, pictures = Path(config.page), Path(config.figures), Path(config.pictures)
    files = read_figures(figures)
    near = {folder: os.path.relpath(folder, target.parent) for folder in (figures, pictures)}
    text = page(files, f"rewrite-eval matrix {source}", near[figures], near[pictures])
    write_files(figures, {"rows.csv": plot_csv(page_rows(files))})
    write_files(target.parent, {target.name: text})
    return sum(len(file.rows) for file in files.values())


def run_check(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, ExpectedConfig)
    if config is None:
        return 0
    verdict = check(config, arguments.run)
    for line in (*verdict.wrong, *verdict.missing):
        print(line, file=sys.stderr)
    print(f"{verdict.right} figures as expected, {len(verdict.wrong)} not, {len(verdict.missing)} runs missing")
    return 1 if verdict.wrong or verdict.missing else 0


def run_seeds(arguments: argparse.Namespace) -> int:
    runs = [read_run(folder, arguments.system, arguments.against, arguments.metric) for folder in arguments.folders]
    rows = compare_seeds(runs)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return 0
    width = max(len(row.data) for row in rows)
    print(f"{arguments.metric}: {arguments.against} -> {arguments.system}")
    for row in rows:
        print(
            f"{row.data.ljust(width)}  {row.before:.3f} -> {row.after:.3f}  {row.after - row.before:+.3f} "
            f"({row.interval[0]:+.3f} to {row.interval[1]:+.3f})  p {row.p_value:.4f}, Holm {row.p_holm:.4f}  "
            f"{row.runs} runs from {row.starts} trainings, {row.queries} queries"
        )
    if any(row.runs == 1 for row in rows):
        print("a data set with one run says nothing about seeds: its interval knows queries only", file=sys.stderr)
    return 0


def table(evaluation: Evaluation) -> str:
    """Systems x metrics for the terminal; * marks a difference that holds after Holm's correction."""
    metrics = evaluation.config.metrics
    significant = {(row.system, row.metric) for row in evaluation.comparisons if row.p_holm < 0.05}
    width = max(map(len, [*evaluation.values, "system"]))
    rows = [f"{'system'.ljust(width)}  " + "  ".join(f"{metric:>9}" for metric in metrics)]
    for name, values in evaluation.values.items():
        cells = [
            f"{value:.3f}{'*' if (name, metric) in significant else ' '}" for metric, value in means(values).items()
        ]
        rows.append(f"{name.ljust(width)}  " + "  ".join(f"{cell:>9}" for cell in cells))
    config = evaluation.config
    summary = f"{evaluation.data.name}, {config.protocol} {config.split}: {len(evaluation.order)} queries"
    rows.append(f"{summary}; * differs from {evaluation.baseline} (p < .05 after Holm's correction)")
    return "\n".join(rows)


def groups(evaluation: Evaluation) -> str:
    """Recall@5 by group of queries, with p against the baseline, for the terminal."""
    masks = evaluation.groups
    rows = [["", *(f"{group} ({int(mask.sum())})" for group, mask in masks.items())]]
    for name, values in evaluation.values.items():
        rows.append([name])
        for group, mask in masks.items():
            row = find_row(evaluation.group_comparisons[group], name, METRIC)
            rows[-1].append(f"{means(values, mask)[METRIC]:.3f}" + (f" {p_clause(row.p_holm)}" if row else ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    by = evaluation.config.group_by
    return "\n".join([f"{METRIC} by {by}, p against {evaluation.baseline} after Holm's correction", *lines])


def gains(evaluation: Evaluation) -> str:
    """The gain of rewriting for each retriever, for the terminal."""
    width = max(len(row.system) for row in evaluation.gains)
    lines = ["recall@5 against the raw query of the same retriever; * p < .05 after Holm's correction"]
    for row in evaluation.gains:
        mark = "*" if row.p_holm < 0.05 else " "
        cells = f"{row.difference:+.3f}{mark}  p {row.p_value:.4f}, {row.better} better, {row.worse} worse"
        lines.append(f"{row.system.ljust(width)}  {cells}")
    return "\n".join(lines)


def rewrites(evaluation: Evaluation) -> str:
    """The rewriters' figures, how systems use them, and a few samples, for the terminal."""
    rewriters = evaluation.rewriter_rows
    width = max(map(len, [*(row.name for row in rewriters), "rewriter"]))
    heads = ("parsed", "none", "unparseable", "too long", "unfinished", "cut", "lines", "tokens", "s/query")
    rows = [f"{'rewriter'.ljust(width)}  " + "  ".join(f"{head:>{max(7, len(head))}}" for head in heads)]
    for row in rewriters:
        cells = zip(heads, _cells(row), strict=True)
        rows.append(f"{row.name.ljust(width)}  " + "  ".join(f"{cell:>{max(7, len(head))}}" for head, cell in cells))
    for fusion in evaluation.fusion_rows:
        line = f"{fusion.system}: {fusion.method}, raw {fusion.raw:g}"
        if fusion.tried:
            alone = next((f", raw alone {choice.score:.3f}" for choice in fusion.tried if choice.raw == 1), "")
            line += f"; chosen on dev: {fusion.metric} {fusion.tried[0].score:.3f}{alone}"
        rows.append(line)
    for row in rewriters:
        rows.append(f"\n{row.name} writes, for example:")
        step = max(1, len(row.samples) // NUM_SAMPLES)
        for sample in row.samples[::step][:NUM_SAMPLES]:
            rows.append(f"  {_line(sample.utterance)}")
            rows.extend(f"    - {_line(line)}" for line in sample.lines)
            if not sample.lines:
                rows.append(f"    ({sample.status}{f': {_line(sample.answer)}' if sample.answer.strip() else ''})")
    return "\n".join(rows)


def _cells(row: RewriterRow) -> list[str]:
    figures = row.figures
    shares = (figures.parsed, figures.none, figures.unparseable, figures.too_long, figures.unfinished, figures.cut)
    means = ("-" if mean is None else f"{mean:.1f}" for mean in (figures.lines, figures.tokens))
    return [*(f"{share:.3f}" for share in shares), *means, f"{figures.seconds_per_query:.3g}"]


def _line(text: str) -> str:
    """Text of the data or a model as one line, without terminal codes."""
    line = " ".join(clean(text).split())
    return line if len(line) <= MAX_WIDTH else line[: MAX_WIDTH - 1] + "…"


def attack_table(results: dict[str, Any]) -> str:
    """Attacks x retrievers, defences off and on."""
    k = results["k"]
    rows: list[Sequence[str]] = [
        ("attack", "targets", "success off", "on", f"seen@{k} off", "on", f"all {k} off", "on", "held")
    ]
    notes = [f"{results['dataset']}, {results['split']}, {results['rate']:.0%} injected"]
    for retriever, facts in results["retrievers"].items():
        for name, figures in facts["attacks"].items():
            shares = [
                f"{100 * figures[side][measure]:.1f}%"
                for measure in ("success", "seen", "hidden")
                for side in ("off", "on")
            ]
            held = f"{figures['held']}/{figures['injected']}"
            rows.append((f"{retriever} {name}", str(figures["targets"]), *shares, held))
        recall, arrived = facts["recall"], facts["recall"]["arrived"]
        notes.append(
            f"{retriever}: recall@{k} {recall['off']:.3f} without the defences, {recall['on']:.3f} with them, on "
            f"{recall['queries']} queries; {recall['held'].get('all', 0)} of {recall['newcomers']} honest newcomers' "
            f"tools held; recall@{k} of newcomers' tools before their first use {arrived['off']:.3f} -> "
            f"{arrived['on']:.3f} on {arrived['queries']} queries"
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join([*lines, *notes])
