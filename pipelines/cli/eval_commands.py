"""`rewrite-eval`: evaluate, write the run folder, print the table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.evaluate.output import write_evaluation
from pipelines.evaluate.run import EvalConfig, Evaluation, evaluate, means
from pipelines.report.data import RewriterRow
from pipelines.runs import check_output
from retrievers.text import clean


def run_eval(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, EvalConfig)
    if config is None:
        return 0
    check_output(Path(config.output))
    evaluation = evaluate(config, make_context(arguments.device, sys.stderr.isatty()))
    write_evaluation(evaluation)
    print(table(evaluation))
    if evaluation.gains:
        print(f"\n{gains(evaluation)}")
    if evaluation.rewriters:
        print(f"\n{rewrites(evaluation)}")
    print(f"\n{config.output}/report.html, metrics.json, *.trec")
    return 0


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


def gains(evaluation: Evaluation) -> str:
    """What rewriting adds to each retriever, for the terminal."""
    width = max(len(row.system) for row in evaluation.gains)
    lines = ["recall@5 against the raw query of the same retriever; * p < .05 after Holm's correction"]
    for row in evaluation.gains:
        mark = "*" if row.p_holm < 0.05 else " "
        told = f"{row.difference:+.3f}{mark}  p {row.p_value:.4f}, {row.better} better, {row.worse} worse"
        lines.append(f"{row.system.ljust(width)}  {told}")
    return "\n".join(lines)


SHOWN = 3
"""Rewrites of each rewriter that the terminal shows."""
WIDTH = 110


def rewrites(evaluation: Evaluation) -> str:
    """What the rewriters did, for the terminal: figures, how systems use them, a few samples."""
    found = evaluation.rewriter_rows
    width = max(map(len, [*(row.name for row in found), "rewriter"]))
    heads = ("parsed", "none", "unparseable", "too long", "unfinished", "cut", "lines", "tokens", "s/query")
    rows = [f"{'rewriter'.ljust(width)}  " + "  ".join(f"{head:>{max(7, len(head))}}" for head in heads)]
    for row in found:
        cells = zip(heads, _cells(row), strict=True)
        rows.append(f"{row.name.ljust(width)}  " + "  ".join(f"{cell:>{max(7, len(head))}}" for head, cell in cells))
    for fusion in evaluation.fusion_rows:
        told = f"{fusion.system}: {fusion.method}, raw {fusion.raw:g}"
        if fusion.tried:
            alone = next((f", raw alone {each.score:.3f}" for each in fusion.tried if each.raw == 1), "")
            told += f"; chosen on dev: {fusion.metric} {fusion.tried[0].score:.3f}{alone}"
        rows.append(told)
    for row in found:
        rows.append(f"\n{row.name} writes, for example:")
        step = max(1, len(row.samples) // SHOWN)
        for sample in row.samples[::step][:SHOWN]:
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
    """Text of the data's or a model's as one line that no terminal obeys."""
    line = " ".join(clean(text).split())
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
