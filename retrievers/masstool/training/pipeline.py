"""Stages of training: encoder, vectors, heads, artifacts. Each is kept, so that a kill costs one epoch at most."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from retrievers.dense.encoder import Encoder
from retrievers.errors import BadInput, ModelMissing
from retrievers.kind import Context
from retrievers.masstool.artifacts import Artifacts, Pair, save_artifacts, text_hash
from retrievers.masstool.graph import full_view, make_edges
from retrievers.masstool.model import Heads
from retrievers.masstool.serving.faithful_heads import serving_heads
from retrievers.masstool.settings import MassToolSettings
from retrievers.masstool.training.epochs import CHECKPOINT, train_heads
from retrievers.masstool.training.tensors import TrainingTensors, embed_training_set
from retrievers.masstool.training.trainer import DETECTION_WEIGHT
from retrievers.training_set import TrainingSet
from retrievers.work_folder import WorkStage, reuse_work

FILES = ("tuning", CHECKPOINT, f"{CHECKPOINT}.part", "model", "model.part")
POOL_GRAPH_ABOVE = 20_000
"""Pools with more queries than this are searched by an HNSW graph."""


def train(data: TrainingSet, settings: MassToolSettings, encoder: Encoder, work: Path, context: Context) -> Path:
    """Train in `work`, or resume there; return the folder that the index seals."""
    if settings.train is None:
        raise BadInput("this MassTool retriever has no `train` settings", "train")
    if len(data.ids) != len(data.documents):
        raise BadInput(f"MassTool needs an id per tool, got {len(data.ids)} ids of {len(data.documents)} tools")
    reuse_work(work, [WorkStage("training", [encoder.fingerprint, settings, data], FILES)])
    finished = work / "model"
    if finished.is_dir():
        return finished
    tuned = tune_encoder(data, settings, encoder, work / "tuning", context) if settings.train.encoder else None
    encoder = Encoder(tuned, settings.batch_size, context.device, context.cache) if tuned else encoder
    tensors = embed_training_set(data, encoder, context)
    heads, facts = train_heads(tensors, settings, work, context)
    if tuned:
        facts["encoder"] = json.loads((tuned / "training.json").read_text())
    part = work / "model.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    if tuned:
        shutil.copytree(tuned, part / "encoder")
    save_artifacts(part, make_artifacts(heads.cpu(), data, tensors, facts))
    part.rename(finished)
    return finished


def tune_encoder(data: TrainingSet, settings: MassToolSettings, encoder: Encoder, work: Path, context: Context) -> Path:
    """Tune the encoder for retrieval alone or for detection as well; return its folder."""
    assert settings.train is not None
    assert settings.train.encoder is not None
    tuning, seed = settings.train.encoder, settings.train.seed
    if tuning.mode == "joint":
        from retrievers.masstool.encoder.joint_training import tune_jointly

        weight = DETECTION_WEIGHT if settings.modules.detection else 0.0
        return tune_jointly(encoder.folder, data, tuning, weight, seed, work, context)
    try:
        from retrievers.dense.tuning.train import tune
    except ModuleNotFoundError as error:
        raise ModelMissing(
            f"tuning the encoder needs {error.name}; run `pip install toolrewrite[train]`, or set `mode: joint`"
        ) from error
    return tune(encoder.folder, [data], tuning, seed, work, context)


@torch.no_grad()
def make_artifacts(heads: Heads, data: TrainingSet, tensors: TrainingTensors, facts: dict[str, Any]) -> Artifacts:
    """Collect what serving needs. Dev queries join the pool: nothing is chosen by them any more."""
    heads.eval()
    tools = heads.tools(tensors.tools, tensors.train, full_view(make_edges(data.train.gold, len(data.documents))))
    trained = tensors.trained_tools()
    texts = tensors.tools[trained]
    examples, keys = [data.train], tensors.train
    if heads.pool_includes_dev:
        examples, keys = [data.train, data.dev], torch.cat([tensors.train, tensors.dev])
    pairs: list[Pair] = [
        (query, tuple(data.ids[row] for row in gold))
        for part in examples
        for query, gold in zip(part.queries, part.gold, strict=True)
    ]
    graph = None
    if len(keys) > POOL_GRAPH_ABOVE:
        from retrievers.dense import ann

        graph = ann.build(keys.numpy())
    rows = {text_hash(data.documents[row]): index for index, row in enumerate(trained)}
    shifts, signal_shifts = tools.unnormalized[trained] - texts, tools.signals[trained] - texts
    from_dev = tuple(index >= len(data.train) for index in range(len(pairs)))
    state = {name: value.numpy() for name, value in heads.state_dict().items()}
    served = serving_heads(heads.settings)(heads.settings, state)
    vectors = (texts.numpy(), shifts.numpy(), signal_shifts.numpy())
    return Artifacts(served, *vectors, rows, keys.numpy(), pairs, facts, graph, from_dev)
