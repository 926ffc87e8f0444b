"""Learns once more, from train and dev together, as dev chose the first time.

What dev chose (epochs, weights, shares, what is kept) is taken over; nothing is judged by queries that were learned
from. Only the detector's threshold is chosen anew, on labelled texts that neither run has seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retrievers.encoder import Encoder, check_device
from retrievers.kinds import Context
from retrievers.masstool.epochs import learn
from retrievers.masstool.joint import Stop
from retrievers.masstool.learning import embedded, tune_encoder
from retrievers.masstool.lessons import Lessons
from retrievers.masstool.model import Heads
from retrievers.masstool.settings import MassToolSettings
from retrievers.tuning.examples import Examples, Labels, TrainingSet


@dataclass(frozen=True, slots=True)
class Again:
    """The second run."""

    data: TrainingSet
    lessons: Lessons
    tuned: Path | None
    encoder: Encoder
    heads: Heads
    facts: dict[str, Any]
    """Of the first run, which tell what dev saw, with the second one's detector and `again`."""


def learn_again(
    data: TrainingSet,
    settings: MassToolSettings,
    encoder: Encoder,
    first: Mapping[str, Any],
    work: Path,
    context: Context,
) -> Again:
    """In `work`, or going on there. `first` are the facts of the first run, with its encoder's if one was tuned."""
    assert settings.train is not None
    work.mkdir(parents=True, exist_ok=True)
    whole, tuned, reader = together(data), None, encoder
    if settings.train.encoder is not None:
        told = first["encoder"]
        kept = replace(settings.train.encoder, blends=(float(told["blend"]),))
        stop = Stop(int(told["best_epoch"]), str(told["weights"]))
        wanted = replace(settings, train=replace(settings.train, encoder=kept))
        tuned = tune_encoder(whole, wanted, encoder, work / "tuning", context, stop)
        reader = Encoder(tuned, settings.batch_size, context.device)
    lessons = embedded(whole, reader, context)
    heads, found = learn(lessons, settings, work, check_device(context.device), context.show_progress, first)
    facts = {**first, "detection": found["detection"], "again": {"queries": len(whole.train), **found}}
    if tuned:
        facts["again"]["encoder"] = json.loads((tuned / "training.json").read_text())
    return Again(whole, lessons, tuned, reader, heads, facts)


def together(data: TrainingSet) -> TrainingSet:
    """Train and dev in one. Dev's own queries leave the dev labels: they are no strangers any more."""
    seen = set(data.dev.queries)
    kept = [place for place, query in enumerate(data.dev_labels.queries) if query not in seen]
    labels = Labels(
        tuple(data.dev_labels.queries[place] for place in kept), tuple(data.dev_labels.needs[place] for place in kept)
    )
    train = Examples((*data.train.queries, *data.dev.queries), (*data.train.gold, *data.dev.gold))
    return replace(data, train=train, dev_labels=labels)
