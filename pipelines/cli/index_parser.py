"""Flags of `rewrite-index`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipelines.cli.flags import (
    DEFAULT_INDEX,
    Subparsers,
    add_command,
    config_arguments,
    device_argument,
    index_argument,
    json_argument,
    lazy,
)

FORMAT = "format of the catalogue, if its content does not show it: beir, openapi, mcp, functions, toolbench or csv"


def add_index_commands(commands: Subparsers) -> None:
    """Add all commands of `rewrite-index`."""
    _add_writers(commands)
    _add_readers(commands)
    _add_masstool(commands)
    _add_generative(commands)
    _add_database(commands)


def _add_writers(commands: Subparsers) -> None:
    build = add_command(
        commands, "build", lazy("index_change", "run_build"), "catalogue -> index folder, trained if CONFIG says so"
    )
    build.description = (
        "Read the catalogue that CONFIG names, train its retrievers that have `train`, and write the index folder. In "
        "place of CONFIG: a catalogue, indexed in runs/index for the recommended retrievers. An existing index is "
        "replaced once the new one is complete. After a kill in training, the same command continues from the last "
        "checkpoint."
    )
    config_arguments(build, "configs/index/", default=DEFAULT_INDEX, metavar="CONFIG|CATALOGUE")
    build.add_argument(
        "--resume",
        action="store_true",
        help="train on from the weights of the existing index: for a catalogue that has grown",
    )
    add = add_command(commands, "add", lazy("index_change", "run_add"), "add or update tools without rebuilding")
    add.description = (
        "Add tools, and replace those with the same id and other content. A running server loads them by itself. Files "
        "that are no catalogue are reported and skipped."
    )
    index_argument(add)
    add.add_argument("catalogue", nargs="+", metavar="CATALOGUE", help="files, folders or globs of the tools to add")
    _catalogue_arguments(add)
    add.add_argument(
        "--replace", action="store_true", help="also replace tools of an API by other operations that have their ids"
    )
    _add_mcp(commands)
    remove = add_command(commands, "remove", lazy("index_change", "run_remove"), "remove tools")
    remove.description = "Remove tools. If one of the ids is unknown, nothing is removed."
    index_argument(remove)
    remove.add_argument("ids", nargs="+", metavar="ID", help="tool ids, as `search` shows them; - reads standard input")
    confirm = add_command(
        commands, "confirm", lazy("index_change", "run_confirm"), "store the right tools of a query (MassTool)"
    )
    confirm.description = (
        "Tell a MassTool index which tools were right for a query, so that similar queries find them. Trains nothing."
    )
    index_argument(confirm)
    confirm.add_argument(
        "pairs", nargs="+", metavar="FILE", help='lines of {"utterance": …, "tools": [ids]}, or a feedback folder'
    )
    calibrate = _add_calibrate(commands)
    for parser in (build, add, remove, confirm, calibrate):
        _wait_argument(parser)
    device_argument(build, add, remove, confirm, calibrate)


def _add_calibrate(commands: Subparsers) -> argparse.ArgumentParser:
    calibrate = add_command(
        commands, "calibrate", lazy("index_change", "run_calibrate"), "learn what scores mean from labelled queries"
    )
    calibrate.description = (
        "Fit the relevance of each retriever's tools on labelled queries, as they are and with their tools hidden, and "
        "store it in the index. Rankings stay as they are. Prints how far it can be trusted, measured on queries that "
        "it was not fitted on, and the --min-score that loses at most 5 % of the right answers."
    )
    index_argument(calibrate)
    calibrate.add_argument("--data", required=True, metavar="DATA", help="a data set folder, or bundled:sample")
    calibrate.add_argument(
        "--retriever", action="append", metavar="NAME", help="a retriever of the index; may be repeated (every one)"
    )
    calibrate.add_argument("--split", default="dev", choices=("train", "dev", "test"), help="split of DATA (dev)")
    calibrate.add_argument("--dry-run", action="store_true", help="measure, change nothing")
    json_argument(calibrate)
    return calibrate


def _catalogue_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", help=FORMAT)
    parser.add_argument(
        "--provider",
        action="append",
        default=[],
        metavar="[CATALOGUE=]NAME",
        help="provider of all these tools, or of one CATALOGUE, which starts their ids; may be repeated",
    )


def _wait_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait", type=float, default=60.0, metavar="S", help="seconds to wait while another process writes (60)"
    )


def _add_mcp(commands: Subparsers) -> None:
    mcp = add_command(commands, "mcp", lazy("index_mcp", "run_mcp"), "tools of a running MCP server -> catalogue file")
    mcp.description = (
        "Fetch the tools of a running MCP server, page by page, and write them as a catalogue file that build, add and "
        "lint read. Give either --url or --command."
    )
    mcp.add_argument("output", type=Path, metavar="OUT", help="file to write; an existing one is replaced")
    mcp.add_argument("--url", help="the server's streamable HTTP address")
    mcp.add_argument("--command", metavar="TEXT", help="command that starts a server on standard input and output")
    mcp.add_argument("--key-variable", metavar="NAME", help="environment variable with the server's API key")
    mcp.add_argument("--name", help="provider of its tools (default: the server's own name)")
    mcp.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds it may take (60)")


def _add_readers(commands: Subparsers) -> None:
    info = add_command(commands, "info", lazy("index_inspect", "run_info"), "show the contents of an index")
    info.description = "Print fingerprint, number of tools, size, and the retrievers with their settings."
    verify = add_command(
        commands, "verify", lazy("index_inspect", "run_verify"), "check every byte of an index against its manifest"
    )
    verify.description = "Read every file of an index and compare it with the manifest. Damage gives exit code 1."
    lint = add_command(
        commands, "lint", lazy("index_inspect", "run_lint"), "find what makes retrieval fail in a catalogue"
    )
    lint.description = (
        "Look for tools that no query will find, or that will be found instead of others: thin descriptions, "
        "duplicates, unreadable names, hidden text. Findings do not change the exit code."
    )
    lint.add_argument(
        "source",
        nargs="+",
        metavar="INDEX|CATALOGUE",
        help="folder of an index, or files, folders or globs of catalogues",
    )
    _catalogue_arguments(lint)
    lint.add_argument("--limit", type=int, default=5, metavar="N", help="findings shown per check (5); 0: all")
    search = add_command(commands, "search", lazy("index_inspect", "run_search"), "search an index")
    search.description = (
        "Show the tools that an index finds, by the retriever that rewrite-serve, rewrite-batch and rewrite-eval "
        "choose, or by several side by side. Scores are comparable within a column only; relevance is a probability."
    )
    index_argument(info, verify, search)
    search.add_argument(
        "text", nargs="+", metavar="TEXT", help="what a user says; - reads standard input, one per line"
    )
    search.add_argument(
        "--retriever",
        action="append",
        metavar="NAME",
        help="a retriever of the index, or auto, the recommended one; may be repeated, and all is every one (auto)",
    )
    search.add_argument("-k", type=int, default=5, metavar="K", help="number of tools (5)")
    search.add_argument(
        "--min-score", type=float, metavar="P", help="leave out tools with a lower relevance, from 0 to 1 (none)"
    )
    search.add_argument(
        "--engine",
        choices=("transformers", "vllm"),
        default="transformers",
        help="engine of a ToolGen's or ToolWeaver's language model (transformers)",
    )
    device_argument(search)
    json_argument(info, lint, search)


def _add_masstool(commands: Subparsers) -> None:
    detect = add_command(
        commands, "detect", lazy("index_masstool", "run_detect"), "measure how well MassTool detects the need of a tool"
    )
    detect.description = (
        "Run an index's detector on labelled queries, and print per source how many queries that need a tool were "
        "kept, and how many of the others were refused."
    )
    index_argument(detect)
    detect.add_argument("data", metavar="DATA", help="a folder with queries.jsonl and labels/, or bundled:sample")
    detect.add_argument("--retriever", default="masstool", metavar="NAME", help="its name in the index (masstool)")
    detect.add_argument("--split", default="test", choices=("train", "dev", "test"), help="split of DATA (test)")
    detect.add_argument(
        "--threshold", type=float, metavar="P", help="probability from which a query needs a tool (the index's)"
    )
    ablate = add_command(
        commands, "ablate", lazy("index_masstool", "run_ablate"), "train MassTool without each of its parts"
    )
    ablate.description = (
        "Train MassTool whole and without each of its parts on the same vectors, and print their metrics next to those "
        "of the encoder alone. Writes no index."
    )
    config_arguments(ablate, "configs/index/masstool.yaml")
    ablate.add_argument(
        "--without",
        action="append",
        metavar="PART",
        help="leave out this part; may be repeated (default: each in turn)",
    )
    ablate.add_argument("--split", default="test", choices=("dev", "test"), help="split to evaluate on (test)")
    ablate.add_argument("--output", type=Path, metavar="FILE", help="also write the figures as JSON")
    device_argument(detect, ablate)
    json_argument(detect)


def _add_generative(commands: Subparsers) -> None:
    tree = add_command(
        commands, "tree", lazy("index_generative", "run_tree"), "show the codes of a ToolWeaver as a page"
    )
    tree.description = "Write a page that shows which tools share the beginning of their codes."
    index_argument(tree)
    tree.add_argument("--retriever", default="toolweaver", metavar="NAME", help="its name in the index (toolweaver)")
    tree.add_argument("--output", type=Path, metavar="FILE", help="the page (INDEX-tree/report.html)")
    agent = add_command(
        commands,
        "agent",
        lazy("index_generative", "run_agent"),
        "let a ToolGen or ToolWeaver call tools, and score its calls",
    )
    agent.description = (
        "Let a model that was trained with the agent stage (`train.agent`) do tasks with the sample's tools, and score "
        "its calls. --base also runs an untrained model, with retrieved tools in its prompt."
    )
    index_argument(agent)
    agent.add_argument("--retriever", default="toolgen", metavar="NAME", help="its name in the index (toolgen)")
    agent.add_argument("--tasks", default="bundled:sample", help="trajectories to do, JSON lines (bundled:sample)")
    agent.add_argument("--limit", type=int, default=0, metavar="N", help="only the first N tasks; 0: all (0)")
    agent.add_argument(
        "--base", metavar="MODEL", help="an untrained model to compare with, such as bundled:smollm2-135m"
    )
    agent.add_argument("--num-tools", type=int, default=5, metavar="N", help="tools in the prompt of --base (5)")
    agent.add_argument("--tools-from", metavar="NAME", help="the retriever that finds those (default: --retriever)")
    agent.add_argument("--output", type=Path, metavar="FILE", help="write every task's calls there, JSON lines")
    device_argument(agent)
    json_argument(tree, agent)


def _add_database(commands: Subparsers) -> None:
    push = add_command(
        commands, "push", lazy("index_database", "run_push"), "index folder -> the database that gateways share"
    )
    push.description = (
        "Write an index's tools, vectors and models to a PostgreSQL database, in one change that its gateways load. "
        "Tools are added and updated; nothing is embedded."
    )
    pull = add_command(
        commands, "pull", lazy("index_database", "run_pull"), "the database that gateways share -> index folder"
    )
    pull.description = "Write the live catalogue of a database as an index folder: to evaluate, to train, to keep."
    for command, help in ((push, "folder of an index"), (pull, "folder to write")):
        command.add_argument("index", type=Path, metavar="INDEX", help=help)
        command.add_argument(
            "--variable",
            default="TOOLREWRITE_DATABASE",
            metavar="NAME",
            help="environment variable with the connection string (TOOLREWRITE_DATABASE)",
        )
        command.add_argument("--schema", default="toolrewrite", help="database schema of the tables (toolrewrite)")
        command.add_argument("--dry-run", action="store_true", help="compare both, change nothing")
    push.add_argument(
        "--replace",
        action="store_true",
        help="make the database equal to INDEX: remove tools that INDEX lacks, use INDEX's retrievers",
    )
    pull.add_argument("--feedback", type=Path, metavar="FILE", help="also write the callers' confirmations, JSON lines")
    _wait_argument(pull)
    device_argument(pull)
