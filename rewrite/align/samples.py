"""Scored samples: several answers per query, drawn in chunks. A chunk is on disk before the next one is drawn.

Every chunk has its own seed, so that it is the same after a kill, and whichever of several processes draws it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rewrite.align.settings import SampleSettings
from rewrite.errors import RewriteError
from rewrite.rewriter import Rewriter
from rewrite.settings import Sampling
from rewrite.sft.examples import Example
from rewrite.template import drop_cut_line
from rewrite.types import Answer

PATTERN = "samples-*.jsonl"
EQUAL = 1e-9
"""Rewards that differ by less are equal."""


@dataclass(frozen=True, slots=True)
class AlignQuery:
    """An example of one data set."""

    source: str
    example: Example

    @property
    def key(self) -> str:
        """Name of the query among those of all data sets."""
        return f"{self.source}/{self.example.id}"


RewardFunction = Callable[[Sequence[AlignQuery], Sequence[Answer]], list[float]]
"""One reward per answer to the query of the same index. Failures are raised; a failure is never a number."""


def unique_queries(queries: Sequence[AlignQuery]) -> list[AlignQuery]:
    """Each query once, in the order of first appearance."""
    return list({query.key: query for query in queries}.values())


@dataclass(frozen=True, slots=True)
class ScoredSample:
    """The answers to one query and their rewards."""

    source: str
    id: str
    utterance: str
    candidates: tuple[str, ...]
    answers: tuple[str, ...]
    """As they are read and learned from: without a last line that was cut at the token limit. Empty: the query was too
    long."""
    readable: tuple[bool, ...]
    finished: tuple[bool, ...]
    """False where an answer was cut at the token limit."""
    rewards: tuple[float, ...]
    raw: float
    """Reward of leaving the query alone."""
    oracle: float
    """Reward of the target."""
    target: str = ""
    """The data set's answer to this query."""

    @property
    def key(self) -> str:
        """Name of the query among those of all data sets."""
        return f"{self.source}/{self.id}"


def draw_samples(
    rewriter: Rewriter,
    queries: Sequence[AlignQuery],
    reward: RewardFunction,
    settings: SampleSettings,
    folder: Path,
    progress: bool = False,
    part: tuple[int, int] = (0, 1),
) -> None:
    """Draws the samples that the folder lacks; `part` is this process's rank and the number of processes."""
    folder.mkdir(parents=True, exist_ok=True)
    rank, world_size = part
    path = folder / f"samples-{rank}.jsonl"
    _cut_torn(path)
    known, wanted = {sample.key for sample in read_samples(folder)}, unique_queries(queries)
    size = settings.chunk_size
    mine = [start for start in range(0, len(wanted), size) if start // size % world_size == rank]
    for start in tqdm(mine, desc="sampling", unit="chunk", disable=None) if progress and len(mine) > 1 else mine:
        chunk = wanted[start : start + size]
        if all(query.key in known for query in chunk):
            continue
        seed = settings.seed * 1_000_003 + start // size
        drawn = _score(rewriter, chunk, reward, settings, seed)
        _append(path, [sample for sample in drawn if sample.key not in known])


def _score(
    rewriter: Rewriter, queries: Sequence[AlignQuery], reward: RewardFunction, settings: SampleSettings, seed: int
) -> list[ScoredSample]:
    sampling = Sampling(settings.temperature, 1.0, settings.answers, settings.max_tokens, seed)
    template = rewriter.template
    rewrites_of = rewriter.sample([query.example.request for query in queries], sampling)
    targets = [template.write(query.example.lines) for query in queries]
    scored: list[AlignQuery] = []
    answers: list[Answer] = []
    for query, rewrites, target in zip(queries, rewrites_of, targets, strict=True):
        if rewrites[0].status != "too-long":
            answers += [Answer(rewrite.answer, rewrite.tokens, rewrite.finished) for rewrite in rewrites]
            answers += [Answer(template.none, 0), Answer(target, 0)]
            scored += [query] * (len(rewrites) + 2)
    rewards = iter(reward(scored, answers) if scored else [])
    samples = []
    for query, rewrites, target in zip(queries, rewrites_of, targets, strict=True):
        example = query.example
        facts = (query.source, example.id, example.utterance, example.candidates)
        if rewrites[0].status == "too-long":
            samples.append(ScoredSample(*facts, (), (), (), (), 0.0, 0.0))
            continue
        earned = tuple(next(rewards) for _ in rewrites)
        raw, oracle = next(rewards), next(rewards)
        texts = tuple(drop_cut_line(rewrite.answer, rewrite.finished) for rewrite in rewrites)
        readable = tuple(rewrite.status != "unparseable" for rewrite in rewrites)
        finished = tuple(rewrite.finished for rewrite in rewrites)
        samples.append(ScoredSample(*facts, texts, readable, finished, earned, raw, oracle, target))
    return samples


def read_samples(folder: Path) -> list[ScoredSample]:
    """All samples of a folder, ordered by key; those of too long queries have no answers."""
    samples: dict[str, ScoredSample] = {}
    for path in sorted(folder.glob(PATTERN)):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
            try:
                row: dict[str, Any] = json.loads(line)
                for name in ("candidates", "answers", "readable", "finished", "rewards"):
                    row[name] = tuple(row[name])
                sample = ScoredSample(**row)
            except (ValueError, KeyError, TypeError) as error:
                raise RewriteError(f"{path}:{number}: not a sample; remove the file to draw it again") from error
            samples.setdefault(sample.key, sample)
    return [samples[key] for key in sorted(samples)]


def count_answers(samples: Sequence[ScoredSample]) -> int:
    """Number of answers that were drawn."""
    return sum(len(sample.answers) for sample in samples)


def _append(path: Path, samples: Sequence[ScoredSample]) -> None:
    text = "".join(json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in samples)
    with path.open("ab") as stream:
        stream.write(text.encode())
        stream.flush()
        os.fsync(stream.fileno())


def _cut_torn(path: Path) -> None:
    """Cuts off a last line that a killed process wrote only in part."""
    if path.is_file():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
