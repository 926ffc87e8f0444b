"""Probe: what scored samples promise before hours of training, in figures and one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rewrite.align.pairs import make_pairs
from rewrite.align.samples import EQUAL, ScoredSample
from rewrite.align.settings import PairSettings

MAJORITY = 0.5
LITTLE = 0.02
"""A difference in reward that is not worth an hour of training."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Means over queries, and the verdict."""

    queries: int
    too_long: int
    answers: int
    parsed: float
    finished: float
    """Share of answers that were not cut at the token limit."""
    distinct: float
    """Share of a query's answers that differ."""
    raw: float
    """Reward of leaving every query alone."""
    mean: float
    best: float
    """Reward of the best of a query's answers."""
    oracle: float
    """Reward of the target."""
    no_spread: float
    """Share of queries whose answers all earn the same."""
    pairs: int
    pairs_per_query: float
    hopeless: bool
    verdict: str


def probe(samples: Sequence[ScoredSample], pairing: PairSettings | None) -> Probe:
    """Summarizes samples and judges whether training on them is worth it; `pairing` is None without pairs."""
    answered = [sample for sample in samples if sample.answers]
    if not answered:
        verdict = "no query leaves room for an answer; set a smaller samples.max_tokens or show fewer candidates"
        return Probe(0, len(samples), 0, *(0.0,) * 8, 0, 0.0, True, verdict)
    pairs = None if pairing is None else len(make_pairs(samples, pairing))
    figures = {
        "parsed": fmean(fmean(sample.readable) for sample in answered),
        "finished": fmean(fmean(sample.finished) for sample in answered),
        "distinct": fmean(len(set(sample.answers)) / len(sample.answers) for sample in answered),
        "raw": fmean(sample.raw for sample in answered),
        "mean": fmean(fmean(sample.rewards) for sample in answered),
        "best": fmean(max(sample.rewards) for sample in answered),
        "oracle": fmean(sample.oracle for sample in answered),
        "no_spread": fmean(max(sample.rewards) - min(sample.rewards) <= EQUAL for sample in answered),
    }
    figures = {name: round(value, 6) for name, value in figures.items()}
    answers = len(answered[0].answers)
    hopeless, verdict = _verdict(figures, answers, pairs, len(answered))
    return Probe(
        len(answered),
        len(samples) - len(answered),
        answers,
        **figures,
        pairs=pairs or 0,
        pairs_per_query=round((pairs or 0) / len(answered), 4),
        hopeless=hopeless,
        verdict=verdict,
    )


def _verdict(figures: dict[str, float], answers: int, pairs: int | None, queries: int) -> tuple[bool, str]:
    """True where training would be in vain, and the reason."""
    mean, best, raw = figures["mean"], figures["best"], figures["raw"]
    if figures["parsed"] < MAJORITY:
        return True, (
            f"the majority of answers cannot be parsed ({figures['parsed']:.0%} can): the policy does not know the "
            "format yet; fine-tune it first with `rewrite-train sft`, or lower the temperature"
        )
    if figures["no_spread"] >= 1 and not pairs:
        return True, (
            f"no query has spread: all {answers} answers to each earn the same, so there is nothing to prefer; raise "
            "the temperature or the number of answers, or add rank@5 to the reward's terms"
        )
    if pairs == 0:
        return True, (
            "no query has answers as far apart as the margin, so there are no pairs; lower pairing.margin "
            f"({mean:.3f} mean, {best:.3f} best)"
        )
    summary = f"best of {answers} earns {best:.3f}, the mean answer {mean:.3f}, leaving the query alone {raw:.3f}"
    if best <= raw + LITTLE:
        return False, f"hardly: even the {summary}; better targets or another retriever would help more"
    if best - mean < LITTLE:
        return False, f"hardly: {summary}; raise the temperature, or take a reward with a denser signal"
    made = "" if pairs is None else f" ({pairs} pairs)"
    return False, f"yes: {summary}, and {1 - figures['no_spread']:.0%} of {queries} queries have spread{made}"
