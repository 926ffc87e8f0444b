"""Flags that several commands have, and commands that are loaded when they are called."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

Handler = Callable[[argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
DEFAULT_SERVER = Path(__file__).parent.parent / "serve" / "default.yaml"
"""What `rewrite-serve` does when it is told nothing."""
EXITS = "exit codes: 0 done, 1 the work failed, 2 the request was wrong, 130 stopped by Ctrl-C"
SERVER_EXITS = "exit codes: 0 stopped by Ctrl-C or SIGTERM, 1 the work failed, 2 the request was wrong"


def config_arguments(
    parser: argparse.ArgumentParser, examples: str, flag: str | None = None, default: Path | None = None
) -> None:
    """A config file, changes of it, and a look at what comes of both. With a default it need not be named."""
    told = f"YAML file; {examples} has examples"
    if default:
        unsaid = "the bundled sample" if default == DEFAULT_SERVER else str(default)
        parser.add_argument(
            "config", type=Path, metavar="CONFIG", nargs="?", default=default, help=f"{told} (default: {unsaid})"
        )
    elif flag:
        parser.add_argument(flag, type=Path, metavar="CONFIG", required=True, help=told)
    else:
        parser.add_argument("config", type=Path, metavar="CONFIG", help=told)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one key of CONFIG, a.b=4 the key b under a; may be repeated",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the config with every default and --set filled in, and stop"
    )


def device_argument(*parsers: argparse.ArgumentParser) -> None:
    """Where models run."""
    for parser in parsers:
        parser.add_argument(
            "--device", help="where models run: cpu, cuda, mps (default: cuda if there is one, else cpu)"
        )


def index_argument(*parsers: argparse.ArgumentParser) -> None:
    """Which index."""
    for parser in parsers:
        parser.add_argument("index", type=Path, metavar="INDEX", help="the folder of an index")


def later(module: str, name: str) -> Handler:
    """A handler that imports its module when called: help stays instant."""

    def handler(arguments: argparse.Namespace) -> int:
        chosen: Handler = getattr(import_module(f"pipelines.cli.{module}"), name)
        return chosen(arguments)

    return handler


def results_command(given: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """`rewrite-eval matrix` or `rewrite-eval --check`, and what is left to parse."""
    if given[:1] == ["matrix"]:
        parser = argparse.ArgumentParser("rewrite-eval matrix", epilog=EXITS)
        parser.description = "Put the figures of many runs, and what papers published, into one page with drawings."
        parser.add_argument(
            "--keep",
            action="append",
            default=[],
            type=Path,
            metavar="RUN",
            help="first copy this run folder's figures in; may be repeated",
        )
        parser.add_argument(
            "--note", default="", help="a remark stored with the runs of --keep, such as: the machine was busy"
        )
        config_arguments(parser, "configs/matrix/")
        parser.set_defaults(handler=later("results_commands", "run_matrix"))
        return parser, given[1:]
    parser = argparse.ArgumentParser("rewrite-eval --check", epilog=EXITS)
    parser.description = (
        "Compare run folders with the figures that CONFIG expects of them. A figure that differs by more than its "
        "tolerance, or a run that is not there, is a line on standard error, and the exit code is 1."
    )
    parser.add_argument(
        "--run",
        action="append",
        default=[],
        metavar="FOLDER",
        help="look at this run alone, or at those below this folder",
    )
    config_arguments(parser, "configs/", default=Path("configs/expected.yaml"))
    parser.set_defaults(handler=later("results_commands", "run_check"))
    return parser, [word for word in given if word != "--check"]
