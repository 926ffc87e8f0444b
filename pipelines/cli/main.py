"""Entry points of the five commands: parse, run the handler, turn errors into exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pipelines.cli.flags import (
    DEFAULT_SERVER,
    EXITS,
    SERVER_EXITS,
    DefaultCommandParser,
    Handler,
    config_arguments,
    device_argument,
    lazy,
    version_argument,
)
from pipelines.cli.index_parser import add_index_commands
from pipelines.cli.train_parser import add_train_commands
from pipelines.exit_codes import error_line, exit_code


def run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parse and run; an error becomes one line on standard error and an exit code."""
    arguments = parser.parse_args(argv)
    handler: Handler = arguments.handler
    try:
        return handler(arguments)
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has closed it; nothing is wrong
        return 0
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        print(f"{parser.prog}: {error_line(error)}", file=sys.stderr)
        return code


def index_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "rewrite-index",
        description="Build a tool index, search it, and keep it in step with its catalogue. `rewrite-index COMMAND "
        "--help` explains each command.",
        epilog=EXITS,
    )
    version_argument(parser)
    add_index_commands(parser.add_subparsers(metavar="COMMAND", required=True))
    return parser


def train_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "rewrite-train",
        description="Train a rewriter: make targets from gold tools, fine-tune a language model on them, align it with "
        "what a frozen retriever finds. `rewrite-train COMMAND --help` explains each command.",
        epilog=EXITS,
    )
    version_argument(parser)
    add_train_commands(parser.add_subparsers(metavar="COMMAND", required=True))
    return parser


def _add_seeds(parser: DefaultCommandParser) -> None:
    seeds = parser.add_command(
        "seeds",
        lazy("evaluate", "run_seeds"),
        "compare two systems over runs with different seeds",
        "rewrite-eval seeds FOLDER... --system NAME --against NAME",
        description="Compare two systems of several evaluations, each of other seeds. Runs and queries are drawn again "
        "together, so that a gain has to hold for the method and not for one lucky training; p-values are corrected "
        "over the data sets. Runs whose NAME of --against is the same model count as alignments of one training.",
    )
    seeds.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="an output of rewrite-eval")
    seeds.add_argument("--system", required=True, metavar="NAME", help="the system that should be better")
    seeds.add_argument("--against", required=True, metavar="NAME", help="its counterpart, in the same evaluations")
    seeds.add_argument("--metric", default="recall@5", help="the metric (recall@5)")
    seeds.add_argument("--json", action="store_true", help="print the rows as JSON")


def eval_parser() -> argparse.ArgumentParser:
    parser = DefaultCommandParser("rewrite-eval", default="run", flag_command="check")
    attack = parser.add_command(
        "attack",
        lazy("evaluate", "run_attack"),
        "poison a copy of a catalogue and measure the attacks",
        "rewrite-eval attack CONFIG",
        description="Put an attacker's tools into a copy of an index, and measure the attacks with the defences off "
        "and on. The index itself is not changed.",
    )
    config_arguments(attack, "configs/attack/")
    matrix = parser.add_command(
        "matrix",
        lazy("evaluate", "run_matrix"),
        "put the figures of many runs into one table",
        "rewrite-eval matrix CONFIG",
        description="Put the figures of many runs, and those that papers published, into one page.",
    )
    matrix.add_argument(
        "--keep",
        action="append",
        default=[],
        type=Path,
        metavar="RUN",
        help="first copy this run folder's figures in; may be repeated",
    )
    matrix.add_argument("--note", default="", help="remark stored with the runs of --keep: the machine was busy")
    config_arguments(matrix, "configs/matrix/")
    _add_seeds(parser)
    check = parser.add_command(
        "check",
        lazy("evaluate", "run_check"),
        "compare runs with the published figures",
        "rewrite-eval --check [CONFIG]",
        description="Compare run folders with the figures that CONFIG expects. A figure that differs by more than its "
        "tolerance, or a missing run, is a line on standard error, and the exit code is 1.",
    )
    check.add_argument(
        "--run", action="append", default=[], metavar="FOLDER", help="check this run only, or those below this folder"
    )
    config_arguments(check, "configs/", default=Path("configs/expected.yaml"))
    evaluation = parser.add_command(
        "run",
        lazy("evaluate", "run_eval"),
        "evaluate retrieval systems on a data set",
        description="Evaluate retrieval systems on a data set: metrics, significance, wins and losses.\n"
        "Writes metrics.json, report.html and every ranking into the output folder.",
        epilog=EXITS,
    )
    config_arguments(evaluation, "configs/eval/")
    device_argument(attack, evaluation)
    return parser


def batch_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "rewrite-batch",
        description="Rewrite many queries and find their tools. After a kill, the same command continues.",
        epilog=EXITS,
    )
    parser.add_argument(
        "input", metavar="IN", help=".jsonl, .csv, .parquet or .txt, also .gz and .zst; - is standard input"
    )
    parser.add_argument(
        "output", metavar="OUT", help=".jsonl, .csv, .parquet or .trec, also .gz and .zst; - is standard output"
    )
    config_arguments(parser, "configs/batch/", "--config")
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="run in this process (local, the default) or on Ray Data",
    )
    parser.add_argument("--fresh", action="store_true", help="discard the work of an earlier run, and replace OUT")
    parser.add_argument(
        "--retry-errors", action="store_true", help="process the bad rows of a finished job again, once fixed in IN"
    )
    device_argument(parser)
    version_argument(parser)
    parser.set_defaults(handler=lazy("serve_batch", "run_batch"))
    return parser


def serve_parser() -> argparse.ArgumentParser:
    parser = DefaultCommandParser("rewrite-serve", default="run")
    key = parser.add_command(
        "key",
        lazy("serve_batch", "run_key"),
        "make an API key",
        "rewrite-serve key",
        description="Make an API key. Prints the key, which is stored nowhere, and the line for `keys:` of a config.",
    )
    key.add_argument("--name", default="new", help="its name in logs (new)")
    key.add_argument(
        "--scope",
        action="append",
        choices=["search", "call", "write", "admin"],
        help="what its holder may do; may be repeated (search)",
    )
    mcp = parser.add_command(
        "mcp",
        lazy("serve_batch", "run_mcp"),
        "serve an MCP client on standard input and output",
        "rewrite-serve mcp [CONFIG|INDEX]",
        description="Serve a tool index to an MCP client on standard input and output.",
        epilog=SERVER_EXITS,
    )
    server = parser.add_command(
        "run",
        lazy("serve_batch", "run_serve"),
        "serve a tool index over HTTP",
        description="Serve a tool index over HTTP until Ctrl-C, with a rewriter if CONFIG names one.\n"
        "In place of CONFIG: an index folder; the folder `rewriter` beside it is used if it was trained in front of\n"
        "the index's retriever. Without either: the bundled sample.",
        epilog=SERVER_EXITS,
    )
    for command in (server, mcp):
        config_arguments(command, "configs/serve/", default=DEFAULT_SERVER, metavar="CONFIG|INDEX")
        device_argument(command)
    server.add_argument("--open", action="store_true", help="open the page in the browser once the server listens")
    return parser


PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "rewrite-index": index_parser,
    "rewrite-eval": eval_parser,
    "rewrite-train": train_parser,
    "rewrite-batch": batch_parser,
    "rewrite-serve": serve_parser,
}


def index(argv: Sequence[str] | None = None) -> int:
    return run(index_parser(), argv)


def evaluate(argv: Sequence[str] | None = None) -> int:
    return run(eval_parser(), argv)


def train(argv: Sequence[str] | None = None) -> int:
    return run(train_parser(), argv)


def batch(argv: Sequence[str] | None = None) -> int:
    return run(batch_parser(), argv)


def serve(argv: Sequence[str] | None = None) -> int:
    return run(serve_parser(), argv)
