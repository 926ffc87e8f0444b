"""Preference pairs: made from scored samples, written to and read from disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rewrite.align.samples import ScoredSample
from rewrite.align.settings import PairSettings
from rewrite.errors import RewriteError

PAIRS_FILE = "pairs.jsonl"


@dataclass(frozen=True, slots=True)
class Pair:
    """A chosen and a rejected answer to one query."""

    utterance: str
    chosen: str
    rejected: str
    candidates: tuple[str, ...] = ()
    source: str = ""
    id: str = ""
    rewards: tuple[float, ...] = ()
    """Rewards of the chosen and of the rejected answer."""


def make_pairs(samples: Sequence[ScoredSample], settings: PairSettings) -> list[Pair]:
    """Pairs of all samples."""
    return [pair for sample in samples for pair in pairs_of(sample, settings)]


def pairs_of(sample: ScoredSample, settings: PairSettings) -> list[Pair]:
    """Pairs the best answer with the worst, the second best with the second worst, while they differ by the margin. An
    answer below 0 is never chosen: it is unreadable or, with `reward.baseline: raw`, worse than the raw query."""
    known: dict[str, tuple[float, bool]] = {}
    for answer, reward, readable in zip(sample.answers, sample.rewards, sample.readable, strict=True):
        known.setdefault(answer.strip(), (reward, readable))
    if settings.include_target and sample.answers:
        known.setdefault(sample.target.strip(), (sample.oracle, True))
    order = sorted(known, key=lambda answer: (-known[answer][0], len(answer), answer))
    good = [answer for answer in order if known[answer][1] and known[answer][0] >= 0]
    bad = [answer for answer in reversed(order) if known[answer][1] or not settings.parseable_only]
    pairs: list[Pair] = []
    for chosen, rejected in zip(good, bad, strict=False):
        rewards = (known[chosen][0], known[rejected][0])
        if len(pairs) == settings.max_pairs or rewards[0] - rewards[1] < settings.margin:
            break
        facts = (sample.candidates, sample.source, sample.id, rewards)
        pairs.append(Pair(sample.utterance, chosen, rejected, *facts))
    return pairs


def write_pairs(pairs: Sequence[Pair]) -> str:
    """Content of a pairs file."""
    return "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in pairs)


def read_pairs(path: Path) -> list[Pair]:
    """Reads a pairs file, or the one in a folder; a line needs utterance, chosen and rejected."""
    file = path / PAIRS_FILE if path.is_dir() else path
    pairs: list[Pair] = []
    try:
        with file.open(encoding="utf-8") as stream:
            for line in stream:
                row = json.loads(line)
                utterance, chosen, rejected = (str(row[name]) for name in ("utterance", "chosen", "rejected"))
                source, id_ = (str(row.get(name, "")) for name in ("source", "id"))
                candidates, rewards = tuple(row.get("candidates", ())), tuple(row.get("rewards", ()))
                pairs.append(Pair(utterance, chosen, rejected, candidates, source, id_, rewards))
    except FileNotFoundError as error:
        raise RewriteError(f"no pairs in {path}; make them with `rewrite-train pairs`") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RewriteError(f"{file}:{len(pairs) + 1}: not a pair with utterance, chosen and rejected") from error
    if not pairs:
        raise RewriteError(f"{file} holds no pairs; `rewrite-train probe` shows whether any can be made")
    return pairs
