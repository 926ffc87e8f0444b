"""`rewrite-train renew`: from clicks and calls to a better retriever or rewriter."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.exit_codes import error_line, exit_code
from pipelines.index.training_summary import learned
from pipelines.renew.loop import back, look, renew
from pipelines.renew.report import headline
from pipelines.renew.retrain import CANDIDATE
from pipelines.renew.settings import RenewConfig

MOST_NAMED = 5
"""Unknown tools that are named on the terminal."""


def run_renew(arguments: argparse.Namespace) -> int:
    config = configs.load(arguments.config, RenewConfig, arguments.set)
    if arguments.dry_run:
        return _dry_run(config)
    context = make_context(arguments.device, sys.stderr.isatty())
    if arguments.back:
        print(f"{back(config, context)} was taken back; what was live before it is live again")
        return 0
    told = renew(config, context)
    for line in _learned(told.collected):
        print(line)
    if told.verdict is None:
        print(f"no round was made: {told.outcome}")
        return 0
    if told.folder is not None and config.retrain.kind == "index":
        for line in learned(told.folder / CANDIDATE):
            print(f"retrained {line.strip()}")
    print(headline(told.verdict))
    print(f"{told.outcome}: {told.folder}/report.html, verdict.json")
    return 0


def _dry_run(config: RenewConfig) -> int:
    """The resolved config and, as comments, what it would learn from now."""
    sys.stdout.write(configs.dump(config))
    try:
        lines = [*_learned(look(config, make_context("cpu")).facts())]
    except Exception as error:
        if exit_code(error) is None:
            raise
        lines = [error_line(error)]
    for line in lines:
        print(f"# {line}")
    return 0


def _learned(facts: Mapping[str, Any]) -> Iterator[str]:
    records = ", ".join(f"{count} of {name}" for name, count in facts["records"].items()) or "none"
    queries = facts["queries"]
    yield (
        f"records: {records}; {facts['fresh']} utterances of users and agents; "
        f"{queries['train']} to train on, {queries['dev']} for dev"
    )
    if facts["left_out"]:
        yield "left out: " + ", ".join(f"{reason} {count}" for reason, count in facts["left_out"].items())
    if facts["unknown_tools"]:
        names = list(facts["unknown_tools"].items())
        more = f", and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        yield "not in the catalogue: " + ", ".join(f"{name} ({count})" for name, count in names[:MOST_NAMED]) + more
