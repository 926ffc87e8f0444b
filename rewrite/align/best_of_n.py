"""Best of n: the model learns from the best of its own answers. Cheap, and what every other algorithm must beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from rewrite.align.aligned import Goal, Leg, kept
from rewrite.align.collapse import CollapseWatch
from rewrite.align.samples import Sample
from rewrite.align.settings import BestOfNSettings
from rewrite.errors import Unfit
from rewrite.sft.examples import Example
from rewrite.sft.running import Trained
from rewrite.template import Template
from rewrite.types import Answer


def best_examples(samples: Sequence[Sample], template: Template, settings: BestOfNSettings) -> list[Example]:
    """For every query whose best answer stands out that answer, as an example to learn from."""
    found = []
    for sample in samples:
        able = [place for place, readable in enumerate(sample.readable) if readable]
        if not able:
            continue
        best = max(able, key=lambda place: (sample.rewards[place], -len(sample.answers[place]), -place))
        reward = sample.rewards[best]
        if reward - fmean(sample.rewards) < settings.margin or (settings.beat_raw and reward <= sample.raw):
            continue
        lines = template.parse(Answer(sample.answers[best], 0)).lines
        found.append(Example(sample.id, sample.utterance, lines, (), sample.candidates))
    return found


def train_best_of_n(goal: Goal, leg: Leg, examples: Sequence[Example]) -> Trained:
    """Fine-tunes the policy on examples, as any other; dev is judged before the first step too."""
    from rewrite.sft.train import train

    if not examples:
        raise Unfit("no answer stands out from the others of its query; lower algo.margin, or draw more answers")
    task = replace(goal.task, train=list(examples))
    watch = CollapseWatch(goal.limits)
    trained = train(task, leg.settings, leg.work, leg.resume, leg.progress, leg.cuda, watch)
    return kept(task, leg.settings, trained, watch.start, watch.reason)
