"""`rewrite-eval matrix` and `rewrite-eval --check`."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from pipelines import config as configs
from pipelines.evaluate.published.check import ExpectedConfig, check
from pipelines.evaluate.published.figures import read_figures
from pipelines.evaluate.published.keep import keep
from pipelines.evaluate.published.page import page, page_rows, plot_csv
from pipelines.runs import write_files


@dataclass(frozen=True, slots=True)
class MatrixConfig:
    """`rewrite-eval matrix`."""

    page: str
    """The page to write."""
    figures: str
    """The folder of files of figures."""
    pictures: str
    """The folder of the plots that the page links to; `python docs/plot.py` draws them."""


def run_matrix(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, MatrixConfig)
    if config is None:
        return 0
    for run in arguments.keep:
        print(f"{run} -> {keep(run, Path(config.figures), arguments.note)}")
    made = make_page(config, arguments.config)
    print(f"{config.page}: {made} figures of {config.figures}; `python docs/plot.py` draws the pictures")
    return 0


def make_page(config: MatrixConfig, source: Path) -> int:
    """Write the page, and rows.csv beside the figures for docs/plot.py; returns the number of rows."""
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
    told = f"{verdict.right} figures as expected, {len(verdict.wrong)} not, {len(verdict.missing)} runs missing"
    print(told)
    return 1 if verdict.wrong or verdict.missing else 0
