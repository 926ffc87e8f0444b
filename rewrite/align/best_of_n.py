"""Best of n: the model learns from the best of its own answers. Cheap, and the baseline for every other algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from rewrite.align.alignment_trainer import AlignTask, keep_best
from rewrite.align.collapse import CollapseWatch
from rewrite.align.samples import EQUAL, ScoredSample
from rewrite.align.settings import BestOfNSettings
from rewrite.errors import RewriteError
from rewrite.sft.callbacks import log_line
from rewrite.sft.examples import Example
from rewrite.sft.run import RunOptions, TrainingResult
from rewrite.template import Template
from rewrite.types import Answer


def best_examples(samples: Sequence[ScoredSample], template: Template, settings: BestOfNSettings) -> list[Example]:
    """The best answer to every query whose best answer exceeds the mean by the margin, as training examples. An answer
    below 0 is not learned from: with `reward.baseline: raw` it is worse than the raw query."""
    examples, left_alone = [], []
    for sample in samples:
        readable = [index for index, is_readable in enumerate(sample.readable) if is_readable]
        if not readable:
            continue
        best = max(readable, key=lambda index: (sample.rewards[index], -len(sample.answers[index]), -index))
        if settings.abstain and sample.rewards[best] <= sample.raw + EQUAL:
            left_alone.append(_example(sample, ()))
        elif sample.rewards[best] >= 0 and sample.rewards[best] - fmean(sample.rewards) >= settings.margin:
            examples.append(_example(sample, template.parse(Answer(sample.answers[best], 0)).lines))
    number = round(len(examples) * settings.abstain / (1 - settings.abstain))
    return examples + left_alone[:number]


def _example(sample: ScoredSample, lines: tuple[str, ...]) -> Example:
    return Example(sample.id, sample.utterance, lines, (), sample.candidates)


def train_best_of_n(task: AlignTask, options: RunOptions, examples: Sequence[Example]) -> TrainingResult:
    """Fine-tunes the policy on examples; dev is also evaluated before the first step."""
    from rewrite.sft.train import train

    if not examples:
        raise RewriteError("no answer exceeds the mean of its query and 0; lower algo.margin, or draw more answers")
    watch = CollapseWatch(task.limits)
    silent = sum(not example.lines for example in examples)
    log_line(f"{len(examples):,} examples, {silent:,} of them leave the query alone")
    result = train(replace(task.training, train=list(examples)), options, watch)
    return keep_best(task, options.settings, result, watch.start, watch.reason)
