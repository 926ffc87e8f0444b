"""MassTool's figures in one run: seeds x (encoder alone, whole, without each part), detection by source, seconds.

python benchmarks/masstool_table.py CONFIG [--seeds 0 1 2] [--set KEY=VALUE ...] [--no-ablation] [--out results.json]

Needs torch, transformers and sentence-transformers; with `encoder: {how: joint}` (--set
retrievers.masstool.train.encoder.how=joint) nothing else, with `first` also datasets and accelerate. No index is
written: a test holds that an index answers with the same scores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipelines import config as configs
from pipelines.ablation import PARTS, left_out, row, table, values_of
from pipelines.data import load_dataset
from pipelines.detecting import Detection, tell
from pipelines.index import IndexConfig, make_context
from pipelines.labels import load_labels
from pipelines.protocols import apply_protocol
from pipelines.training_sets import labelled_set
from retrievers.encoder import Encoder, check_device
from retrievers.masstool.asking import scores
from retrievers.masstool.learning import embedded, tune_encoder
from retrievers.masstool.losses import probabilities
from retrievers.masstool.model import Heads
from retrievers.masstool.settings import MassToolSettings
from retrievers.masstool.train import learn
from retrievers.text import clean


def one_seed(config: IndexConfig, settings: MassToolSettings, ablating: bool, device: str | None) -> dict[str, Any]:
    """Everything of one seed; the settings hold it."""
    assert settings.train is not None
    train, context = settings.train, make_context(device, show_progress=True)
    data = apply_protocol(load_dataset(train.data[0].path), train.protocol)
    order = sorted(data.split("test"))
    gold = [data.split("test")[query] for query in order]
    [lesson] = labelled_set(train, config.text)
    encoder = Encoder(context.find_model(settings.model), settings.batch_size, context.device)
    found: dict[str, Any] = {"seconds": {}}
    with tempfile.TemporaryDirectory(prefix="masstool-table-") as scratch:
        if train.encoder is not None:
            began = time.perf_counter()
            folder = tune_encoder(lesson, settings, encoder, Path(scratch) / "tuning", context)
            found["encoder"] = json.loads((folder / "training.json").read_text())
            encoder = Encoder(folder, settings.batch_size, context.device)
            found["seconds"]["encoder"] = time.perf_counter() - began
        began = time.perf_counter()
        lessons = embedded(lesson, encoder, replace(context, cache=None))
        asked = torch.from_numpy(np.array(encoder.queries([clean(data.queries[query].text) for query in order])))
        found["seconds"]["vectors"] = time.perf_counter() - began
        values = {"encoder alone": values_of(asked @ lessons.tools.T, lesson.ids, gold)}
        variants = {"MassTool": settings.modules}
        if ablating:
            variants |= {f"without {name}": left_out(settings.modules, name) for name in PARTS}
        for name, modules in variants.items():
            place = Path(scratch) / name.replace(" ", "-")
            place.mkdir()
            began = time.perf_counter()
            heads, facts = learn(lessons, replace(settings, modules=modules), place, check_device(device), True)
            found["seconds"][name] = time.perf_counter() - began
            values[name] = values_of(scores(heads, lessons, asked).cpu(), lesson.ids, gold)
            if name == "MassTool":
                found["training"] = facts
                found["detection"] = by_source(heads, facts, encoder, train.labels)
    found["rows"] = {name: row(each, values["MassTool"]) for name, each in values.items()}
    print(table(found["rows"]), flush=True)
    return found


@torch.no_grad()
def by_source(heads: Heads, facts: dict[str, Any], encoder: Encoder, folders: tuple[str, ...]) -> dict[str, Any]:
    """How well the test queries of the labels are told apart, at the threshold that dev chose."""
    if not facts["detection"]:
        return {}
    edge, told = facts["detection"]["threshold"], {}
    for folder in folders:
        labels = load_labels(folder).split("test")
        vectors = torch.from_numpy(np.array(encoder.queries([clean(each.text) for each in labels])))
        likely = probabilities(heads.needs(vectors.to(heads.shares.device))).tolist()
        verdicts = [Detection(each >= edge, each, edge) for each in likely]
        for each in tell(labels, verdicts):
            told[f"{folder}: {each.source}"] = {
                "needing": each.needing,
                "others": each.others,
                "kept": each.kept,
                "refused": each.refused,
                "balanced": each.balanced,
            }
            print(f"{each.source}: kept {each.kept}, turned away {each.refused}, balanced {each.balanced}", flush=True)
    return {"threshold": edge, "sources": told}


def main() -> None:
    """All seeds, written as they come."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--no-ablation", action="store_true")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    config = configs.load(options.config, IndexConfig, options.set)
    settings = next(each for each in config.retrievers.values() if isinstance(each, MassToolSettings) and each.train)
    results = {}
    for seed in options.seeds:
        assert settings.train is not None
        seeded = replace(settings, train=replace(settings.train, seed=seed))
        results[str(seed)] = one_seed(config, seeded, not options.no_ablation, options.device)
        if options.out:
            options.out.write_text(json.dumps({"config": str(options.config), "seeds": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
