"""Training in three stages: memorise the tools, retrieve them, call them. Each can be resumed or skipped."""

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
from retrievers.generative.code_table import SECOND_MOMENT, CodeTable
from retrievers.generative.decoding.language_model import LanguageModel, load_model
from retrievers.generative.decoding.local_model import ExtendedVocabulary, LocalDecoder
from retrievers.generative.decoding.trie import Trie
from retrievers.generative.retriever import GenerativeRetriever
from retrievers.generative.settings import GenerativeSettings, GenerativeTraining, Stage
from retrievers.generative.training.examples import (
    TokenExample,
    agent_examples,
    memorisation_examples,
    retrieval_examples,
)
from retrievers.generative.training.loop import StageRun, StageTrainer, load_weights, save_tensors
from retrievers.generative.training.new_tokens import mean_own_logit, second_moment, to_numpy
from retrievers.generative.training.trainable import TrainableModel, make_trainable
from retrievers.kind import Context
from retrievers.rows import Rows
from retrievers.text import clean
from retrievers.training_set import TrainingSet
from retrievers.types import Tool
from retrievers.work_folder import WorkStage, reuse_work

FINISHED = "training.json"
"""Written last into the trained model's folder."""
FOLDERS = {"memorise": "1-memorise", "retrieve": "2-retrieve", "agent": "3-agent"}
DEV_QUERIES = 512
"""Dev queries that an epoch of retrieval training is evaluated on."""
DEV_BEAMS = 16


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """A model and the tools that it learns."""

    language: LanguageModel
    table: CodeTable
    inputs: np.ndarray
    """(new tokens, dimensions)"""
    outputs: np.ndarray
    tools: Sequence[Tool]
    documents: Sequence[str]
    sets: Sequence[TrainingSet]
    settings: GenerativeSettings
    shared_tokens: bool = False
    """Tools share the first tokens of their codes, as ToolWeaver's do."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the codes, written into the summary of the training."""
    files: tuple[str, ...] = ()
    """Files in the work folder that the caller checks."""

    @property
    def training(self) -> GenerativeTraining:
        assert self.settings.train is not None
        return self.settings.train

    @property
    def stages(self) -> dict[str, Stage]:
        training = self.training
        return {"memorise": training.memorise, "retrieve": training.retrieve, "agent": training.agent}


def train(task: TrainingTask, work: Path, context: Context) -> Path:
    """Train in `work`, or resume a killed run there; return the folder of the trained model."""
    language, training = task.language, task.training
    # First, so that an unusable trajectory is refused before anything is trained or deleted.
    examples = {name: _examples(task, name) for name, stage in task.stages.items() if stage.epochs}
    reuse_work(work, _work_stages(task), task.files)
    finished = work / "model"
    if (finished / FINISHED).exists():
        return finished
    # On a GPU, PyTorch's attention with a mask gave Qwen2 gradients of NaN within 50 steps (torch 2.11, cuDNN 9.19).
    model = load_model(language.folder, "eager" if language.device.startswith("cuda") else None)
    trainable = make_trainable(model, task.inputs, task.outputs, training, language.device, task.table.base_vocab_size)
    trained = language.with_model(trainable.model)
    dev_recall = _dev_recall(task, trained, trainable, context)
    summary: dict[str, Any] = {"dev recall@5 before": dev_recall(), "stages": {}}
    for name, stage in task.stages.items():
        if not stage.epochs:
            summary["stages"][name] = "skipped"
            continue
        evaluate = dev_recall if name == "retrieve" else None
        folder = work / FOLDERS[name]
        run = StageRun(name, examples[name], stage, training, folder, language.device, context.show_progress, evaluate)
        summary["stages"][name] = _train_stage(trainable, run)
    summary["dev recall@5"] = dev_recall()
    trainable.merge_adapters()
    summary |= {
        "parameters": sum(weight.numel() for weight in trainable.model.parameters()),
        "parameters added": len(task.inputs) * language.hidden_size * (1 if trainable.tied else 2),
        "new tokens": len(task.inputs),
        "tied": trainable.tied,
        **task.summary,
        "settings": asdict(task.settings),
    }
    return _save(task, trained, work, finished, summary)


def _work_stages(task: TrainingTask) -> list[WorkStage]:
    """The inputs of each stage. `save_every` and the settings of a finished index's search change no weight."""
    training, settings = asdict(task.training), task.settings
    stages = {name: training.pop(name) for name in FOLDERS}
    evaluation = {name: training.pop(name) for name in ("data", "protocol", "eval_every", "patience")}
    training.pop("save_every")
    names = [(tool.id, tool.name, tool.provider) for tool in task.tools]
    codes = sorted(task.table.codes.items())
    search = [settings.scores, settings.beams, settings.max_length]
    sets = [replace(data, trajectories=()) for data in task.sets]
    inputs: dict[str, list[Any]] = {
        "memorise": [task.language.fingerprint, training, names, list(task.documents), codes],
        "retrieve": [sets, evaluation, search],
        "agent": [trajectory for data in task.sets for trajectory in data.trajectories],
    }
    work = [WorkStage(name, [stages[name], inputs[name]], (folder,)) for name, folder in FOLDERS.items()]
    return [*work, WorkStage("model", settings, ("model", "model.part"))]


def _examples(task: TrainingTask, name: str) -> list[TokenExample]:
    stage, codes, chat = task.stages[name], task.table.codes, task.language.chat
    generator = random.Random(task.training.seed)
    if name == "memorise":
        return memorisation_examples(task.tools, task.documents, codes, chat, stage.max_length)
    retrieval = retrieval_examples(task.sets, codes, chat, stage.max_length)
    if name == "retrieve":
        rehearse = stage.rehearse > 0
        memorised = memorisation_examples(task.tools, task.documents, codes, chat, stage.max_length) if rehearse else []
        return retrieval + _rehearse(memorised, int(stage.rehearse * len(retrieval)), generator)
    documents = {tool.id: document for tool, document in zip(task.tools, task.documents, strict=True)}
    trajectories = [trajectory for data in task.sets for trajectory in data.trajectories]
    if not trajectories:
        raise BadInput("the agent stage needs trajectories; name a file, or set epochs: 0")
    examples = agent_examples(trajectories, documents, codes, chat, stage.max_length)
    return examples + _rehearse(retrieval, int(stage.rehearse * len(examples)), generator)


def _rehearse(examples: Sequence[TokenExample], count: int, generator: random.Random) -> list[TokenExample]:
    """That many examples: whole repetitions of all, then a random sample."""
    if not examples or not count:
        return []
    whole, rest = divmod(count - 1, len(examples))
    return [*examples] * whole + generator.sample(examples, rest + 1)


def _train_stage(trainable: TrainableModel, run: StageRun) -> dict[str, Any]:
    """Train a stage, or load its result where it is done."""
    done, final = run.work / "done.json", run.work / "final"
    if not done.exists():
        run.work.mkdir(parents=True, exist_ok=True)
        trainable.model.train()
        facts = StageTrainer(trainable.model, trainable.weights, run).train()
        save_tensors(final, {"weights": trainable.weights})
        part = done.with_suffix(".part")
        part.write_text(json.dumps(facts))
        os.replace(part, done)
    else:
        load_weights(trainable.weights, final / "weights.safetensors", run.device)
    for old in [*run.work.glob("step-*"), run.work / "best"]:
        shutil.rmtree(old, ignore_errors=True)
    summary: dict[str, Any] = json.loads(done.read_text())
    return summary


def _dev_recall(
    task: TrainingTask, trained: LanguageModel, trainable: TrainableModel, context: Context
) -> Callable[[], float]:
    """A function that measures recall@5 of the dev queries against the whole catalogue."""
    ids, settings = [tool.id for tool in task.tools], task.settings
    trie = Trie([task.table.codes[tool] for tool in ids], range(len(ids)), trained.chat.end)
    rows = Rows(ids, np.ones(len(ids), dtype=bool))
    pairs = [
        (query, {data.ids[row] for row in gold})
        for data in task.sets
        for query, gold in zip(data.dev.queries, data.dev.gold, strict=True)
    ]
    random.Random(task.training.seed).shuffle(pairs)
    pairs = pairs[:DEV_QUERIES]
    narrow = replace(settings, beams=min(settings.beams, DEV_BEAMS))

    def measure() -> float:
        trainable.model.eval()
        vocabulary = ExtendedVocabulary(trained)
        retriever = GenerativeRetriever(
            lambda prompts: LocalDecoder(vocabulary, prompts, settings.scores == "vocabulary"),
            trained.chat,
            trie,
            rows,
            "",
            narrow,
            trained.max_rows,
        )
        rankings = retriever.search([query for query, _ in pairs], 5)
        values = context.measure(["recall@5"], [ranking.ids for ranking in rankings], [gold for _, gold in pairs])
        return float(values["recall@5"].mean())

    return measure


def _save(task: TrainingTask, trained: LanguageModel, work: Path, finished: Path, summary: Mapping[str, Any]) -> Path:
    table = task.table
    if task.shared_tokens or all(len(code) == 1 for code in table.codes.values()):
        max_length = task.settings.max_length
        states = trained.last_states([trained.chat.query_prompt(clean(text), max_length) for text in task.documents])
        firsts = [table.codes[tool.id][0] for tool in task.tools]
        table = replace(table, own_logit=mean_own_logit(trained, states, firsts))
        if task.shared_tokens:
            table = replace(table, arrays={**table.arrays, SECOND_MOMENT: to_numpy(second_moment(states))})
    part = work / "model.part"
    shutil.rmtree(part, ignore_errors=True)
    with disk_room(work):
        trained.model.save_pretrained(part)
        trained.tokenizer.save_pretrained(part)
        table.write(part)
        (part / FINISHED).write_text(json.dumps(summary, indent=1))
        os.replace(part, finished)
    return finished
