"""`rewrite-index agent`: tasks done by models, and how many of them rightly."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from pipelines.agent.loop import Attempt, run_trained, run_untrained
from pipelines.agent.score import right, score
from pipelines.agent.tasks import load_trajectories
from pipelines.context import make_context
from retrievers.errors import BadInput
from retrievers.files import disk_room
from retrievers.generative.decoding.language_model import LanguageModel
from retrievers.generative.retriever import GenerativeRetriever
from retrievers.index import Index
from retrievers.text import clean, document
from retrievers.training_set import Trajectory


def agent(arguments: argparse.Namespace) -> int:
    if arguments.most < 0 or arguments.shown < 1:
        raise BadInput("--most must not be negative, --shown must be at least 1")
    context = make_context(arguments.device)
    index = Index(arguments.index, context)
    retriever = index.retriever(arguments.retriever)
    if not isinstance(retriever, GenerativeRetriever):
        raise BadInput(f"{arguments.retriever!r} is no generative retriever; an agent needs one with `train.agent`")
    wanted = load_trajectories(arguments.tasks, "test")[: arguments.most or None]
    strangers = sorted({call.tool for each in wanted for call in each.calls} - index.tools.keys())
    if strangers:
        raise BadInput(f"the tasks need {strangers[0]!r}, which {arguments.index} does not have")
    documents = {tool: document(index.tools[tool], index.manifest.text) for tool in index.tools}
    tasks = [clean(each.task) for each in wanted]  # as they are taught
    if arguments.output:  # before hours are spent
        with disk_room(arguments.output.parent):
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.open("a").close()
    done: dict[str, list[Attempt]] = {"trained": run_trained(retriever, index.rows.ids, index.tools, documents, tasks)}
    if arguments.base:
        language = LanguageModel(context.find_model(arguments.base), arguments.device)
        finder = index.retriever(arguments.shown_by or arguments.retriever)
        done["untrained"] = run_untrained(language, finder, index.tools, documents, tasks, arguments.shown)
    _tell(done, wanted, arguments)
    return 0


def _tell(done: dict[str, list[Attempt]], wanted: list[Trajectory], arguments: argparse.Namespace) -> None:
    scores = {name: dataclasses.asdict(score(attempts, wanted)) for name, attempts in done.items()}
    if arguments.output:
        lines = [json.dumps(row, ensure_ascii=False) for name in done for row in _rows(name, done[name], wanted)]
        text = "".join(f"{line}\n" for line in lines)
        with disk_room(arguments.output.parent):
            arguments.output.write_text(text, encoding="utf-8", errors="replace")  # half characters are a model's, too
    if arguments.json:
        print(json.dumps(scores, indent=1))
        return
    print(f"{'':12}{'tasks':>7}{'calls':>8}{'tools':>8}{'first':>8}")
    for name, each in scores.items():
        print(f"{name:12}{each['tasks']:7}{each['calls']:8.3f}{each['tools']:8.3f}{each['first']:8.3f}")


def _rows(name: str, attempts: list[Attempt], wanted: list[Trajectory]) -> list[dict[str, Any]]:
    return [
        {"system": name, "id": gold.id, "task": each.task, "right": right(each, gold), "calls": each.calls,
         "wanted": [(call.tool, call.arguments) for call in gold.calls], "answer": each.answer}
        for each, gold in zip(attempts, wanted, strict=True)
    ]  # fmt: skip
