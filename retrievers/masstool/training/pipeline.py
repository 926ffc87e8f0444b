"""The stages of training: encoder, vectors, heads, and what is sealed with the index. Each is kept, so that a kill
costs an epoch at the most."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from retrievers.dense.embeddings import embed
from retrievers.dense.encoder import Encoder, check_device
from retrievers.errors import BadInput, ModelMissing
from retrievers.kind import Context
from retrievers.masstool.artifacts import Learned, Pair, store, text_hash
from retrievers.masstool.graph import make_edges, view
from retrievers.masstool.model import Heads
from retrievers.masstool.settings import EncoderTuning, MassToolSettings
from retrievers.masstool.training.epochs import learn
from retrievers.masstool.training.tensors import Labelled, Lessons, nothing
from retrievers.settings import DenseTraining
from retrievers.training_set import Labels, TrainingSet

if TYPE_CHECKING:
    from retrievers.masstool.encoder.joint_training import Stop

OURS = {"run.json", "tuning", "again", "heads.safetensors", "heads.safetensors.part", "model", "model.part", ".lock"}


def train(data: TrainingSet, settings: MassToolSettings, encoder: Encoder, work: Path, context: Context) -> Path:
    """Trains in `work`, or goes on there; returns the folder that the index seals."""
    if settings.train is None:
        raise BadInput("this MassTool retriever has no `train` settings")
    if len(data.ids) != len(data.documents):
        raise BadInput("MassTool needs the ids of the tools it learns from")
    work.mkdir(parents=True, exist_ok=True)
    same_run(work, encoder, data, settings)
    finished = work / "model"
    if finished.is_dir():
        return finished
    tuned = tune_encoder(data, settings, encoder, work / "tuning", context) if settings.train.encoder else None
    reader = Encoder(tuned, settings.batch_size, context.device) if tuned else encoder
    lessons = embedded(data, reader, context)
    heads, facts = learn(lessons, settings, work, check_device(context.device), context.show_progress)
    if tuned:
        facts["encoder"] = json.loads((tuned / "training.json").read_text())
    if settings.train.again:
        from retrievers.masstool.training.again import learn_again

        done = learn_again(data, settings, encoder, facts, work / "again", context)
        data, lessons, tuned, heads, facts = done.data, done.lessons, done.tuned, done.heads, done.facts
    part = work / "model.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    if tuned:
        shutil.copytree(tuned, part / "encoder")
    store(part, summed_up(heads.cpu(), data, lessons, settings, facts))
    part.rename(finished)
    return finished


def tune_encoder(
    data: TrainingSet,
    settings: MassToolSettings,
    encoder: Encoder,
    work: Path,
    context: Context,
    stop: Stop | None = None,
) -> Path:
    """The folder of the encoder, tuned for retrieval alone or for detection as well. `stop` is for `joint` alone."""
    assert settings.train is not None
    assert settings.train.encoder is not None
    wanted = as_dense(settings.train.encoder, settings)
    if settings.train.encoder.how == "joint":
        from retrievers.masstool.encoder.joint_training import tune_jointly

        share = settings.train.detection if settings.modules.detection else 0.0
        beside = settings.train.encoder.beside
        place, bar = context.device, context.show_progress
        return tune_jointly(encoder.folder, data, wanted, share, work, place, bar, beside, stop)
    try:
        from retrievers.dense.tuning.train import tune
    except ModuleNotFoundError as error:
        raise ModelMissing(
            f"tuning the encoder needs {error.name}; run `pip install toolrewrite[train]`, or set `how: joint`"
        ) from error
    return tune(encoder.folder, [data], wanted, wanted.seed, work, context)


def as_dense(tuning: EncoderTuning, settings: MassToolSettings) -> DenseTraining:
    """The same wishes as a dense index would have them."""
    assert settings.train is not None
    facts: dict[str, Any] = {name: value for name, value in asdict(tuning).items() if name not in ("how", "beside")}
    facts["blends"] = tuning.blends
    return DenseTraining(data=settings.train.data, protocol=settings.train.protocol, seed=settings.train.seed, **facts)


def embedded(data: TrainingSet, encoder: Encoder, context: Context) -> Lessons:
    """Every text as its vector."""

    def vectors(texts: tuple[str, ...], method: str) -> torch.Tensor:
        found = embed(encoder, list(texts), context, method)
        return torch.from_numpy(np.ascontiguousarray(found, dtype=np.float32))

    tools = vectors(data.documents, "documents")

    def labelled(labels: Labels) -> Labelled:
        if not labels.queries:
            return nothing(tools.shape[1])
        return Labelled(vectors(labels.queries, "queries"), torch.tensor(labels.needs), labels.queries)

    return Lessons(
        tools,
        vectors(data.train.queries, "queries"),
        data.train.gold,
        vectors(data.dev.queries, "queries"),
        data.dev.gold,
        labelled(data.labels),
        labelled(data.dev_labels),
    )


@torch.no_grad()
def summed_up(
    heads: Heads, data: TrainingSet, lessons: Lessons, settings: MassToolSettings, facts: dict[str, Any]
) -> Learned:
    """What serving needs. The pool takes in the dev queries too: nothing is chosen by them any more."""
    heads.eval()
    tools = heads.tools(lessons.tools, lessons.train, view(make_edges(data.train.gold, len(data.documents))))
    needed = sorted({row for each in data.train.gold for row in each})
    texts = lessons.tools[needed]
    alone = settings.faithful or (settings.train is not None and settings.train.again)  # again: dev is in train
    examples = (data.train,) if alone else (data.train, data.dev)
    pairs: list[Pair] = [
        (query, tuple(data.ids[row] for row in gold))
        for each in examples
        for query, gold in zip(each.queries, each.gold, strict=True)
    ]
    keys = lessons.train if alone else torch.cat([lessons.train, lessons.dev])
    return Learned(
        heads,
        texts,
        tools.whole[needed] - texts,
        tools.signals[needed] - texts,
        {text_hash(data.documents[row]): place for place, row in enumerate(needed)},
        keys,
        pairs,
        facts,
        _graph(keys, settings),
    )


def _graph(keys: torch.Tensor, settings: MassToolSettings) -> np.ndarray | None:
    if len(keys) <= settings.ann_pool_above:
        return None
    from retrievers.dense import ann

    return ann.build(keys.numpy(), settings.ann_links)


def same_run(
    work: Path, encoder: Encoder, data: TrainingSet, settings: MassToolSettings, ours: Collection[str] = OURS
) -> None:
    """A work folder belongs to one model, one data and one config; what another run left there is cleared away."""
    digest = hashlib.sha256(json.dumps([encoder.fingerprint, asdict(settings), asdict(data)]).encode())
    facts, mark = json.dumps({"run": digest.hexdigest()}), work / "run.json"
    if mark.exists() and mark.read_text() == facts:
        return
    strangers = [path.name for path in work.iterdir() if path.name not in ours]
    if strangers:
        raise BadInput(f"{work} holds other files ({strangers[0]}); it is the work folder of the training, empty it")
    for path in work.iterdir():
        if path.name != ".lock":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    mark.write_text(facts)
