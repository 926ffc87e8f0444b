"""The commands. This file knows flags and exit codes; what happens lives past the argument parser, with its imports."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pipelines.cli.flags import (
    DEFAULT_SERVER,
    EXITS,
    SERVER_EXITS,
    Handler,
    config_arguments,
    device_argument,
    later,
    results_command,
)
from pipelines.cli.index_parsers import index_readers, index_shared, index_writers
from pipelines.cli.masstool_parsers import index_kinds
from pipelines.cli.train_parsers import add_train_commands
from pipelines.exit_codes import error_line, exit_code

EVAL_FORMS = """other forms, each with its own --help:
  rewrite-eval attack CONFIG     poison a copy of a catalogue, and tell what comes of it
  rewrite-eval matrix CONFIG     put the figures of many runs into one table
  rewrite-eval --check [CONFIG]  tell whether runs still say what is published"""
SERVE_FORMS = """other forms, each with its own --help:
  rewrite-serve key              make an API key
  rewrite-serve mcp [CONFIG]     serve the same to an MCP client on standard input and output"""


def run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parses, runs, and turns what goes wrong into one line and an exit code."""
    arguments = parser.parse_args(argv)
    handler: Handler = arguments.handler
    try:
        return handler(arguments)
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; nothing is wrong
        return 0
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        print(f"{parser.prog}: {error_line(error)}", file=sys.stderr)
        return code


def index(argv: Sequence[str] | None = None) -> int:
    """rewrite-index: make an index and keep it alive."""
    parser = argparse.ArgumentParser(
        "rewrite-index",
        description="Build a tool index, search it, and keep it in step with its catalogue. `rewrite-index COMMAND "
        "--help` explains each command.",
        epilog=EXITS,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    index_writers(commands)
    index_readers(commands)
    index_kinds(commands)
    index_shared(commands)
    return run(parser, argv)


def evaluate(argv: Sequence[str] | None = None) -> int:
    """rewrite-eval: systems x metrics on one data set."""
    parser = argparse.ArgumentParser(
        "rewrite-eval",
        description="Evaluate retrieval systems on a data set: metrics, significance, wins and losses.\n"
        "Writes metrics.json, report.html and every ranking into the output folder.",
        epilog=f"{EVAL_FORMS}\n\n{EXITS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["matrix"] or "--check" in given:
        return run(*results_command(given))
    module, handler, examples = "eval_commands", "run_eval", "configs/eval/"
    if given[:1] == ["attack"]:
        parser = argparse.ArgumentParser(
            "rewrite-eval attack",
            description="Put an attacker's tools into a copy of an index, and tell what he reaches with the defences "
            "off and on. The index itself is not changed.",
            epilog=EXITS,
        )
        module, handler, examples, given = "attack_commands", "run_attack", "configs/attack/", given[1:]
    config_arguments(parser, examples)
    device_argument(parser)
    parser.set_defaults(handler=later(module, handler))
    return run(parser, given)


def train(argv: Sequence[str] | None = None) -> int:
    """rewrite-train: the rewriter's training."""
    parser = argparse.ArgumentParser(
        "rewrite-train",
        description="Train a rewriter: make targets from gold tools, fine-tune a language model on them, align it with "
        "what a frozen retriever finds. `rewrite-train COMMAND --help` explains each command.",
        epilog=EXITS,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add_train_commands(commands)
    return run(parser, argv)


def batch(argv: Sequence[str] | None = None) -> int:
    """rewrite-batch: expansion of many queries."""
    parser = argparse.ArgumentParser(
        "rewrite-batch",
        description="Rewrite many queries and find their tools. Killed at any moment, the same command goes on.",
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
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run has done, and replace OUT")
    parser.add_argument(
        "--retry-errors",
        action="store_true",
        help="do the bad rows of a finished job again, once they are mended in IN",
    )
    device_argument(parser)
    parser.set_defaults(handler=later("batch_commands", "batch"))
    return run(parser, argv)


def serve(argv: Sequence[str] | None = None) -> int:
    """rewrite-serve: the rewriter in front of an index."""
    parser = argparse.ArgumentParser(
        "rewrite-serve",
        description="Serve a tool index over HTTP until Ctrl-C, with a rewriter where CONFIG names one.\n"
        "Without CONFIG: the bundled sample, or with --set index=FOLDER that index.",
        epilog=f"{SERVE_FORMS}\n\n{SERVER_EXITS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["key"]:
        parser = argparse.ArgumentParser(
            "rewrite-serve key",
            description="Make an API key. Prints the key, which is kept nowhere, and the line for `keys:` of a config.",
            epilog=EXITS,
        )
        parser.add_argument("--name", default="new", help="what logs call it (new)")
        parser.add_argument(
            "--scope",
            action="append",
            choices=["search", "write", "admin"],
            help="what its holder may do; may be repeated (search)",
        )
        parser.set_defaults(handler=later("serve_commands", "key"))
        return run(parser, given[1:])
    handler = "serve"
    if given[:1] == ["mcp"]:
        parser = argparse.ArgumentParser(
            "rewrite-serve mcp",
            description="Serve a tool index to an MCP client on standard input and output.",
            epilog=SERVER_EXITS,
        )
        handler, given = "mcp", given[1:]
    config_arguments(parser, "configs/serve/", default=DEFAULT_SERVER)
    device_argument(parser)
    parser.set_defaults(handler=later("serve_commands", handler))
    return run(parser, given)
