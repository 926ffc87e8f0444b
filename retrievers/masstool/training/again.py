"""Learns once more, from train and dev together, as dev chose the first time.

What dev chose (epochs, weights, shares, what is kept) is taken over; nothing is judged by queries that were learned
from. Only the detector's threshold and its share of words are chosen anew, on those dev labels that neither are nor
hold a query of train or dev; where these are not of both kinds, the first run's stand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retrievers.dense.encoder import Encoder, check_device
from retrievers.kind import Context
from retrievers.masstool.encoder.joint_training import Stop
from retrievers.masstool.model import Heads
from retrievers.masstool.settings import MassToolSettings
from retrievers.masstool.training.epochs import learn
from retrievers.masstool.training.pipeline import embedded, tune_encoder
from retrievers.masstool.training.tensors import Lessons
from retrievers.training_set import Examples, Labels, TrainingSet

WORDS = 3
"""By so many first words a text is looked up."""


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
        stop = Stop(int(told["best_epoch"]), str(told["weights"]), float(told["blend"]))
        tuned = tune_encoder(whole, settings, encoder, work / "tuning", context, stop)
        reader = Encoder(tuned, settings.batch_size, context.device)
    lessons = embedded(whole, reader, context)
    heads, found = learn(lessons, settings, work, check_device(context.device), context.show_progress, first)
    facts = {**first, "detection": found["detection"], "again": {"queries": len(whole.train), **found}}
    if tuned:
        facts["again"]["encoder"] = json.loads((tuned / "training.json").read_text())
    return Again(whole, lessons, tuned, reader, heads, facts)


def together(data: TrainingSet) -> TrainingSet:
    """Train and dev in one. Of the dev labels only strangers to both are left."""
    train = Examples((*data.train.queries, *data.dev.queries), (*data.train.gold, *data.dev.gold))
    return replace(data, train=train, dev_labels=strangers(data.dev_labels, train.queries))


def strangers(labels: Labels, known: Sequence[str]) -> Labels:
    """The labels that neither are nor hold one of these texts, word for word; nor end in its first words, as a text
    that was cut off does."""
    starts: dict[tuple[str, ...], set[str]] = {}
    for text in known:
        words = tuple(text.split())
        starts.setdefault(words[:WORDS], set()).add(" ".join(words))

    def strange(text: str) -> bool:
        words = tuple(text.split())
        for place in range(len(words)):
            rest = " ".join(words[place:])
            near = (each for count in range(1, WORDS + 1) for each in starts.get(words[place : place + count], ()))
            if any(f"{rest} ".startswith(f"{each} ") or each.startswith(rest) for each in near):
                return False
        return True

    kept = [pair for pair in zip(labels.queries, labels.needs, strict=True) if strange(pair[0])]
    return Labels(tuple(text for text, _ in kept), tuple(needs for _, needs in kept))
