"""`rewrite-index agent` and `tree`, for indexes with a ToolGen or ToolWeaver."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from pipelines.agent.loop import AgentRun, run_trained, run_untrained
from pipelines.agent.score import is_right, score_runs
from pipelines.context import make_context
from pipelines.data.trajectories import load_trajectories
from pipelines.report import document as html_document
from pipelines.report.data import CodedTool, CodeTree
from pipelines.report.markup import foreign, section, tag
from pipelines.report.tree import EXPLANATION, tree
from retrievers.errors import BadInput
from retrievers.files import disk_room
from retrievers.generative.decoding.language_model import LanguageModel
from retrievers.generative.retriever import GenerativeRetriever
from retrievers.index import Index
from retrievers.text import clean, document
from retrievers.training_set import Trajectory


def run_agent(arguments: argparse.Namespace) -> int:
    if arguments.limit < 0:
        raise BadInput(f"--limit must be at least 0, got {arguments.limit}")
    if arguments.num_tools < 1:
        raise BadInput(f"--num-tools must be at least 1, got {arguments.num_tools}")
    context = make_context(arguments.device)
    index = Index(arguments.index, context)
    retriever = index.retriever(arguments.retriever)
    if not isinstance(retriever, GenerativeRetriever):
        raise BadInput(f"{arguments.retriever!r} is no generative retriever; an agent needs one with `train.agent`")
    trajectories = load_trajectories(arguments.tasks, "test")[: arguments.limit or None]
    unknown = sorted({call.tool for trajectory in trajectories for call in trajectory.calls} - index.tools.keys())
    if unknown:
        raise BadInput(f"the tasks need {unknown[0]!r}, which {arguments.index} does not have")
    documents = {tool: document(index.tools[tool], index.manifest.text) for tool in index.tools}
    tasks = [clean(trajectory.task) for trajectory in trajectories]  # as in training
    if arguments.output:  # fail before hours of work, not after
        with disk_room(arguments.output.parent):
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.open("a").close()
    attempts = {"trained": run_trained(retriever, index.rows.ids, index.tools, documents, tasks)}
    if arguments.base:
        language = LanguageModel(context.find_model(arguments.base), arguments.device)
        finder = index.retriever(arguments.tools_from or arguments.retriever)
        attempts["untrained"] = run_untrained(language, finder, index.tools, documents, tasks, arguments.num_tools)
    if arguments.output:
        rows = [row for name in attempts for row in _rows(name, attempts[name], trajectories)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        with disk_room(arguments.output.parent):
            arguments.output.write_text(text, encoding="utf-8", errors="replace")  # models write half characters
    scores = {name: dataclasses.asdict(score_runs(runs, trajectories)) for name, runs in attempts.items()}
    if arguments.json:
        print(json.dumps(scores, indent=1))
        return 0
    print(f"{'':12}{'tasks':>7}{'calls':>8}{'tools':>8}{'first':>8}")
    for name, row in scores.items():
        print(f"{name:12}{row['tasks']:7}{row['calls']:8.3f}{row['tools']:8.3f}{row['first']:8.3f}")
    return 0


def _rows(name: str, attempts: list[AgentRun], trajectories: list[Trajectory]) -> list[dict[str, Any]]:
    return [
        {
            "system": name,
            "id": gold.id,
            "task": attempt.task,
            "right": is_right(attempt, gold),
            "calls": attempt.calls,
            "gold": [(call.tool, call.arguments) for call in gold.calls],
            "answer": attempt.answer,
        }
        for attempt, gold in zip(attempts, trajectories, strict=True)
    ]


def run_tree(arguments: argparse.Namespace) -> int:
    index, folder = Index(arguments.index, make_context("cpu")), Path(os.path.abspath(arguments.index))
    retriever = index.retriever(arguments.retriever)
    if not isinstance(retriever, GenerativeRetriever) or not retriever.branches:
        raise BadInput(f"{arguments.retriever!r} of {arguments.index} has no tree of codes; a toolweaver has one")
    if arguments.json:
        print(json.dumps({tool: list(path) for tool, path in retriever.branches.items()}, ensure_ascii=False))
        return 0
    tools = tuple(CodedTool(tool, index.tools[tool].name, path) for tool, path in retriever.branches.items())
    title = f"{folder.name}: tools and their codes"
    head = tag("header", tag("p", foreign(title), class_="title"), tag("h1", "Tools that share a branch"))
    body = section("codes", "The tree of codes", EXPLANATION, tree(CodeTree(arguments.retriever, tools)))
    foot = tag("footer", tag("p", "Index fingerprint ", tag("code", index.fingerprint)))
    out = arguments.output or Path(os.path.relpath(folder.with_name(f"{folder.name}-tree") / "report.html"))
    with disk_room(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(html_document(title, head, tag("main", body), foot), encoding="utf-8")
    print(f"{out}: {len(tools)} tools")
    return 0
