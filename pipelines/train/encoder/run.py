"""`rewrite-train encoder`: leave groups of catalogues out, choose the blend on them, train on all."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipelines import config as configs
from pipelines.models import cache_folder, find_model
from pipelines.runs import as_json, environment, write_files
from pipelines.train.encoder.choice import BlendScore, score_blends
from pipelines.train.encoder.evaluation import CHOICE, QueryScores, SetJudge, mean_scores
from pipelines.train.encoder.report import encoder_page
from pipelines.train.encoder.sets import EncoderSet, load_sets
from pipelines.train.encoder.settings import CompactForm, EncoderConfig
from pipelines.train.run_folder import alone
from retrievers.errors import BadInput
from retrievers.files import disk_room
from retrievers.kind import Context
from retrievers.progress import say

SCORES = "scores.npz"


def leave_out(config: EncoderConfig, group: str, context: Context) -> Path:
    """Train without one group and evaluate every blend on it; return the run's folder. A finished one is kept."""
    from pipelines.train.encoder.training import tune_encoder

    folder = Path(config.output) / f"without-{group}"
    with alone(folder), disk_room(folder):
        sources = [source for name, own in config.groups.items() if name != group for source in own]
        sets = load_sets(sources, config, to_train=True)
        left_out = load_sets(config.groups[group], config, to_train=False)
        begin(folder, replace(config, leave_out=group, judged=(), blend=None, form=CompactForm()))
        tuned = tune_encoder(find_model(config.base), sets, config, folder, context)
        if not (folder / "metrics.json").exists():
            scores = evaluate(blend_forms(tuned, config), left_out, context, config.training.freeze)
            write_scores(folder, {"group": group}, scores, left_out)
    return folder


def begin(folder: Path, config: EncoderConfig) -> None:
    """Write config and environment; figures of another config are deleted, and weights of another one not reused."""
    stored = folder / "config.yaml"
    if stored.exists() and stored.read_text(encoding="utf-8") != configs.dump(config):
        (folder / "metrics.json").unlink(missing_ok=True)
    write_files(folder, {"config.yaml": configs.dump(config), "environment.json": as_json(environment())})


def evaluate(
    forms: Mapping[str, Callable[[], Any]], sets: Sequence[EncoderSet], context: Context, frozen: Sequence[str]
) -> dict[str, dict[str, QueryScores]]:
    """Data set, form of the encoder -> scores per query. Each form is loaded when it is needed.

    `frozen`: weights that all forms share.
    """
    from retrievers.dense.encoder import check_device

    scores: dict[str, dict[str, QueryScores]] = {}
    for data in sets:
        judge = SetJudge(next(iter(forms.values()))(), data, check_device(context.device), frozen)
        scores[data.name] = {name: judge(load()).scores for name, load in forms.items()}
        line = ", ".join(f"{name} {own['dense'][CHOICE].mean():.3f}" for name, own in scores[data.name].items())
        say(f"{data.name}: {CHOICE} by blend: {line}", context.show_progress)
    return scores


def blend_forms(tuned: Any, config: EncoderConfig) -> dict[str, Callable[[], Any]]:
    """A loader per blend."""
    return {f"{blend:g}": partial(tuned.blend, blend) for blend in sorted(set(config.blends))}


def write_scores(
    folder: Path, facts: dict[str, Any], scores: dict[str, dict[str, QueryScores]], sets: Sequence[EncoderSet]
) -> dict[str, Any]:
    """Write scores per query, then their means with `facts`; return the latter."""
    arrays = {
        f"{name}|{form}|{system}|{metric}": values.astype(np.float32)
        for name, forms in scores.items()
        for form, systems in forms.items()
        for system, own in systems.items()
        for metric, values in own.items()
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    part = folder / f".part-{SCORES}"
    part.write_bytes(buffer.getvalue())
    os.replace(part, folder / SCORES)
    sizes = {data.name: {"tools": len(data.ids), "queries": len(data.judged)} for data in sets}
    means = {
        name: sizes[name] | {"scores": {form: mean_scores(own) for form, own in forms.items()}}
        for name, forms in scores.items()
    }
    metrics = facts | {"sets": means}
    write_files(folder, {"metrics.json": as_json(metrics)})
    return metrics


def choose_blend(config: EncoderConfig) -> list[BlendScore]:
    """Score the blends on all left-out sets; the chosen one first. Empty where a group has not been left out yet."""
    recalls: dict[str, dict[float, np.ndarray]] = {}
    for group in config.groups:
        folder = Path(config.output) / f"without-{group}"
        if not (folder / "metrics.json").exists():
            return []
        with np.load(folder / SCORES, allow_pickle=False) as arrays:
            for key in arrays.files:
                name, blend, system, metric = key.split("|")
                if system == "dense" and metric == CHOICE:
                    recalls.setdefault(name, {})[float(blend)] = arrays[key]
    return score_blends(recalls, config.max_loss)


def final(config: EncoderConfig, context: Context) -> dict[str, Any]:
    """Train on all groups, write the adapter, and evaluate it on the judged sets; return the metrics."""
    from pipelines.train.encoder.training import TUNED, load_encoder, tune_encoder
    from retrievers.dense.adapter import compact, weights_hash, write_adapter

    choices = choose_blend(config)
    blend = config.blend if config.blend is not None else choices[0].blend if choices else None
    if blend is None:
        raise BadInput(
            f"no blend is chosen: run the same command with --leave-one-out first, or set `blend` "
            f"({config.output} lacks runs without some groups)"
        )
    folder, base = Path(config.output) / "final", find_model(config.base)
    with alone(folder), disk_room(folder):
        sets = load_sets([source for own in config.groups.values() for source in own], config, to_train=True)
        judged = load_sets(config.judged, config, to_train=False)
        begin(folder, config)
        tuned = tune_encoder(base, sets, config, folder, context)
        if (folder / "metrics.json").exists():
            stored: dict[str, Any] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
            return stored
        facts: dict[str, Any] = {"blend": blend, "blends": [asdict(choice) for choice in choices]}
        arrays = compact(base, folder / TUNED, blend, config.form.rank, config.form.bits)
        card = {
            "base": config.base,
            "base_weights": weights_hash(base),
            "sets": [
                {"name": data.name, "licence": data.licence, "queries": len(data.training.train)} for data in sets
            ],
            "training": asdict(config.training) | {"seed": config.seed, "blend": blend},
            "form": asdict(config.form),
            "left_out": [asdict(choice) for choice in choices if choice.blend in (0.0, blend)],
            "environment": environment(),
        }
        encoder = Path(config.output) / "encoder"
        facts["bytes"] = write_adapter(encoder, arrays, card)
        adapter = load_encoder(find_model(str(encoder)), context.device)
        forms = blend_forms(tuned, config) | {"adapter": lambda: adapter}
        metrics = write_scores(folder, facts, evaluate(forms, judged, context, config.training.freeze), judged)
        write_files(folder, {"report.html": encoder_page(Path(config.output), metrics)})
    return metrics


def describe(config: EncoderConfig) -> Iterator[str]:
    """Lines about the work that a config asks for: sets, queries, and shares of the steps."""
    from retrievers.dense.tuning.mixture import set_shares

    named = [(group, source) for group, own in config.groups.items() for source in own]
    sets = load_sets([source for _, source in named], config, to_train=True)
    shares = set_shares([len(data.training.train) for data in sets], config.training.mixture)
    for (group, _), data, share in zip(named, sets, shares, strict=True):
        counts = f"{len(data.ids):,} tools, {len(data.training.train):,} queries"
        yield f"{group}: {data.name}, {counts}, {share:.1%} of the steps"
    training = config.training
    texts = training.steps * training.batch_size * (2 + training.negatives)
    yield (
        f"{training.steps:,} steps and at most {texts:,} texts per training; "
        f"{len(config.groups)} trainings with --leave-one-out, 1 without; cache: {cache_folder()}"
    )
