"""Best of n: the model learns from the best of its own answers. Cheap, and what every other algorithm must beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from rewrite.align.alignment_trainer import Goal, Leg, kept
from rewrite.align.collapse import CollapseWatch
from rewrite.align.samples import EVEN, Sample
from rewrite.align.settings import BestOfNSettings
from rewrite.errors import Unfit
from rewrite.sft.examples import Example
from rewrite.sft.run import Trained
from rewrite.template import Template
from rewrite.types import Answer


def best_examples(samples: Sequence[Sample], template: Template, settings: BestOfNSettings) -> list[Example]:
    """For every query whose best answer stands out that answer, as an example to learn from; or what all voted for."""
    found = []
    for sample in samples:
        place = _voted(sample) if settings.vote else _best(sample, settings.margin)
        if place is None or (settings.beat_raw and sample.rewards[place] <= sample.raw):
            continue
        lines = template.parse(Answer(sample.answers[place], 0)).lines
        found.append(Example(sample.id, sample.utterance, lines, (), sample.candidates))
    return found


def _best(sample: Sample, margin: float) -> int | None:
    able = [place for place, readable in enumerate(sample.readable) if readable]
    if not able:
        return None
    best = max(able, key=lambda place: (sample.rewards[place], -len(sample.answers[place]), -place))
    return best if sample.rewards[best] - fmean(sample.own.rewards) >= margin else None


def _voted(sample: Sample) -> int | None:
    """The answer that was put together, where it is no worse than the mean one; where none could be, since most say
    that the query be left alone, what is said most often."""
    own = sample.own
    if sample.joined:
        return len(own.answers) if sample.rewards[-1] >= fmean(own.rewards) - EVEN else None
    able = [place for place, readable in enumerate(sample.readable) if readable]
    return max(able, key=lambda place: own.answers.count(own.answers[place]), default=None)


def train_best_of_n(goal: Goal, leg: Leg, examples: Sequence[Example]) -> Trained:
    """Fine-tunes the policy on examples, as any other; dev is judged before the first step too."""
    from rewrite.sft.train import train

    if not examples:
        raise Unfit("no answer stands out from the others of its query; lower algo.margin, or draw more answers")
    task = replace(goal.task, train=list(examples))
    watch = CollapseWatch(goal.limits)
    trained = train(task, leg.settings, leg.work, leg.resume, leg.progress, leg.cuda, watch)
    return kept(goal, leg.settings, trained, watch.start, watch.reason)
