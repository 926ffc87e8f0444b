"""MassTool's figures in one run: seeds x (encoder alone, whole, without each part), detection by source, seconds.

python benchmarks/masstool_table.py CONFIG [--seeds 0 1 2] [--set KEY=VALUE ...] [--no-ablation] [--out results.json]
    --dev      dev metrics only, the test queries are not looked at: for choosing settings
    --dense    tunes the encoder as a dense index does, too, and compares: is MassTool ever below it?
    --keep F   leaves the tuned encoder of the last seed in F, for a config that names it as its model

Needs torch, transformers and sentence-transformers; with `encoder: {how: joint}` (--set
retrievers.masstool.train.encoder.how=joint) nothing else, with `first` or --dense also datasets and accelerate. No
index is written: a test holds that an index answers with the same scores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.data.dataset import load_dataset
from pipelines.data.labels import Label, load_labels
from pipelines.data.splits import apply_protocol
from pipelines.data.training_sets import labelled_set
from pipelines.detection import Detection, score_detections
from pipelines.index.ablation import PARTS, left_out, row, table, values_of
from pipelines.index.build import IndexConfig
from retrievers.dense.encoder import Encoder, check_device
from retrievers.kind import Context
from retrievers.masstool.model import Heads
from retrievers.masstool.offline_scores import scores
from retrievers.masstool.settings import Beside, MassToolSettings, MassToolTraining
from retrievers.masstool.training.again import learn_again
from retrievers.masstool.training.epochs import learn
from retrievers.masstool.training.pipeline import embedded, tune_encoder
from retrievers.text import clean
from retrievers.training_set import TrainingSet

STEPS = 6
"""Queries in one long request."""
AGAIN = "learned again"
"""Beside the others: what an index has where the config says `again`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The queries of the split that figures are taken of."""

    texts: list[str]
    gold: list[frozenset[str]]

    def vectors(self, encoder: Encoder) -> torch.Tensor:
        """As this encoder has them."""
        return torch.from_numpy(np.array(encoder.queries(self.texts)))


def asked_of(train: MassToolTraining, split: str) -> Asked:
    """The queries of a split under the config's protocol."""
    data = apply_protocol(load_dataset(train.data[0].path), train.protocol)
    order = sorted(data.split(split))
    return Asked([clean(data.queries[query].text) for query in order], [data.split(split)[query] for query in order])


def one_seed(config: IndexConfig, settings: MassToolSettings, options: argparse.Namespace) -> dict[str, Any]:
    """Everything of one seed; the settings hold it."""
    assert settings.train is not None
    train, context = settings.train, replace(make_context(options.device, show_progress=False), cache=None)
    asked = asked_of(train, "dev" if options.dev else "test")
    [lesson] = labelled_set(train, config.text)
    encoder = base = Encoder(context.find_model(settings.model), settings.batch_size, context.device)
    found: dict[str, Any] = {"split": "dev" if options.dev else "test", "seconds": {}}
    values: dict[str, dict[str, np.ndarray]] = {}
    with tempfile.TemporaryDirectory(prefix="masstool-table-") as scratch:
        if options.dense and train.encoder is not None:
            with timed(found, "dense"):
                values["dense, tuned"] = dense(lesson, settings, base, Path(scratch) / "dense", context, asked)
        if train.encoder is not None:
            with timed(found, "encoder"):
                folder = tune_encoder(lesson, settings, base, Path(scratch) / "tuning", context)
            found["encoder"] = json.loads((folder / "training.json").read_text())
            encoder = Encoder(folder, settings.batch_size, context.device)
            if options.keep:
                shutil.copytree(folder, options.keep, dirs_exist_ok=True)
        with timed(found, "vectors"):
            lessons, vectors = embedded(lesson, encoder, context), asked.vectors(encoder)
        values["encoder alone"] = values_of(vectors @ lessons.tools.T, lesson.ids, asked.gold)
        variants = {"MassTool": settings.modules}
        if not options.no_ablation:
            variants |= {f"without {name}": left_out(settings.modules, name) for name in PARTS}
        for name, modules in variants.items():
            with timed(found, name):
                changed = replace(settings, modules=modules)
                heads, facts = learn(lessons, changed, None, check_device(options.device), False)
                # On dev the queries are not in the pool: they would answer themselves.
                pool = replace(lessons, dev=lessons.dev[:0], dev_gold=()) if options.dev else lessons
                values[name] = values_of(scores(heads, pool, vectors).cpu(), lesson.ids, asked.gold)
            if name == "MassTool":
                found["training"] = facts
                found["detection"] = {} if options.dev else by_source(heads, facts, encoder, train.labels)
        if train.again and not options.dev:
            with timed(found, "again"):
                facts = {**found["training"], "encoder": found.get("encoder")}
                done = learn_again(lesson, settings, base, facts, Path(scratch) / "again", context)
                pool = replace(done.lessons, dev=done.lessons.dev[:0], dev_gold=())
                values[AGAIN] = values_of(
                    scores(done.heads, pool, asked.vectors(done.encoder)).cpu(), lesson.ids, asked.gold
                )
            found["again"] = done.facts["again"]
            found["detection again"] = by_source(done.heads, done.facts, done.encoder, train.labels)
    found["rows"] = {name: row(each, values["MassTool"]) for name, each in values.items()}
    print(table(found["rows"]), flush=True)
    return found


@contextmanager
def timed(found: dict[str, Any], name: str) -> Iterator[None]:
    """Notes how long something took."""
    began = time.perf_counter()
    yield
    found["seconds"][name] = round(time.perf_counter() - began, 2)


def dense(
    lesson: TrainingSet, settings: MassToolSettings, base: Encoder, work: Path, context: Context, asked: Asked
) -> dict[str, np.ndarray]:
    """What a dense index with the same wishes for its tuning answers."""
    assert settings.train is not None
    assert settings.train.encoder is not None
    plain = replace(settings.train.encoder, how="first", beside=Beside())
    wanted = replace(settings, train=replace(settings.train, encoder=plain))
    encoder = Encoder(tune_encoder(lesson, wanted, base, work, context), settings.batch_size, context.device)
    tools = torch.from_numpy(np.array(encoder.documents(lesson.documents)))
    return values_of(asked.vectors(encoder) @ tools.T, lesson.ids, asked.gold)


@torch.no_grad()
def by_source(heads: Heads, facts: dict[str, Any], encoder: Encoder, folders: tuple[str, ...]) -> dict[str, Any]:
    """How well the test queries of the labels are told apart, at the threshold that dev chose."""
    if not facts["detection"]:
        return {}
    edge, told = facts["detection"]["threshold"], {}
    for folder in folders:
        tests = load_labels(folder).split("test")
        for labels in filter(None, (tests, long_requests(tests))):
            texts = [clean(each.text) for each in labels]
            vectors = torch.from_numpy(np.array(encoder.queries(texts)))
            likely = heads.likely(vectors.to(heads.shares.device), texts).tolist()
            for each in score_detections(labels, [Detection(value >= edge, value, edge) for value in likely]):
                name = f"{folder}: {each.source}" if labels is tests else f"{folder}, {STEPS} in one: {each.source}"
                shares = {"kept": each.kept, "refused": each.refused, "balanced": each.balanced}
                told[name] = {"needing": each.needing, "others": each.others, **shares}
                print(name, shares, flush=True)
    return {"threshold": edge, "sources": told}


def long_requests(labels: Sequence[Label]) -> list[Label]:
    """Requests of many steps, as agents get them: six of one source's queries that need a tool, one after the other."""
    found = []
    for source in sorted({each.source for each in labels if each.needs}):
        texts = [each.text for each in labels if each.needs and each.source == source]
        for start in range(0, len(texts) - STEPS + 1, STEPS):
            text = " Then: ".join(texts[start : start + STEPS])
            found.append(Label(f"long-{source}-{start}", text, True, source))
    return found


def main() -> None:
    """All seeds, written as they come."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--no-ablation", action="store_true")
    parser.add_argument("--dev", action="store_true")
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    config = configs.load(options.config, IndexConfig, options.set)
    settings = next(each for each in config.retrievers.values() if isinstance(each, MassToolSettings) and each.train)
    results = {}
    for seed in options.seeds:
        assert settings.train is not None
        seeded = replace(settings, train=replace(settings.train, seed=seed))
        results[str(seed)] = one_seed(config, seeded, options)
        if options.out:
            options.out.write_text(json.dumps({"config": str(options.config), "seeds": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
