"""Flags that several commands have, and commands that are loaded when they are called."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

Handler = Callable[[argparse.Namespace], int]
DEFAULT_SERVER = Path(__file__).parent / "serve" / "default.yaml"
"""What `rewrite-serve` does when it is told nothing."""
EXITS = "exit codes: 0 done, 1 the work failed, 2 the request was wrong"


def config_arguments(
    parser: argparse.ArgumentParser, examples: str, flag: str | None = None, default: Path | None = None
) -> None:
    """A config file, changes of it, and a look at what comes of both. With a default it need not be named."""
    told = f"YAML file; see {examples}"
    if default:
        parser.add_argument("config", type=Path, metavar="CONFIG", nargs="?", default=default, help=f"{told}")
    elif flag:
        parser.add_argument(flag, type=Path, metavar="CONFIG", required=True, help=told)
    else:
        parser.add_argument("config", type=Path, metavar="CONFIG", help=told)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a dotted key of the config"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config and stop")


def later(module: str, name: str) -> Handler:
    """A handler that imports its module when called: help stays instant."""

    def handler(arguments: argparse.Namespace) -> int:
        chosen: Handler = getattr(import_module(f"pipelines.{module}"), name)
        return chosen(arguments)

    return handler


def renew_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`rewrite-train renew`."""
    renew = commands.add_parser(
        "renew", help="feedback and agents' logs -> a better one, promoted if it is", epilog=EXITS
    )
    renew.description = (
        "Learn from what users confirmed and agents called: collect, retrain, compare with what is live on fixed sets, "
        "and promote what is better and nowhere worse. Killed at any moment, the same command goes on."
    )
    renew.set_defaults(handler=later("renew_commands", "run_renew"))
    config_arguments(renew, "configs/renew/")
    renew.add_argument("--back", action="store_true", help="take the last promotion back")
    renew.add_argument("--device", help="where models run: cpu, cuda, mps (the best there is)")


def utterances_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`rewrite-train utterances`."""
    made = commands.add_parser("utterances", help="catalogue without labels -> made-up utterances", epilog=EXITS)
    made.description = (
        "Have a language model write what users might say who need each tool, keep what the retriever finds again, and "
        "write a data set. Killed at any moment, the same command goes on."
    )
    made.set_defaults(handler=later("utterance_commands", "run_utterances"))
    config_arguments(made, "configs/utterances/")
    made.add_argument("--device", help="where models run: cpu, cuda, mps (the best there is)")


def results_command(given: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """`rewrite-eval matrix` or `rewrite-eval --check`, and what is left to parse."""
    if given[:1] == ["matrix"]:
        parser = argparse.ArgumentParser("rewrite-eval matrix", epilog=EXITS)
        parser.description = "Put the figures of many runs, and what papers published, into one page with drawings."
        parser.add_argument(
            "--keep", action="append", default=[], type=Path, metavar="RUN", help="take up a run folder's figures first"
        )
        parser.add_argument(
            "--note", default="", help="what is to be known of the runs that are kept, such as a busy machine"
        )
        config_arguments(parser, "configs/matrix/")
        parser.set_defaults(handler=later("results_commands", "run_matrix"))
        return parser, given[1:]
    parser = argparse.ArgumentParser("rewrite-eval --check", epilog=EXITS)
    parser.description = (
        "Compare run folders with the figures that are expected of them. A deviation, or a run that is not there, is a "
        "line and exit code 1."
    )
    parser.add_argument(
        "--run", action="append", default=[], metavar="FOLDER", help="this run alone, or those below this folder"
    )
    config_arguments(parser, "configs/", default=Path("configs/expected.yaml"))
    parser.set_defaults(handler=later("results_commands", "run_check"))
    return parser, [word for word in given if word != "--check"]
