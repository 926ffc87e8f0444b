"""`rewrite-train renew`: retrain an index or a rewriter on users' feedback and agents' calls."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.exit_codes import error_line, exit_code
from pipelines.index.training_summary import training_lines
from pipelines.renew.loop import preview, renew, roll_back
from pipelines.renew.report import headline
from pipelines.renew.rounds import CANDIDATE
from pipelines.renew.settings import RenewConfig

MAX_NAMED = 5
"""Unknown tools that are printed by name."""


def run_renew(arguments: argparse.Namespace) -> int:
    config = configs.load(arguments.config, RenewConfig, arguments.set)
    if arguments.dry_run:
        return _dry_run(config)
    context = make_context(arguments.device, sys.stderr.isatty())
    if arguments.rollback:
        print(f"{roll_back(config, context)} was rolled back; the version before it is live again")
        return 0
    result = renew(config, context)
    for line in _describe_records(result.collected):
        print(line)
    if result.verdict is None:
        print(f"no round was made: {result.outcome}")
        return 0
    if result.folder is not None and config.retrain.kind == "index":
        for line in training_lines(result.folder / CANDIDATE):
            print(f"retrained {line.strip()}")
    print(headline(result.verdict))
    print(f"{result.outcome}: {result.folder}/report.html, verdict.json")
    return 0


def _dry_run(config: RenewConfig) -> int:
    """Print the resolved config and, as comments, the records it would learn from."""
    sys.stdout.write(configs.dump(config))
    try:
        lines = [*_describe_records(preview(config, make_context("cpu")).to_json())]
    except Exception as error:
        if exit_code(error) is None:
            raise
        lines = [error_line(error)]
    for line in lines:
        print(f"# {line}")
    return 0


def _describe_records(facts: Mapping[str, Any]) -> Iterator[str]:
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
        more = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        yield "not in the catalogue: " + ", ".join(f"{name} ({count})" for name, count in names[:MAX_NAMED]) + more
