"""The commands. This file knows flags and exit codes; what happens lives past the argument parser, with its imports."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from pipelines.failures import exit_code, sentence

Handler = Callable[[argparse.Namespace], int]
EXITS = "exit codes: 0 done, 1 the work failed, 2 the request was wrong"


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
    _index_writers(commands)
    _index_readers(commands)
    _index_shared(commands)
    return run(parser, argv)


def evaluate(argv: Sequence[str] | None = None) -> int:
    """rewrite-eval: systems x metrics on one data set."""
    parser = argparse.ArgumentParser(
        "rewrite-eval",
        description="Evaluate retrieval systems on a data set: metrics, significance, wins and losses, report.html. "
        "`rewrite-eval attack CONFIG` poisons a catalogue and tells what comes of it.",
        epilog=EXITS,
    )
    given = list(sys.argv[1:] if argv is None else argv)
    module, handler, examples = "eval_commands", "run_eval", "configs/eval/"
    if given[:1] == ["attack"]:
        parser = argparse.ArgumentParser(
            "rewrite-eval attack", description="Attack a copy of an index, with defences off and on.", epilog=EXITS
        )
        module, handler, examples, given = "attack_commands", "run_attack", "configs/attack/", given[1:]
    _config_arguments(parser, examples)
    parser.add_argument("--device", help="where the encoder runs: cpu, cuda, mps (the best there is)")
    parser.set_defaults(handler=_later(module, handler))
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
    targets.set_defaults(handler=_later("train_commands", "targets"))
    _config_arguments(targets, "configs/targets/")
    sft = commands.add_parser("sft", help="targets -> a rewriter, by supervised fine-tuning", epilog=EXITS)
    sft.set_defaults(handler=_later("train_commands", "sft"))
    _config_arguments(sft, "configs/sft/")
    sft.add_argument("--resume", action="store_true", help="go on where the run in the output folder stopped")
    sft.description = (
        "Fine-tune a language model on targets; dev is judged by retrieval on the way and the best checkpoint is kept. "
        "Ctrl-C leaves a checkpoint. On several GPUs: accelerate launch $(which rewrite-train) sft CONFIG"
    )
    aligning = _align_commands(commands)
    for command in (targets, sft, *aligning):
        command.add_argument("--device", help="where models run: cpu, cuda, mps (the best there is)")
    merge = commands.add_parser("merge", help="adapter + base model -> one model folder", epilog=EXITS)
    merge.set_defaults(handler=_later("train_commands", "merge"))
    merge.add_argument("rewriter", type=Path, metavar="REWRITER", help="a rewriter's folder, or the run it came from")
    merge.add_argument("output", type=Path, metavar="OUTPUT", help="the folder to write")
    merge.add_argument("--base", help="the base model, where it has moved since")
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
        command.set_defaults(handler=_later("align_commands", name))
        _config_arguments(command, f"configs/{name}/")
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
    _config_arguments(parser, "configs/batch/", "--config")
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="this process (default), or Ray Data"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run has done, and replace OUT")
    parser.add_argument(
        "--retry-errors", action="store_true", help="do the bad rows of a finished job again, no others"
    )
    parser.add_argument("--device", help="where models run: cpu, cuda, mps (the best there is)")
    parser.set_defaults(handler=_later("batch_commands", "batch"))
    return run(parser, argv)


def serve(argv: Sequence[str] | None = None) -> int:
    """rewrite-serve: the rewriter in front of an index."""
    parser = argparse.ArgumentParser(
        "rewrite-serve",
        description="Serve a tool index over HTTP, with a rewriter beside it. `rewrite-serve key` makes an API key, "
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
        parser.set_defaults(handler=_later("serve_commands", "key"))
        return run(parser, given[1:])
    handler = "serve"
    if given[:1] == ["mcp"]:
        parser = argparse.ArgumentParser(
            "rewrite-serve mcp", description="Serve a tool index as an MCP server on standard input.", epilog=EXITS
        )
        handler, given = "mcp", given[1:]
    _config_arguments(parser, "configs/serve/")
    parser.add_argument("--device", help="where the encoder runs: cpu, cuda, mps (the best there is)")
    parser.set_defaults(handler=_later("serve_commands", handler))
    return run(parser, given)


def _config_arguments(parser: argparse.ArgumentParser, examples: str, flag: str | None = None) -> None:
    told = f"YAML file; see {examples}"
    if flag:
        parser.add_argument(flag, type=Path, metavar="CONFIG", required=True, help=told)
    else:
        parser.add_argument("config", type=Path, metavar="CONFIG", help=told)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a dotted key of the config"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config and stop")


def _index_writers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    build = commands.add_parser("build", help="catalogue -> sealed index folder", epilog=EXITS)
    build.set_defaults(handler=_later("index_commands", "build"))
    _config_arguments(build, "configs/index/")
    build.add_argument(
        "--resume", action="store_true", help="train on from what the index there has learned: for tools added since"
    )

    add = commands.add_parser("add", help="add or update tools without rebuilding", epilog=EXITS)
    add.set_defaults(handler=_later("index_commands", "add"))
    add.add_argument("index", type=Path, metavar="INDEX")
    add.add_argument("catalogue", nargs="+", metavar="CATALOGUE", help="files or folders holding the tools to add")
    add.add_argument("--format", help="format of the catalogue; recognised from its content when not given")

    remove = commands.add_parser("remove", help="take tools out", epilog=EXITS)
    remove.set_defaults(handler=_later("index_commands", "remove"))
    remove.add_argument("index", type=Path, metavar="INDEX")
    remove.add_argument("ids", nargs="+", metavar="ID", help="tool ids; - reads them from standard input, one a line")
    confirm = commands.add_parser("confirm", help="remember which tools queries turned out to need", epilog=EXITS)
    confirm.set_defaults(handler=_later("masstool_commands", "confirm_queries"))
    confirm.add_argument("index", type=Path, metavar="INDEX")
    confirm.add_argument(
        "pairs", nargs="+", metavar="FILE", help='lines of {"utterance": …, "tools": [ids]}, or a feedback folder'
    )
    for parser in (build, add, remove, confirm):
        parser.add_argument(
            "--wait", type=float, default=60.0, metavar="S", help="seconds to wait for another writer (60)"
        )
        parser.add_argument("--device", help="where the encoder runs: cpu, cuda, mps (the best there is)")


def _index_readers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    info = commands.add_parser("info", help="what an index holds", epilog=EXITS)
    info.set_defaults(handler=_later("index_commands", "info"))
    info.add_argument("index", type=Path, metavar="INDEX")

    verify = commands.add_parser("verify", help="check every byte of an index against its manifest", epilog=EXITS)
    verify.set_defaults(handler=_later("index_commands", "verify_index"))
    verify.add_argument("index", type=Path, metavar="INDEX")

    lint = commands.add_parser("lint", help="what in a catalogue will make retrieval fail", epilog=EXITS)
    lint.set_defaults(handler=_later("index_commands", "lint_catalogue"))
    lint.add_argument("source", metavar="INDEX|CATALOGUE")
    lint.add_argument("--format", help="format of the catalogue; recognised from its content when not given")
    lint.add_argument("--most", type=int, default=5, metavar="N", help="findings shown of each check (5); 0: all")

    search = commands.add_parser("search", help="ask an index, its retrievers side by side", epilog=EXITS)
    search.set_defaults(handler=_later("index_commands", "search"))
    search.add_argument("index", type=Path, metavar="INDEX")
    search.add_argument(
        "text", nargs="+", metavar="TEXT", help="utterances; - reads them from standard input, one a line"
    )
    search.add_argument("--retriever", action="append", metavar="NAME", help="which retrievers to ask (all)")
    search.add_argument("-k", type=int, default=5, help="how many tools (5)")
    search.add_argument("--device", help="where the encoder runs: cpu, cuda, mps (the best there is)")
    search.add_argument(
        "--engine",
        choices=("transformers", "vllm"),
        default="transformers",
        help="what runs generative retrievers (transformers)",
    )
    _agent_command(commands)
    detect = commands.add_parser("detect", help="how well an index tells which queries need a tool", epilog=EXITS)
    detect.set_defaults(handler=_later("masstool_commands", "detect_labels"))
    detect.add_argument("index", type=Path, metavar="INDEX")
    detect.add_argument("data", metavar="DATA", help="a folder with queries.jsonl and labels/, or bundled:sample")
    detect.add_argument("--retriever", default="masstool", metavar="NAME", help="which detector to ask (masstool)")
    detect.add_argument("--split", default="test", choices=("train", "dev", "test"))
    detect.add_argument("--threshold", type=float, metavar="P", help="another probability than the index's own")
    detect.add_argument("--device", help="where the encoder runs: cpu, cuda, mps (the best there is)")

    ablate = commands.add_parser("ablate", help="train MassTool without each of its parts, side by side", epilog=EXITS)
    ablate.set_defaults(handler=_later("masstool_commands", "ablate"))
    _config_arguments(ablate, "configs/index/*-masstool.yaml")
    ablate.add_argument("--without", action="append", metavar="PART", help="which parts to leave out (each in turn)")
    ablate.add_argument("--split", default="test", choices=("dev", "test"), help="what the figures are taken on")
    ablate.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON, too")
    ablate.add_argument("--device", help="where models run: cpu, cuda, mps (the best there is)")
    for parser in (info, lint, search, detect):
        parser.add_argument("--json", action="store_true", help="machine-readable output")


def _index_shared(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    push = commands.add_parser("push", help="index folder -> the database that gateways share", epilog=EXITS)
    push.description = (
        "Put an index's tools, vectors and models into a PostgreSQL database, in one change that its gateways take up. "
        "Tools are added and updated; nothing is embedded."
    )
    pull = commands.add_parser("pull", help="the database that gateways share -> index folder", epilog=EXITS)
    pull.description = (
        "Write the live catalogue of a database as a sealed index folder: to evaluate, to train, to keep."
    )
    for name, command in (("push", push), ("pull", pull)):
        command.set_defaults(handler=_later("shared_commands", name))
        command.add_argument("index", type=Path, metavar="INDEX")
        command.add_argument(
            "--variable",
            default="TOOLREWRITE_DATABASE",
            metavar="NAME",
            help="the environment variable with the connection string (TOOLREWRITE_DATABASE)",
        )
        command.add_argument("--schema", default="toolrewrite", help="where the tables lie (toolrewrite)")
        command.add_argument("--dry-run", action="store_true", help="say what is there, change nothing")
    push.add_argument(
        "--replace", action="store_true", help="also remove what INDEX does not have, and take over its retrievers"
    )
    pull.add_argument("--feedback", type=Path, metavar="FILE", help="also write what callers confirmed, as JSON lines")
    pull.add_argument("--wait", type=float, default=60.0, metavar="S", help="seconds to wait for another writer (60)")
    pull.add_argument("--device", help="where the encoder runs: cpu, cuda, mps (the best there is)")


def _agent_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    agent = commands.add_parser(
        "agent", help="run a generative retriever as an agent, and score its calls", epilog=EXITS
    )
    agent.description = (
        "Let a model that was trained with the agent stage do tasks with the sample's tools, and say how many calls "
        "are right. --base runs a model as it comes beside it, with retrieved tools in its prompt."
    )
    agent.set_defaults(handler=_later("agent_commands", "agent"))
    agent.add_argument("index", type=Path, metavar="INDEX")
    agent.add_argument("--retriever", default="toolgen", metavar="NAME", help="the generative retriever (toolgen)")
    agent.add_argument("--tasks", default="bundled:sample", help="trajectories to be done, JSON lines (bundled:sample)")
    agent.add_argument("--most", type=int, default=0, metavar="N", help="only the first N tasks; 0: all")
    agent.add_argument("--base", metavar="MODEL", help="a model as it comes, to compare with")
    agent.add_argument("--shown", type=int, default=5, metavar="N", help="tools in the prompt of --base (5)")
    agent.add_argument("--shown-by", metavar="NAME", help="the retriever that finds those (the generative one)")
    agent.add_argument("--output", type=Path, metavar="FILE", help="write every task's calls there, JSON lines")
    agent.add_argument("--device", help="where the models run: cpu, cuda, mps (the best there is)")
    agent.add_argument("--json", action="store_true", help="machine-readable output")


def _later(module: str, name: str) -> Handler:
    """A handler that imports its module when called: help stays instant."""

    def handler(arguments: argparse.Namespace) -> int:
        chosen: Handler = getattr(import_module(f"pipelines.{module}"), name)
        return chosen(arguments)

    return handler
