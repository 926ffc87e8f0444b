"""The commands. This file knows flags and exit codes; what happens lives past the argument parser, with its imports."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.failures import exit_code, sentence
from pipelines.flags import (
    DEFAULT_SERVER,
    EXITS,
    Handler,
    config_arguments,
    later,
    renew_command,
    results_command,
    utterances_command,
)
from pipelines.index_flags import index_readers, index_shared, index_writers


def run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parses, runs, and turns what goes wrong into one sentence and an exit code."""
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
        print(f"{parser.prog}: {sentence(error)}", file=sys.stderr)
        return code


def index(argv: Sequence[str] | None = None) -> int:
    """rewrite-index: make an index and keep it alive."""
    parser = argparse.ArgumentParser(
        "rewrite-index",
        description="Build a tool index, search it, and keep it in step with its catalogue.",
        epilog=EXITS,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    index_writers(commands)
    index_readers(commands)
    index_shared(commands)
    return run(parser, argv)


def evaluate(argv: Sequence[str] | None = None) -> int:
    """rewrite-eval: systems x metrics on one data set."""
    parser = argparse.ArgumentParser(
        "rewrite-eval",
        description="Evaluate retrieval systems on a data set: metrics, significance, wins and losses, report.html. "
        "`rewrite-eval attack CONFIG` poisons a catalogue and tells what comes of it; `rewrite-eval matrix CONFIG` puts"
        " figures of many runs into one table; `rewrite-eval --check` tells whether runs say what is published.",
        epilog=EXITS,
    )
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["matrix"] or "--check" in given:
        return run(*results_command(given))
    module, handler, examples = "eval_commands", "run_eval", "configs/eval/"
    if given[:1] == ["attack"]:
        parser = argparse.ArgumentParser(
            "rewrite-eval attack", description="Attack a copy of an index, with defences off and on.", epilog=EXITS
        )
        module, handler, examples, given = "attack_commands", "run_attack", "configs/attack/", given[1:]
    config_arguments(parser, examples)
    parser.add_argument("--device", help="where the encoder runs: cpu, cuda, mps (the best there is)")
    parser.set_defaults(handler=later(module, handler))
    return run(parser, given)


def train(argv: Sequence[str] | None = None) -> int:
    """rewrite-train: the rewriter's training."""
    parser = argparse.ArgumentParser(
        "rewrite-train",
        description="Train a rewriter: make targets from gold tools, fine-tune a language model on them, align it with "
        "what a frozen retriever finds.",
        epilog=EXITS,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    targets = commands.add_parser("targets", help="data set -> what a rewriter should answer", epilog=EXITS)
    targets.set_defaults(handler=later("train_commands", "targets"))
    config_arguments(targets, "configs/targets/")
    sft = commands.add_parser("sft", help="targets -> a rewriter, by supervised fine-tuning", epilog=EXITS)
    sft.set_defaults(handler=later("train_commands", "sft"))
    config_arguments(sft, "configs/sft/")
    sft.add_argument("--resume", action="store_true", help="go on where the run in the output folder stopped")
    sft.description = (
        "Fine-tune a language model on targets; dev is judged by retrieval on the way and the best checkpoint is kept. "
        "Ctrl-C leaves a checkpoint. On several GPUs: accelerate launch $(which rewrite-train) sft CONFIG"
    )
    aligning = _align_commands(commands)
    for command in (targets, sft, *aligning):
        command.add_argument("--device", help="where models run: cpu, cuda, mps (the best there is)")
    merge = commands.add_parser("merge", help="adapter + base model -> one model folder", epilog=EXITS)
    merge.set_defaults(handler=later("train_commands", "merge"))
    merge.add_argument("rewriter", type=Path, metavar="REWRITER", help="a rewriter's folder, or the run it came from")
    merge.add_argument("output", type=Path, metavar="OUTPUT", help="the folder to write")
    merge.add_argument("--base", help="the base model, where it has moved since")
    renew_command(commands)
    utterances_command(commands)
    return run(parser, argv)


def _align_commands(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> tuple[argparse.ArgumentParser, ...]:
    probe = commands.add_parser("probe", help="is there anything to gain from alignment?", epilog=EXITS)
    probe.description = (
        "Draw several answers a query, score them by retrieval, say whether alignment can gain anything."
    )
    pairs = commands.add_parser("pairs", help="rewriter + queries -> pairs of answers, for DPO", epilog=EXITS)
    pairs.description = "Draw, score and pair answers. Killed at any moment, the same command goes on."
    align = commands.add_parser("align", help="rewriter + reward -> a better one: DPO, GRPO, RLOO, PPO", epilog=EXITS)
    align.description = (
        "Align a rewriter with what a frozen retriever finds: dpo, grpo, rloo, ppo or best-of-n. Dev is judged by "
        "retrieval on the way, the best checkpoint is kept, a collapse stops the run. Ctrl-C leaves a checkpoint. On "
        "several GPUs: accelerate launch $(which rewrite-train) align CONFIG"
    )
    align.add_argument("--resume", action="store_true", help="go on where the run in the output folder stopped")
    for name, command in (("probe", probe), ("pairs", pairs), ("align", align)):
        command.set_defaults(handler=later("align_commands", name))
        config_arguments(command, f"configs/{name}/")
    return probe, pairs, align


def batch(argv: Sequence[str] | None = None) -> int:
    """rewrite-batch: expansion of many queries."""
    parser = argparse.ArgumentParser(
        "rewrite-batch",
        description="Rewrite many queries and find their tools. Killed at any moment, the same command goes on.",
        epilog=EXITS,
    )
    parser.add_argument(
        "input", metavar="IN", help=".jsonl, .csv, .parquet or .txt, also .gz and .zst; - standard input"
    )
    parser.add_argument("output", metavar="OUT", help=".jsonl, .csv, .parquet or .trec, also .gz and .zst; or -")
    config_arguments(parser, "configs/batch/", "--config")
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="this process (default), or Ray Data"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run has done, and replace OUT")
    parser.add_argument(
        "--retry-errors", action="store_true", help="do the bad rows of a finished job again, no others"
    )
    parser.add_argument("--device", help="where models run: cpu, cuda, mps (the best there is)")
    parser.set_defaults(handler=later("batch_commands", "batch"))
    return run(parser, argv)


def serve(argv: Sequence[str] | None = None) -> int:
    """rewrite-serve: the rewriter in front of an index."""
    parser = argparse.ArgumentParser(
        "rewrite-serve",
        description="Serve a tool index over HTTP, with a rewriter beside it. Without a CONFIG: the sample, or with "
        "--set index=FOLDER that index, as is recommended. `rewrite-serve key` makes an API key, "
        "`rewrite-serve mcp CONFIG` serves the same to an MCP client on standard input and output.",
        epilog=EXITS,
    )
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["key"]:
        parser = argparse.ArgumentParser("rewrite-serve key", description="Make an API key.", epilog=EXITS)
        parser.add_argument("--name", default="new", help="what logs call it (new)")
        parser.add_argument(
            "--scope", action="append", choices=["search", "write", "admin"], help="what it is for (search)"
        )
        parser.set_defaults(handler=later("serve_commands", "key"))
        return run(parser, given[1:])
    handler = "serve"
    if given[:1] == ["mcp"]:
        parser = argparse.ArgumentParser(
            "rewrite-serve mcp", description="Serve a tool index as an MCP server on standard input.", epilog=EXITS
        )
        handler, given = "mcp", given[1:]
    config_arguments(parser, "configs/serve/", default=DEFAULT_SERVER)
    parser.add_argument("--device", help="where the encoder runs: cpu, cuda, mps (the best there is)")
    parser.set_defaults(handler=later("serve_commands", handler))
    return run(parser, given)
