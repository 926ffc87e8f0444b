"""Is there anything to gain? What scored samples say before anybody burns hours, in figures and in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rewrite.align.pairs import pairs_of
from rewrite.align.samples import EVEN, Sample
from rewrite.align.settings import PairSettings

MAJORITY = 0.5
LITTLE = 0.02
"""A difference of rewards that is not worth an hour."""
NOTHING_LACKS = (
    "no target was said to other queries that a further line would help, so there are no pairs; ask more queries "
    "(`queries`), draw more answers, or those of a policy that is wrong more often"
)


@dataclass(frozen=True, slots=True)
class Probe:
    """Means over queries."""

    queries: int
    too_long: int
    answers: int
    parsed: float
    finished: float
    """The share of answers that no cap ended."""
    distinct: float
    """The share of a query's answers that differ."""
    raw: float
    """Leaving every query alone."""
    mean: float
    best: float
    """The best of a query's answers."""
    oracle: float
    """The target, written perfectly."""
    no_spread: float
    """The share of queries all of whose answers earn the same."""
    pairs: int
    pairs_per_query: float
    hopeless: bool
    verdict: str


def probe(samples: Sequence[Sample], pairing: PairSettings, completed: int = 0) -> Probe:
    """The figures of samples, and what they mean; `completed`: pairs that were made of all of them together."""
    asked = [sample.own for sample in samples if sample.answers]
    if not asked:
        said = "no query leaves room for an answer; set a smaller samples.most_tokens or show fewer candidates"
        return Probe(0, len(samples), 0, *(0.0,) * 8, 0, 0.0, True, said)
    pairs = sum(len(pairs_of(sample, pairing)) for sample in samples) + completed
    figures = {
        "parsed": fmean(fmean(sample.readable) for sample in asked),
        "finished": fmean(fmean(sample.finished) for sample in asked),
        "distinct": fmean(len(set(sample.answers)) / len(sample.answers) for sample in asked),
        "raw": fmean(sample.raw for sample in asked),
        "mean": fmean(fmean(sample.rewards) for sample in asked),
        "best": fmean(max(sample.rewards) for sample in asked),
        "oracle": fmean(sample.oracle for sample in asked),
        "no_spread": fmean(max(sample.rewards) - min(sample.rewards) <= EVEN for sample in asked),
    }
    figures = {name: round(value, 6) for name, value in figures.items()}
    answers = len(asked[0].answers)
    hopeless, verdict = _verdict(figures, answers, pairs, len(asked))
    if not pairs and figures["parsed"] >= MAJORITY and pairing.completed and not pairing.most + pairing.joined:
        verdict = NOTHING_LACKS
    left = len(samples) - len(asked)
    return Probe(len(asked), left, answers, **figures, pairs=pairs, pairs_per_query=round(pairs / len(asked), 4),
                 hopeless=hopeless, verdict=verdict)  # fmt: skip


def _verdict(figures: dict[str, float], answers: int, pairs: int, queries: int) -> tuple[bool, str]:
    """Whether training would be in vain, and why."""
    mean, best, raw = figures["mean"], figures["best"], figures["raw"]
    if figures["parsed"] < MAJORITY:
        return True, (
            f"the majority of answers cannot be parsed ({figures['parsed']:.0%} can): the policy does not know the "
            "format yet; fine-tune it first with `rewrite-train sft`, or lower the temperature"
        )
    if figures["no_spread"] >= 1 and not pairs:
        return True, (
            f"no query has spread: all {answers} answers of each earn the same, so there is nothing to prefer; raise "
            "the temperature or the number of answers, or add rank@5 to the reward's terms"
        )
    if pairs == 0:
        return True, f"no query has answers as far apart as the margin, so there are no pairs; lower pairing.margin ({mean:.3f} mean, {best:.3f} best)"  # fmt: skip # noqa: E501
    if figures["no_spread"] >= 1:
        return False, (
            f"by the answers put together or completed alone: all {answers} drawn ones of a query earn the same, "
            f"{mean:.3f} on average, and {pairs} pairs hold one that earns more or less"
        )
    share = 1 - figures["no_spread"]
    told = f"best of {answers} earns {best:.3f}, the mean answer {mean:.3f}, leaving the query alone {raw:.3f}"
    if best <= raw + LITTLE:
        return False, f"hardly: even the {told}; better targets or another retriever would help more"
    if best - mean < LITTLE:
        return False, f"hardly: {told}; raise the temperature, or take a reward with a denser signal"
    return False, f"yes: {told}, and {share:.0%} of {queries} queries have spread ({pairs} pairs)"
