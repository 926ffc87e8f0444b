"""The flags of `rewrite-index`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipelines.flags import EXITS, config_arguments, later


def index_writers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What makes and changes an index."""
    build = commands.add_parser("build", help="catalogue -> sealed index folder", epilog=EXITS)
    build.set_defaults(handler=later("index_commands", "build"))
    config_arguments(build, "configs/index/")
    build.add_argument(
        "--resume", action="store_true", help="train on from what the index there has learned: for tools added since"
    )

    add = commands.add_parser("add", help="add or update tools without rebuilding", epilog=EXITS)
    add.set_defaults(handler=later("index_commands", "add"))
    add.add_argument("index", type=Path, metavar="INDEX")
    add.add_argument("catalogue", nargs="+", metavar="CATALOGUE", help="files or folders holding the tools to add")
    add.add_argument("--format", help="format of the catalogue; recognised from its content when not given")

    _mcp_command(commands)
    remove = commands.add_parser("remove", help="take tools out", epilog=EXITS)
    remove.set_defaults(handler=later("index_commands", "remove"))
    remove.add_argument("index", type=Path, metavar="INDEX")
    remove.add_argument("ids", nargs="+", metavar="ID", help="tool ids; - reads them from standard input, one a line")
    confirm = commands.add_parser("confirm", help="remember which tools queries turned out to need", epilog=EXITS)
    confirm.set_defaults(handler=later("masstool_commands", "confirm_queries"))
    confirm.add_argument("index", type=Path, metavar="INDEX")
    confirm.add_argument(
        "pairs", nargs="+", metavar="FILE", help='lines of {"utterance": …, "tools": [ids]}, or a feedback folder'
    )
    for parser in (build, add, remove, confirm):
        parser.add_argument(
            "--wait", type=float, default=60.0, metavar="S", help="seconds to wait for another writer (60)"
        )
        parser.add_argument("--device", help="where the encoder runs: cpu, cuda, mps (the best there is)")


def _mcp_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    mcp = commands.add_parser("mcp", help="a running MCP server's tools -> catalogue file", epilog=EXITS)
    mcp.description = (
        "Ask a running MCP server for its tools, page by page, and write them as a catalogue that build, add and lint "
        "read."
    )
    mcp.set_defaults(handler=later("mcp_commands", "fetch"))
    mcp.add_argument("output", type=Path, metavar="OUT", help="the file to write; replaced where it is there")
    mcp.add_argument("--url", help="the server's streamable HTTP address")
    mcp.add_argument("--command", metavar="TEXT", help="or what starts it, where it speaks on standard input")
    mcp.add_argument("--key-variable", metavar="NAME", help="the environment variable with the server's API key")
    mcp.add_argument("--name", help="the provider of its tools (what the server calls itself)")
    mcp.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long it may take (60)")


def index_readers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What looks at one."""
    info = commands.add_parser("info", help="what an index holds", epilog=EXITS)
    info.set_defaults(handler=later("index_commands", "info"))
    info.add_argument("index", type=Path, metavar="INDEX")

    verify = commands.add_parser("verify", help="check every byte of an index against its manifest", epilog=EXITS)
    verify.set_defaults(handler=later("index_commands", "verify_index"))
    verify.add_argument("index", type=Path, metavar="INDEX")

    lint = commands.add_parser("lint", help="what in a catalogue will make retrieval fail", epilog=EXITS)
    lint.set_defaults(handler=later("index_commands", "lint_catalogue"))
    lint.add_argument("source", metavar="INDEX|CATALOGUE")
    lint.add_argument("--format", help="format of the catalogue; recognised from its content when not given")
    lint.add_argument("--most", type=int, default=5, metavar="N", help="findings shown of each check (5); 0: all")

    search = commands.add_parser("search", help="ask an index, its retrievers side by side", epilog=EXITS)
    search.set_defaults(handler=later("index_commands", "search"))
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
    detect = _masstool_commands(commands)
    tree = commands.add_parser("tree", help="the codes of a toolweaver as a page: who shares a branch", epilog=EXITS)
    tree.set_defaults(handler=later("tree_commands", "show_tree"))
    tree.add_argument("index", type=Path, metavar="INDEX")
    tree.add_argument("--retriever", default="toolweaver", metavar="NAME", help="whose codes (toolweaver)")
    tree.add_argument("--output", type=Path, metavar="FILE", help="the page (INDEX-tree/report.html)")
    for parser in (info, lint, search, detect, tree):
        parser.add_argument("--json", action="store_true", help="machine-readable output")


def _masstool_commands(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """What looks at a MassTool alone; `detect` is given back."""
    detect = commands.add_parser("detect", help="how well an index tells which queries need a tool", epilog=EXITS)
    detect.set_defaults(handler=later("masstool_commands", "detect_labels"))
    detect.add_argument("index", type=Path, metavar="INDEX")
    detect.add_argument("data", metavar="DATA", help="a folder with queries.jsonl and labels/, or bundled:sample")
    detect.add_argument("--retriever", default="masstool", metavar="NAME", help="which detector to ask (masstool)")
    detect.add_argument("--split", default="test", choices=("train", "dev", "test"))
    detect.add_argument("--threshold", type=float, metavar="P", help="another probability than the index's own")
    detect.add_argument("--device", help="where the encoder runs: cpu, cuda, mps (the best there is)")

    ablate = commands.add_parser(
        "ablate",
        help="train MassTool without each of its parts, side by side",
        description="Trains MassTool whole and without each of its parts on the same vectors, from train alone (a "
        "config's `train.again` is left out), and prints their metrics side by side with the encoder alone.",
        epilog=EXITS,
    )
    ablate.set_defaults(handler=later("masstool_commands", "ablate"))
    config_arguments(ablate, "configs/index/*-masstool.yaml")
    ablate.add_argument("--without", action="append", metavar="PART", help="which parts to leave out (each in turn)")
    ablate.add_argument("--split", default="test", choices=("dev", "test"), help="what the figures are taken on")
    ablate.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON, too")
    ablate.add_argument("--device", help="where models run: cpu, cuda, mps (the best there is)")
    return detect


def index_shared(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What moves one into a database and back."""
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
        command.set_defaults(handler=later("shared_commands", name))
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
    agent.set_defaults(handler=later("agent_commands", "agent"))
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
