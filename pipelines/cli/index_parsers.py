"""The flags of `rewrite-index`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipelines.cli.flags import EXITS, Commands, config_arguments, device_argument, index_argument, later

FORMAT = "format of the catalogue, where its content does not tell: beir, openapi, mcp, functions, toolbench or csv"


def index_writers(commands: Commands) -> None:
    """What makes and changes an index."""
    build = commands.add_parser("build", help="catalogue -> index folder, trained first where CONFIG says so")
    build.description = (
        "Read the catalogue that CONFIG names, train its retrievers where they have `train`, and write the index "
        "folder. An index that is there is replaced once the new one is whole. Killed in training, the same command "
        "goes on from the last checkpoint."
    )
    build.set_defaults(handler=later("index_commands", "build"))
    config_arguments(build, "configs/index/")
    build.add_argument(
        "--resume",
        action="store_true",
        help="train on from the weights of the index that is there: for a grown catalogue",
    )
    add = commands.add_parser("add", help="add or update tools without rebuilding")
    add.description = (
        "Add tools, and replace those whose id is there with other content. A running server takes them up by itself."
    )
    add.set_defaults(handler=later("index_commands", "add"))
    index_argument(add)
    add.add_argument("catalogue", nargs="+", metavar="CATALOGUE", help="files or folders with the tools to add")
    add.add_argument("--format", help=FORMAT)
    _mcp_command(commands)
    remove = commands.add_parser("remove", help="take tools out")
    remove.description = "Take tools out. If one of the ids is not there, nothing is removed."
    remove.set_defaults(handler=later("index_commands", "remove"))
    index_argument(remove)
    remove.add_argument("ids", nargs="+", metavar="ID", help="tool ids, as `search` shows them; - reads standard input")
    confirm = commands.add_parser("confirm", help="remember which tools were right for a query (MassTool)")
    confirm.description = (
        "Tell a MassTool index which tools were right for a query, so that the next query like it finds them. Nothing "
        "is trained."
    )
    confirm.set_defaults(handler=later("masstool_commands", "confirm_queries"))
    index_argument(confirm)
    confirm.add_argument(
        "pairs", nargs="+", metavar="FILE", help='lines of {"utterance": …, "tools": [ids]}, or a feedback folder'
    )
    for parser in (build, add, remove, confirm):
        _wait(parser)
        parser.epilog = EXITS
    device_argument(build, add, remove, confirm)


def _wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait", type=float, default=60.0, metavar="S", help="seconds to wait while another process writes (60)"
    )


def _mcp_command(commands: Commands) -> None:
    mcp = commands.add_parser("mcp", help="a running MCP server's tools -> catalogue file", epilog=EXITS)
    mcp.description = (
        "Ask a running MCP server for its tools, page by page, and write them as a catalogue file that build, add and "
        "lint read. Give either --url or --command."
    )
    mcp.set_defaults(handler=later("mcp_commands", "fetch"))
    mcp.add_argument("output", type=Path, metavar="OUT", help="the file to write; one that is there is replaced")
    mcp.add_argument("--url", help="the server's streamable HTTP address")
    mcp.add_argument(
        "--command", metavar="TEXT", help="the command that starts a server which speaks on standard input"
    )
    mcp.add_argument("--key-variable", metavar="NAME", help="the environment variable that holds the server's API key")
    mcp.add_argument("--name", help="the provider of its tools (default: what the server calls itself)")
    mcp.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long it may take (60)")


def index_readers(commands: Commands) -> None:
    """What looks at one."""
    info = commands.add_parser("info", help="what an index holds")
    info.description = "Print fingerprint, number of tools, size and the retrievers with their settings."
    info.set_defaults(handler=later("index_commands", "info"))
    verify = commands.add_parser("verify", help="check every byte of an index against its manifest", epilog=EXITS)
    verify.description = "Read every file of an index and compare it with the manifest. Damage is named; exit code 1."
    verify.set_defaults(handler=later("index_commands", "verify_index"))
    lint = commands.add_parser("lint", help="what in a catalogue will make retrieval fail")
    lint.description = (
        "Look for tools that nobody will find, or that will be found in place of others: thin descriptions, "
        "duplicates, unreadable names, hidden text. Findings do not change the exit code."
    )
    lint.set_defaults(handler=later("index_commands", "lint_catalogue"))
    lint.add_argument("source", metavar="INDEX|CATALOGUE", help="the folder of an index, or a catalogue file or folder")
    lint.add_argument("--format", help=FORMAT)
    lint.add_argument("--most", type=int, default=5, metavar="N", help="findings shown of each check (5); 0: all")
    search = commands.add_parser("search", help="ask an index; all its retrievers side by side")
    search.description = (
        "Show what each retriever of an index finds, one column each. Scores are comparable within a column only."
    )
    search.set_defaults(handler=later("index_commands", "search"))
    index_argument(info, verify, search)
    _search_flags(search)
    for parser in (info, lint, search):
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.epilog = EXITS


def _search_flags(search: argparse.ArgumentParser) -> None:
    search.add_argument("text", nargs="+", metavar="TEXT", help="what a user says; - reads standard input, one a line")
    search.add_argument(
        "--retriever", action="append", metavar="NAME", help="ask this retriever alone; may be repeated (default: all)"
    )
    search.add_argument("-k", type=int, default=5, metavar="K", help="how many tools (5)")
    device_argument(search)
    search.add_argument(
        "--engine",
        choices=("transformers", "vllm"),
        default="transformers",
        help="what runs the language model of a ToolGen or ToolWeaver (transformers)",
    )


def index_shared(commands: Commands) -> None:
    """What moves one into a database and back."""
    push = commands.add_parser("push", help="index folder -> the database that gateways share", epilog=EXITS)
    push.description = (
        "Put an index's tools, vectors and models into a PostgreSQL database, in one change that its gateways take up. "
        "Tools are added and updated; nothing is embedded."
    )
    pull = commands.add_parser("pull", help="the database that gateways share -> index folder", epilog=EXITS)
    pull.description = "Write the live catalogue of a database as an index folder: to evaluate, to train, to keep."
    for name, command, told in (("push", push, "the folder of an index"), ("pull", pull, "the folder to write")):
        command.set_defaults(handler=later("database_commands", name))
        command.add_argument("index", type=Path, metavar="INDEX", help=told)
        command.add_argument(
            "--variable",
            default="TOOLREWRITE_DATABASE",
            metavar="NAME",
            help="the environment variable with the connection string (TOOLREWRITE_DATABASE)",
        )
        command.add_argument("--schema", default="toolrewrite", help="the database schema of the tables (toolrewrite)")
        command.add_argument("--dry-run", action="store_true", help="say what is there, change nothing")
    push.add_argument(
        "--replace",
        action="store_true",
        help="make the database equal to INDEX: remove tools that INDEX lacks, use INDEX's retrievers",
    )
    pull.add_argument("--feedback", type=Path, metavar="FILE", help="also write what callers confirmed, as JSON lines")
    _wait(pull)
    device_argument(pull)
