"""`rewrite-index tree`: the codes of an index as a page to look at."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from pipelines.cli.index_commands import say
from pipelines.context import make_context
from pipelines.report import document
from pipelines.report.data import CodedTool, CodeTree
from pipelines.report.markup import foreign, section, tag
from pipelines.report.tree import EXPLANATION, tree
from retrievers.errors import BadInput
from retrievers.files import disk_room
from retrievers.generative.retriever import GenerativeRetriever
from retrievers.index import Index


def show_tree(arguments: argparse.Namespace) -> int:
    """Writes the page, or the codes as JSON."""
    index, folder = Index(arguments.index, make_context("cpu")), Path(os.path.abspath(arguments.index))
    retriever = index.retriever(arguments.retriever)
    if not isinstance(retriever, GenerativeRetriever) or not retriever.branches:
        raise BadInput(f"{arguments.retriever!r} of {arguments.index} has no tree of codes; a toolweaver has one")
    if arguments.json:
        say(json.dumps({tool: list(path) for tool, path in retriever.branches.items()}, ensure_ascii=False))
        return 0
    tools = tuple(CodedTool(tool, index.tools[tool].name, path) for tool, path in retriever.branches.items())
    title = f"{folder.name}: tools and their codes"
    head = tag("header", tag("p", foreign(title), class_="title"), tag("h1", "Which tools share a branch"))
    body = section("codes", "The tree of codes", EXPLANATION, tree(CodeTree(arguments.retriever, tools)))
    foot = tag("footer", tag("p", "Index fingerprint ", tag("code", index.fingerprint)))
    out = arguments.output or Path(os.path.relpath(folder.with_name(f"{folder.name}-tree") / "report.html"))
    with disk_room(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(document(title, head, tag("main", body), foot), encoding="utf-8")
    say(f"{out}: {len(tools)} tools")
    return 0
