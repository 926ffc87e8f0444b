"""Pairs of answers, one better than the other: made from scored samples, written to disk, read from there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rewrite.align.samples import Sample
from rewrite.align.settings import PairSettings
from rewrite.errors import Unfit
from rewrite.types import Ask

FILE = "pairs.jsonl"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one query."""

    utterance: str
    chosen: str
    rejected: str
    candidates: tuple[str, ...] = ()
    source: str = ""
    id: str = ""
    rewards: tuple[float, ...] = ()
    """Of the chosen and of the rejected one."""

    @property
    def ask(self) -> Ask:
        """What the rewriter was given."""
        return Ask(self.utterance, self.candidates)


def make_pairs(samples: Sequence[Sample], settings: PairSettings) -> list[Pair]:
    """The pairs of all samples."""
    return [pair for sample in samples for pair in pairs_of(sample, settings)]


def pairs_of(sample: Sample, settings: PairSettings) -> list[Pair]:
    """The best with the worst, the second best with the second worst, while they are far enough apart; and those of the
    answer that was put together."""
    own = sample.own
    known: dict[str, tuple[float, bool]] = {}
    for answer, reward, readable in zip(own.answers, own.rewards, own.readable, strict=True):
        known.setdefault(answer.strip(), (reward, readable))
    if settings.target and not sample.target and sample.answers:
        raise Unfit("these answers were drawn before targets stood beside them; draw them again in another output")
    if settings.target and sample.target:
        known.setdefault(sample.target.strip(), (sample.oracle, True))
    order = sorted(known, key=lambda answer: (-known[answer][0], len(answer), answer))
    least = max(settings.least, sample.raw + 1e-9) if settings.beat_raw else settings.least
    good = [answer for answer in order if known[answer][1] and known[answer][0] >= least]
    bad = [answer for answer in reversed(order) if known[answer][1] or not settings.readable]
    pairs: list[Pair] = []
    for chosen, rejected in zip(good, bad, strict=False):
        rewards = (known[chosen][0], known[rejected][0])
        if len(pairs) == settings.most or rewards[0] - rewards[1] < settings.margin:
            break
        if _alike(chosen, rejected, settings.longer):
            pairs.append(_pair(sample, chosen, rejected, rewards))
    return [*pairs, *_joined(sample, settings, least)]


def _joined(sample: Sample, settings: PairSettings, least: float) -> list[Pair]:
    """The answer that was put together, with others as they were drawn: with what the policy usually writes."""
    if not sample.joined:
        return []
    *rewards, reward = sample.rewards
    together = sample.answers[-1].strip()
    pairs: dict[str, Pair] = {}
    for answer, earned, readable in zip(sample.answers, rewards, sample.readable, strict=False):
        other = answer.strip()
        better = reward > earned
        fit = max(reward, earned) >= least and (readable or (better and not settings.readable))
        new = other not in pairs and other != together
        if len(pairs) < settings.joined and fit and abs(reward - earned) >= settings.margin and new:
            chosen, rejected = (together, other) if better else (other, together)
            if _alike(chosen, rejected, settings.longer):
                pairs[other] = _pair(sample, chosen, rejected, (max(reward, earned), min(reward, earned)))
    return list(pairs.values())


def _pair(sample: Sample, chosen: str, rejected: str, rewards: tuple[float, float]) -> Pair:
    return Pair(sample.utterance, chosen, rejected, sample.candidates, sample.source, sample.id, rewards)


def _alike(one: str, other: str, most: float) -> bool:
    long, short = max(len(one), len(other)), min(len(one), len(other))
    return not most or long <= most * max(1, short)


def write_pairs(pairs: Sequence[Pair]) -> str:
    """The content of a pairs file."""
    return "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in pairs)


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file, or of the folder that holds one; a line needs utterance, chosen and rejected."""
    file = path / FILE if path.is_dir() else path
    pairs: list[Pair] = []
    try:
        with file.open(encoding="utf-8") as stream:
            for line in stream:
                row = json.loads(line)
                texts = [str(row[name]) for name in ("utterance", "chosen", "rejected")]
                names = [str(row.get(name, "")) for name in ("source", "id")]
                candidates, rewards = tuple(row.get("candidates", ())), tuple(row.get("rewards", ()))
                pairs.append(Pair(texts[0], texts[1], texts[2], candidates, names[0], names[1], rewards))
    except FileNotFoundError as error:
        raise Unfit(f"no pairs in {path}; make them with `rewrite-train pairs`") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Unfit(f"{file}:{len(pairs) + 1}: not a pair with utterance, chosen and rejected") from error
    if not pairs:
        raise Unfit(f"{file} holds no pairs; `rewrite-train probe` tells whether there are any to be had")
    return pairs
