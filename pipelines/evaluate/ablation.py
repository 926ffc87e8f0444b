"""Ablation of MassTool: trains it whole and without each part on the same vectors, and compares them on one split."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pipelines.data.dataset import load_dataset
from pipelines.data.splits import apply_protocol
from pipelines.data.training_sets import labelled_set
from pipelines.evaluate.significance import randomisation_test
from pipelines.index.build import IndexConfig
from retrievers.dense.embeddings import embed
from retrievers.dense.encoder import Encoder
from retrievers.errors import BadInput
from retrievers.kind import Context
from retrievers.masstool.offline_scores import offline_scores
from retrievers.masstool.settings import MassToolSettings, Modules
from retrievers.masstool.training.epochs import train_heads
from retrievers.masstool.training.pipeline import tune_encoder
from retrievers.masstool.training.tensors import embed_training_set
from retrievers.text import clean
from retrievers.work_folder import WorkStage, reuse_work
from reward.metrics import measure_rankings

PARTS: dict[str, Modules] = {
    "transfer": Modules(transfer="none"),
    "intent": Modules(intent=False),
    "filter": Modules(filter=False),
    "contrast": Modules(contrast=False),
    "graph": Modules(graph=False),
    "detection": Modules(detection=False),
}
METRICS = ("recall@3", "recall@5", "ndcg@3", "ndcg@5", "comp@3", "comp@5", "mrr")
Row = dict[str, float]


def ablation(config: IndexConfig, context: Context, split: str, without: Sequence[str] = ()) -> dict[str, Row]:
    """Metrics of the encoder alone, of the whole, and of the whole without each part, with p against the whole.

    Resumes a killed run of the same config and data in the folder beside the index.
    """
    unknown = [name for name in without if name not in PARTS]
    if unknown:
        raise BadInput(f"MassTool has no part {unknown[0]!r}; its parts are {', '.join(PARTS)}")
    trained = [kind for kind in config.retrievers.values() if isinstance(kind, MassToolSettings) and kind.train]
    if len(trained) != 1 or trained[0].train is None:
        raise BadInput(f"an ablation needs one trained retriever of kind masstool, got {len(trained)}", "retrievers")
    settings, train = trained[0], trained[0].train
    data = apply_protocol(load_dataset(train.data[0].path), train.protocol)
    order = sorted(data.split(split))
    gold = [data.split(split)[query] for query in order]
    [training_set] = labelled_set(train, config.text)
    work = Path(f"{config.index}-ablation")
    encoder = Encoder(context.find_model(settings.model), settings.batch_size, context.device, context.cache)
    encoder = context.encoders.setdefault(encoder.fingerprint, encoder)
    files = ("tuning", "MassTool", "without-*")
    reuse_work(work, [WorkStage("ablation", [encoder.fingerprint, settings, training_set], files)])
    if train.encoder is not None:
        tuned = tune_encoder(training_set, settings, encoder, work / "tuning", context)
        encoder = Encoder(tuned, settings.batch_size, context.device, context.cache)
    tensors = embed_training_set(training_set, encoder, context)
    texts = [clean(data.queries[query].text) for query in order]
    queries = torch.from_numpy(np.array(embed(encoder, texts, context, "queries")))
    values = {"encoder alone": metric_values(queries @ tensors.tools.T, training_set.ids, gold)}
    variants = {"MassTool": settings.modules}
    variants |= {f"without {name}": without_part(settings.modules, name) for name in without or PARTS}
    # The pool of an index holds the dev queries: as queries of the split, they would find their own answers there.
    pool = replace(tensors, dev=tensors.dev[:0], dev_gold=()) if split == "dev" else tensors
    for name, modules in variants.items():
        folder = work / name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        heads, _ = train_heads(tensors, replace(settings, modules=modules), folder, context)
        values[name] = metric_values(offline_scores(heads, pool, queries).cpu(), training_set.ids, gold)
    shutil.rmtree(work, ignore_errors=True)
    return {name: summary_row(system, values["MassTool"]) for name, system in values.items()}


def without_part(modules: Modules, part: str) -> Modules:
    """Modules with one of them switched off."""
    return replace(modules, **{part: getattr(PARTS[part], part)})


def metric_values(scores: torch.Tensor, ids: Sequence[str], gold: Sequence[frozenset[str]]) -> dict[str, np.ndarray]:
    """Metrics per query of scores (queries, tools)."""
    best = scores.topk(min(100, scores.shape[1])).indices.tolist()
    return measure_rankings(METRICS, [[ids[row] for row in rows] for rows in best], gold)


def summary_row(values: Mapping[str, np.ndarray], whole: Mapping[str, np.ndarray]) -> Row:
    """Means, with p of the difference from the whole."""
    p = randomisation_test(np.stack([values[metric] - whole[metric] for metric in METRICS], axis=1))
    means = {metric: round(float(values[metric].mean()), 4) for metric in METRICS}
    return means | {f"p {metric}": round(float(p[index]), 4) for index, metric in enumerate(METRICS)}


def format_table(rows: Mapping[str, Row]) -> str:
    """Rows for the terminal; * marks a difference from the whole with p < .05."""
    width = max(map(len, rows))
    lines = [" " * width + "  " + "  ".join(f"{metric:>9}" for metric in METRICS)]
    for name, row in rows.items():
        cells = [f"{row[metric]:.4f}{'*' if row[f'p {metric}'] < 0.05 else ' '}" for metric in METRICS]
        lines.append(f"{name:<{width}}  " + "  ".join(f"{cell:>9}" for cell in cells))
    return "\n".join(lines)
