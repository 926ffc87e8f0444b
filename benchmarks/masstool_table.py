"""MassTool's figures in one run: seeds x (encoder alone, whole, without each part), detection by source, seconds.

    python benchmarks/masstool_table.py CONFIG [--seeds 0 1 2] [--set KEY=VALUE ...] [--no-ablation] [--keep FOLDER]

Writes no index: a test holds that an index answers with the same scores. --keep leaves the tuned encoder of the last
seed in FOLDER, for a config that names it as its model.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import make_parser, write_json

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.data.dataset import load_dataset
from pipelines.data.labels import load_labels
from pipelines.data.splits import apply_protocol
from pipelines.data.training_sets import labelled_set
from pipelines.detection import Detection, score_detections
from pipelines.evaluate.ablation import PARTS, format_table, metric_values, summary_row, without_part
from pipelines.index.build import IndexConfig
from retrievers.dense.encoder import Encoder
from retrievers.masstool.model import Heads
from retrievers.masstool.offline_scores import offline_scores
from retrievers.masstool.settings import MassToolSettings
from retrievers.masstool.training.epochs import train_heads
from retrievers.masstool.training.pipeline import tune_encoder
from retrievers.masstool.training.tensors import embed_training_set
from retrievers.text import clean

Facts = dict[str, Any]


def run_seed(config: IndexConfig, settings: MassToolSettings, options: argparse.Namespace) -> Facts:
    """Train and score everything with the seed in the settings."""
    assert settings.train is not None
    train, context = settings.train, replace(make_context(options.device, show_progress=False), cache=None)
    data = apply_protocol(load_dataset(train.data[0].path), train.protocol)
    gold = data.split("test")
    order = sorted(gold)
    texts, wanted = [clean(data.queries[query].text) for query in order], [gold[query] for query in order]
    [training_set] = labelled_set(train, config.text)
    encoder = Encoder(context.find_model(settings.model), settings.batch_size, context.device)
    facts: Facts = {"split": "test", "seconds": {}}
    with tempfile.TemporaryDirectory(prefix="masstool-table-") as scratch:
        if train.encoder is not None:
            with timed(facts, "encoder"):
                folder = tune_encoder(training_set, settings, encoder, Path(scratch) / "tuning", context)
            facts["encoder"] = json.loads((folder / "training.json").read_text())
            encoder = Encoder(folder, settings.batch_size, context.device)
            if options.keep:
                shutil.copytree(folder, options.keep, dirs_exist_ok=True)
        with timed(facts, "vectors"):
            tensors = embed_training_set(training_set, encoder, context)
            vectors = torch.from_numpy(np.array(encoder.queries(texts)))
        values = {"encoder alone": metric_values(vectors @ tensors.tools.T, training_set.ids, wanted)}
        variants = {"MassTool": settings.modules}
        if not options.no_ablation:
            variants |= {f"without {name}": without_part(settings.modules, name) for name in PARTS}
        for name, modules in variants.items():
            with timed(facts, name):
                changed = replace(settings, modules=modules)
                heads, training = train_heads(tensors, changed, None, context)
                values[name] = metric_values(offline_scores(heads, tensors, vectors).cpu(), training_set.ids, wanted)
            if name == "MassTool":
                facts["training"] = training
                facts["detection"] = detection_by_source(heads, training, encoder, train.labels)
    facts["rows"] = {name: summary_row(system, values["MassTool"]) for name, system in values.items()}
    print(format_table(facts["rows"]), flush=True)
    return facts


@contextmanager
def timed(facts: Facts, name: str) -> Iterator[None]:
    """Note the seconds of a block."""
    began = time.perf_counter()
    yield
    facts["seconds"][name] = round(time.perf_counter() - began, 2)


@torch.no_grad()
def detection_by_source(heads: Heads, training: Facts, encoder: Encoder, folders: tuple[str, ...]) -> Facts:
    """Score the labelled test queries source by source, at the threshold that dev chose."""
    if not training["detection"]:
        return {}
    threshold, sources = training["detection"]["threshold"], {}
    for folder in folders:
        labels = load_labels(folder).split("test")
        texts = [clean(label.text) for label in labels]
        vectors = torch.from_numpy(np.array(encoder.queries(texts)))
        probabilities = heads.detect(vectors.to(heads.scales.device), texts).tolist()
        detections = [Detection(value >= threshold, value, threshold) for value in probabilities]
        for source in score_detections(labels, detections):
            shares = {"kept": source.kept, "refused": source.refused, "balanced": source.balanced}
            sources[f"{folder}: {source.source}"] = {"needing": source.needing, "others": source.others, **shares}
            print(f"{folder}: {source.source}", shares, flush=True)
    return {"threshold": threshold, "sources": sources}


def main() -> None:
    """Run all seeds; the file is written again after each."""
    parser = make_parser(__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--no-ablation", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--device")
    options = parser.parse_args()
    config = configs.load(options.config, IndexConfig, options.set)
    [settings] = [kind for kind in config.retrievers.values() if isinstance(kind, MassToolSettings) and kind.train]
    results = {}
    for seed in options.seeds:
        assert settings.train is not None
        seeded = replace(settings, train=replace(settings.train, seed=seed))
        results[str(seed)] = run_seed(config, seeded, options)
        write_json(options.out, {"config": str(options.config), "seeds": results})


if __name__ == "__main__":
    main()
