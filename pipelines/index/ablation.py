"""MassTool without each of its parts: trained one after the other on the same vectors, judged on the same queries.

Every row learns from train alone, also where the config says `again`: dev chooses for each of them.
"""

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
from retrievers.dense.encoder import Encoder, check_device
from retrievers.errors import BadInput
from retrievers.kind import Context
from retrievers.masstool.offline_scores import scores
from retrievers.masstool.settings import MassToolSettings, Modules
from retrievers.masstool.training.epochs import learn
from retrievers.masstool.training.pipeline import embedded, same_run, tune_encoder
from retrievers.text import clean
from reward.metrics import judge, measure

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

    What a killed run left beside the index is gone on with, if it was of the same config and data.
    """
    unknown = [name for name in without if name not in PARTS]
    if unknown:
        raise BadInput(f"MassTool has no part {unknown[0]!r}; its parts are {', '.join(PARTS)}")
    found = [each for each in config.retrievers.values() if isinstance(each, MassToolSettings) and each.train]
    if len(found) != 1 or found[0].train is None:
        raise BadInput("an ablation needs a config with one retriever of kind masstool that is trained")
    train = replace(found[0].train, again=False)
    settings = replace(found[0], train=train)
    data = apply_protocol(load_dataset(train.data[0].path), train.protocol)
    order = sorted(data.split(split))
    gold = [data.split(split)[query] for query in order]
    [lesson] = labelled_set(train, config.text)
    work = Path(f"{config.index}-ablation")
    work.mkdir(parents=True, exist_ok=True)
    plain = Encoder(context.find_model(settings.model), settings.batch_size, context.device)
    encoder: Encoder = context.encoders.setdefault(plain.fingerprint, plain)
    names = {"MassTool", *(f"without-{name}" for name in PARTS)}
    same_run(work, encoder, lesson, settings, {"run.json", "tuning", *names})
    if train.encoder is not None:
        encoder = Encoder(
            tune_encoder(lesson, settings, encoder, work / "tuning", context), settings.batch_size, context.device
        )
    lessons = embedded(lesson, encoder, context)
    texts = [clean(data.queries[query].text) for query in order]
    asked = torch.from_numpy(np.array(embed(encoder, texts, context, "queries")))
    values = {"encoder alone": values_of(asked @ lessons.tools.T, lesson.ids, gold)}
    variants = {"MassTool": settings.modules} | {
        f"without {name}": left_out(settings.modules, name) for name in without or PARTS
    }
    # As served the pool holds the dev queries, too: asked themselves, they would find their own answers there.
    pool = replace(lessons, dev=lessons.dev[:0], dev_gold=()) if split == "dev" else lessons
    for name, modules in variants.items():
        place = work / name.replace(" ", "-")
        place.mkdir(parents=True, exist_ok=True)
        heads, _ = learn(
            lessons, replace(settings, modules=modules), place, check_device(context.device), context.show_progress
        )
        values[name] = values_of(scores(heads, pool, asked).cpu(), lesson.ids, gold)
    shutil.rmtree(work, ignore_errors=True)
    return {name: row(each, values["MassTool"]) for name, each in values.items()}


def left_out(modules: Modules, part: str) -> Modules:
    """The modules without one of them."""
    return replace(modules, **{part: getattr(PARTS[part], part)})


def values_of(found: torch.Tensor, ids: Sequence[str], gold: Sequence[frozenset[str]]) -> dict[str, np.ndarray]:
    """Per-query metrics of scores (queries, tools)."""
    best = found.topk(min(100, found.shape[1])).indices.tolist()
    judged = judge([[ids[row] for row in rows] for rows in best], gold)
    return {metric: measure(metric, judged) for metric in METRICS}


def row(values: Mapping[str, np.ndarray], whole: Mapping[str, np.ndarray]) -> Row:
    """Means, with p of the difference from the whole."""
    differences = np.stack([values[metric] - whole[metric] for metric in METRICS], axis=1)
    p = randomisation_test(differences)
    means = {metric: round(float(values[metric].mean()), 4) for metric in METRICS}
    return means | {f"p {metric}": round(float(p[place]), 4) for place, metric in enumerate(METRICS)}


def table(rows: Mapping[str, Row]) -> str:
    """For the terminal; * marks a difference from the whole with p < .05."""
    width = max(map(len, rows))
    lines = [" " * width + "  " + "  ".join(f"{metric:>9}" for metric in METRICS)]
    for name, each in rows.items():
        cells = [f"{each[metric]:.4f}{'*' if each[f'p {metric}'] < 0.05 else ' '}" for metric in METRICS]
        lines.append(f"{name:<{width}}  " + "  ".join(f"{cell:>9}" for cell in cells))
    return "\n".join(lines)
