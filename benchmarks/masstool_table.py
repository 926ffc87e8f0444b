"""MassTool's figures in one run: seeds x (encoder alone, whole, without each part), detection by source, seconds.

    python benchmarks/masstool_table.py CONFIG [--seeds 0 1 2] [--set KEY=VALUE ...] [--no-ablation] [--keep FOLDER]
        [--paper [NAME ...]]

Writes no index: a test holds that an index answers with the same scores. --keep leaves the tuned encoder of the last
seed in FOLDER, for a config that names it as its model. --paper adds a row per deviation from the paper with the
paper's form in its place (masstool_paper.py), all or those named, on the same vectors.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import make_parser, write_json
from masstool_paper import DETECTOR_ONLY, paper_form, paper_names

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
from retrievers.masstool.training.detection_threshold import choose_threshold
from retrievers.masstool.training.epochs import train_heads
from retrievers.masstool.training.pipeline import tune_encoder
from retrievers.masstool.training.tensors import LabelledVectors, TrainingTensors, embed_training_set
from retrievers.text import clean

Facts = dict[str, Any]


def run_seed(
    config: IndexConfig, settings: MassToolSettings, options: argparse.Namespace, save: Callable[[Facts], None]
) -> Facts:
    """Train and score everything with the seed in the settings; `save` is called after each row."""
    assert settings.train is not None
    train, context = settings.train, replace(make_context(options.device, show_progress=False), cache=None)
    data = apply_protocol(load_dataset(train.data[0].path), train.protocol)
    gold = data.split("test")
    order = sorted(gold)
    texts, wanted = [clean(data.queries[query].text) for query in order], [gold[query] for query in order]
    [training_set] = labelled_set(train, config.text)
    encoder = Encoder(context.find_model(settings.model), settings.batch_size, context.device, context.cache)
    facts: Facts = {"split": "test", "seconds": {}, "detection": {}}
    with tempfile.TemporaryDirectory(prefix="masstool-table-") as scratch:
        if train.encoder is not None:
            with timed(facts, "encoder"):
                folder = tune_encoder(training_set, settings, encoder, Path(scratch) / "tuning", context)
            facts["encoder"] = json.loads((folder / "training.json").read_text())
            encoder = Encoder(folder, settings.batch_size, context.device, context.cache)
            if options.keep:
                shutil.copytree(folder, options.keep, dirs_exist_ok=True)
        with timed(facts, "vectors"):
            tensors = embed_training_set(training_set, encoder, context)
            vectors = torch.from_numpy(np.array(encoder.queries(texts)))
            labelled = [LabelledTest(folder, encoder) for folder in train.labels]
    values = {"encoder alone": metric_values(vectors @ tensors.tools.T, training_set.ids, wanted)}
    variants = {"MassTool": settings}
    if not options.no_ablation:
        variants |= {
            f"without {name}": replace(settings, modules=without_part(settings.modules, name)) for name in PARTS
        }
    variants |= {name: paper_form(settings, name) for name in paper_names(options.paper)}
    trained: dict[str, Heads] = {}
    for name, changed in variants.items():
        with timed(facts, name):
            given = plain_labels(tensors, changed, config.text) if changed.faithful else tensors
            if name in DETECTOR_ONLY:  # the heads of the whole, trained before
                heads, training = detect_again(trained["MassTool"], given, changed)
            else:
                heads, training = train_heads(given, changed, None, context)
            values[name] = metric_values(offline_scores(heads, given, vectors).cpu(), training_set.ids, wanted)
            facts["detection"][name] = detection_by_source(heads, training, labelled)
        if name == "MassTool":
            facts["training"], trained = training, {name: heads}
        facts["rows"] = {name: summary_row(system, values["MassTool"]) for name, system in values.items()}
        print(name, facts["rows"][name], facts["detection"][name].get("all"), facts["seconds"][name], flush=True)
        save(facts)
    print(format_table(facts["rows"]), flush=True)
    return facts


def detect_again(heads: Heads, tensors: TrainingTensors, settings: MassToolSettings) -> tuple[Heads, Facts]:
    """Trained heads with a detector of other settings: all that training them again would change."""
    assert settings.train is not None
    heads = copy.deepcopy(heads)
    heads.settings, heads.uses_words, heads.word_weights = settings, settings.modules.words, heads.word_weights[:0]
    heads.detection_mix.copy_(torch.tensor([1.0, 0.0]))
    dev = tensors.dev_labels.to(str(heads.scales.device))
    return heads, {"detection": choose_threshold(heads, tensors.labels, dev, settings.train.detection_threshold)}


def plain_labels(tensors: TrainingTensors, settings: MassToolSettings, text: tuple[str, ...]) -> TrainingTensors:
    """The same vectors with the labels as they are, which `faithful` demands: augmentation only adds to them."""
    assert settings.train is not None
    [training_set] = labelled_set(settings.train, text)
    parts = []
    for labels, given in ((training_set.labels, tensors.labels), (training_set.dev_labels, tensors.dev_labels)):
        rows = {query: row for row, query in enumerate(given.texts)}
        kept = [rows[query] for query in labels.queries]
        parts.append(LabelledVectors(given.vectors[kept], given.needs[kept], labels.queries))
    return replace(tensors, labels=parts[0], dev_labels=parts[1])


@contextmanager
def timed(facts: Facts, name: str) -> Iterator[None]:
    """Note the seconds of a block."""
    began = time.perf_counter()
    yield
    facts["seconds"][name] = round(time.perf_counter() - began, 2)


class LabelledTest:
    """Labelled test queries of one folder, encoded once."""

    def __init__(self, folder: str, encoder: Encoder) -> None:
        self.folder, self.labels = folder, load_labels(folder).split("test")
        self.texts = [clean(label.text) for label in self.labels]
        self.vectors = torch.from_numpy(np.array(encoder.queries(self.texts)))


@torch.no_grad()
def detection_by_source(heads: Heads, training: Facts, folders: Sequence[LabelledTest]) -> Facts:
    """Score the labelled test queries source by source, at the threshold of training; `all` has the accuracy too."""
    if not training["detection"]:
        return {}
    threshold, result = training["detection"]["threshold"], {"threshold": training["detection"]["threshold"]}
    for folder in folders:
        probabilities = heads.detect(folder.vectors.to(heads.scales.device), folder.texts).tolist()
        detections = [Detection(value >= threshold, value, threshold) for value in probabilities]
        right = [one.needs_tool == label.needs for one, label in zip(detections, folder.labels, strict=True)]
        for source in score_detections(folder.labels, detections):
            shares = {"kept": source.kept, "refused": source.refused, "balanced": source.balanced}
            result[f"{folder.folder}: {source.source}"] = {"needing": source.needing, "others": source.others, **shares}
        result["all"] = {"accuracy": sum(right) / len(right), **result[f"{folder.folder}: all"]}
    return result


def main() -> None:
    """Run all seeds; the file is written again after each row."""
    parser = make_parser(__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--no-ablation", action="store_true")
    parser.add_argument("--paper", nargs="*", metavar="NAME", help="rows with the paper's form of a part")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--device")
    options = parser.parse_args()
    config = configs.load(options.config, IndexConfig, options.set)
    [settings] = [kind for kind in config.retrievers.values() if isinstance(kind, MassToolSettings) and kind.train]
    results: dict[str, Facts] = {}
    for seed in options.seeds:
        assert settings.train is not None
        seeded = replace(settings, train=replace(settings.train, seed=seed))

        def save(facts: Facts, seed: int = seed) -> None:
            results[str(seed)] = facts
            write_json(options.out, {"config": str(options.config), "seeds": results})

        run_seed(config, seeded, options, save)


if __name__ == "__main__":
    main()
