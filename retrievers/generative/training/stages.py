"""Three stages, one after the other: know the tools, find them, use them. Each resumes, reports and can be left out."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from retrievers.errors import BadInput
from retrievers.files import disk_room
from retrievers.generative import code_table as books
from retrievers.generative.code_table import Book
from retrievers.generative.decoding.language_model import LanguageModel, load_model
from retrievers.generative.decoding.local_model import LocalRun, Vocabulary
from retrievers.generative.decoding.trie import Trie
from retrievers.generative.retriever import Generative
from retrievers.generative.settings import Stage, ToolGenSettings
from retrievers.generative.training.examples import Lesson, actions, memories, retrievals
from retrievers.generative.training.loop import Job, Loop, load_weights, write_tensors
from retrievers.generative.training.new_tokens import as_array, own_strength, spread_of
from retrievers.generative.training.resume_state import FOLDERS, marks, take_over
from retrievers.generative.training.trainable import Student, enrol, graduate
from retrievers.generative.weaver_settings import ToolWeaverSettings
from retrievers.kind import Context
from retrievers.rows import Rows
from retrievers.text import clean
from retrievers.training_set import TrainingSet
from retrievers.types import Tool

Settings = ToolGenSettings | ToolWeaverSettings
FINISHED = "training.json"
"""Written last into the trained model's folder."""


@dataclass(frozen=True, slots=True)
class Pupil:
    """A model and the tools that it is to learn."""

    language: LanguageModel
    book: Book
    inputs: np.ndarray
    """(new tokens, dimensions)"""
    outputs: np.ndarray
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What is told of the spelling beside the training."""


def train(
    pupil: Pupil,
    tools: Sequence[Tool],
    documents: Sequence[str],
    sets: Sequence[TrainingSet],
    settings: Settings,
    work: Path,
    context: Context,
) -> Path:
    """Trains in `work`, or goes on where a killed run stopped there; returns the folder of the trained model."""
    training = settings.train
    if training is None:
        raise BadInput("this generative retriever has no `train` settings")
    language, stages = pupil.language, _stages(settings)
    # Before anything is trained or cleared away: a trajectory that cannot be used must not cost the stages before it.
    lessons = {
        name: _lessons(name, pupil.book, tools, documents, sets, settings, language)
        for name, stage in stages.items()
        if stage.epochs
    }
    work.mkdir(parents=True, exist_ok=True)
    take_over(work, marks(language.fingerprint, pupil.book.codes, tools, documents, sets, settings))
    finished = work / FOLDERS["model"]
    if (finished / FINISHED).exists():
        return finished
    device = language.device
    student = enrol(load_model(language.folder), pupil.inputs, pupil.outputs, training, device, pupil.book.base)
    held = language.holding(student.model)
    judge = _judge(held, pupil.book, tools, sets, settings)
    report: dict[str, Any] = {"dev recall@5 before": _asked(student, judge), "stages": {}}
    for name, stage in stages.items():
        if not stage.epochs:
            report["stages"][name] = "skipped"
            continue
        job = Job(
            name,
            lessons[name],
            stage,
            training,
            work / FOLDERS[name],
            device,
            context.show_progress,
            (lambda: _asked(student, judge)) if name == "retrieve" else None,
        )
        report["stages"][name] = _stage(student, job)
    report["dev recall@5"] = _asked(student, judge)
    graduate(student)
    facts = {**report, **_cost(student, pupil), **pupil.facts, "settings": asdict(settings)}
    return _save(held, pupil.book, tools, documents, settings, work, finished, facts)


def _stages(settings: Settings) -> dict[str, Stage]:
    assert settings.train is not None
    return {"memorise": settings.train.memorise, "retrieve": settings.train.retrieve, "agent": settings.train.agent}


def _lessons(
    name: str,
    book: Book,
    tools: Sequence[Tool],
    documents: Sequence[str],
    sets: Sequence[TrainingSet],
    settings: Settings,
    language: LanguageModel,
) -> list[Lesson]:
    assert settings.train is not None
    stage, frames = _stages(settings)[name], language.frames
    most, chance = stage.max_length, random.Random(settings.train.seed)
    wanted = name == "memorise" or (name == "retrieve" and stage.rehearse)
    known = memories(tools, documents, book.codes, frames, most) if wanted else []
    if name == "memorise":
        return known
    found = retrievals(sets, book.codes, frames, most)
    if name == "retrieve":
        return found + _rehearsed(known, int(stage.rehearse * len(found)), chance)
    texts = {tool.id: document for tool, document in zip(tools, documents, strict=True)}
    tasks = [each for one in sets for each in one.trajectories]
    if not tasks:
        raise BadInput("the agent stage needs trajectories; name a file, or give it epochs: 0")
    acted = actions(tasks, texts, book.codes, frames, most)
    return acted + _rehearsed(found, int(stage.rehearse * len(acted)), chance)


def _rehearsed(lessons: Sequence[Lesson], wanted: int, chance: random.Random) -> list[Lesson]:
    """So many: all of them as often as that goes, and some of them once more."""
    if not lessons or not wanted:
        return []
    whole, rest = divmod(wanted - 1, len(lessons))
    return [*lessons] * whole + chance.sample(lessons, rest + 1)


def _stage(student: Student, job: Job) -> dict[str, Any]:
    """Runs a stage, or takes up its result where it is done."""
    done, final = job.work / "done.json", job.work / "final"
    if not done.exists():
        job.work.mkdir(parents=True, exist_ok=True)
        student.model.train()
        facts = Loop(student.model, student.weights, job).run()
        write_tensors(final, {"weights": student.weights})
        part = done.with_suffix(".part")
        part.write_text(json.dumps(facts))
        os.replace(part, done)
    else:
        load_weights(student.weights, final / "weights.safetensors", job.device)
    for old in [*job.work.glob("step-*"), job.work / "best"]:
        shutil.rmtree(old, ignore_errors=True)
    found: dict[str, Any] = json.loads(done.read_text())
    return found


def _judge(
    held: LanguageModel, book: Book, tools: Sequence[Tool], sets: Sequence[TrainingSet], settings: Settings
) -> Callable[[], float]:
    """Recall@5 over some of the dev queries, each asked against the whole catalogue."""
    training = settings.train
    assert training is not None
    ids = [tool.id for tool in tools]
    trie = Trie([book.codes[tool] for tool in ids], range(len(ids)), held.frames.end)
    rows = Rows(ids, np.ones(len(ids), dtype=bool))
    asked = [
        (query, {each.ids[row] for row in gold})
        for each in sets
        for query, gold in zip(each.dev.queries, each.dev.gold, strict=True)
    ]
    random.Random(training.seed).shuffle(asked)
    asked = asked[: training.dev_queries]

    def judge() -> float:
        none = np.zeros((0, held.width), np.float32)
        vocabulary = Vocabulary(held, none, none)
        retriever = Generative(
            lambda prompts: LocalRun(vocabulary, prompts, settings.scores == "vocabulary"),
            held.frames,
            trie,
            rows,
            "",
            replace(settings, beams=min(settings.beams, 16)),
            held.rows_at_once,
        )
        found = retriever.search([query for query, _ in asked], 5)
        return sum(len(gold & set(each.ids)) / len(gold) for each, (_, gold) in zip(found, asked, strict=True)) / len(
            asked
        )

    return judge


def _asked(student: Student, judge: Callable[[], float]) -> float:
    student.model.eval()
    return judge()


def _cost(student: Student, pupil: Pupil) -> dict[str, Any]:
    every = sum(weight.numel() for weight in student.model.parameters())
    added = len(pupil.inputs) * pupil.language.width * (1 if student.tied else 2)
    return {"parameters": every, "parameters added": added, "new tokens": len(pupil.inputs), "tied": student.tied}


def _save(
    held: LanguageModel,
    book: Book,
    tools: Sequence[Tool],
    documents: Sequence[str],
    settings: Settings,
    work: Path,
    finished: Path,
    facts: Mapping[str, Any],
) -> Path:
    woven = isinstance(settings, ToolWeaverSettings)
    if woven or all(len(code) == 1 for code in book.codes.values()):
        states = held.last_states([held.frames.question(clean(each), settings.max_length) for each in documents])
        book = replace(book, own=own_strength(held, states, [book.codes[tool.id][0] for tool in tools]))
        if woven:
            book = replace(book, state={**book.state, books.SPREAD: as_array(spread_of(states))})
    part = work / "model.part"
    shutil.rmtree(part, ignore_errors=True)
    with disk_room(work):
        held.model.save_pretrained(part)
        held.tokenizer.save_pretrained(part)
        books.write(part, book)
        (part / FINISHED).write_text(json.dumps(facts, indent=1))
        os.replace(part, finished)
    return finished
