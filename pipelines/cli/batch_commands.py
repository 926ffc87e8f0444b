"""`rewrite-batch`."""

from __future__ import annotations

import argparse
import sys

from pipelines import config as configs
from pipelines.batch.api import run
from pipelines.batch.settings import BatchConfig
from rewrite.errors import Interrupted


def batch(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, BatchConfig)
    if config is None:
        return 0
    try:
        summary = run(
            arguments.input,
            arguments.output,
            config,
            arguments.engine,
            arguments.device,
            arguments.fresh,
            arguments.retry_errors,
        )
    except KeyboardInterrupt:
        way = "" if arguments.output == "-" else "; what is finished is kept: run the same command again to go on"
        raise Interrupted(f"interrupted{way}") from None
    print(summary.told(), file=sys.stderr if arguments.output == "-" else sys.stdout)
    if summary.bad and arguments.output != "-":
        print(f"{summary.output}.errors.jsonl tells the bad rows; mend them and run again with --retry-errors")
    return 0
