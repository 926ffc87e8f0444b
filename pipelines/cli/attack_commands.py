"""`rewrite-eval attack`: attack a copy of an index, write the run folder, print the table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.evaluate.attack_run import AttackConfig, attack
from pipelines.runs import as_json, environment, write_files


def run_attack(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, AttackConfig)
    if config is None:
        return 0
    found = attack(config, make_context(arguments.device, sys.stderr.isatty()))
    files = {
        "config.yaml": configs.dump(config),
        "environment.json": as_json(environment()),
        "metrics.json": as_json(found),
    }
    write_files(Path(config.output), files)
    print(table(found))
    print(f"\n{config.output}/metrics.json")
    return 0


def table(found: dict[str, Any]) -> str:
    """Attacks x retrievers, defences off and on."""
    k = found["k"]
    heads = ("attack", "targets", "success off", "on", f"seen@{k} off", "on", f"all {k} off", "on", "held")
    rows: list[tuple[str, ...]] = [heads]
    told = []
    for retriever, facts in found["retrievers"].items():
        for name, each in facts["attacks"].items():
            pairs = [
                f"{100 * each[side][what]:.1f}%" for what in ("success", "seen", "hidden") for side in ("off", "on")
            ]
            held = f"{each['held']}/{each['injected']}"
            rows.append((f"{retriever} {name}", str(each["targets"]), *pairs, held))
        recall = facts["recall"]
        told.append(
            f"{retriever}: recall@{k} {recall['off']:.3f} without the defences, {recall['on']:.3f} with them, on "
            f"{recall['queries']} queries; {recall['held'].get('all', 0)} of {recall['newcomers']} honest newcomers' "
            "tools held"
        )
    widths = [max(len(row[place]) for row in rows) for place in range(len(heads))]
    lines = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([*lines, f"{found['dataset']}, {found['split']}, {found['rate']:.0%} injected", *told])
