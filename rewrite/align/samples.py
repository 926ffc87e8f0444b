"""Several answers a query, scored: drawn in chunks, each on the disk before the next, so that a kill costs one chunk.

A chunk has its own seed, so that it is the same whoever draws it: after a kill, or in another of several processes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rewrite.align.query import Query, Reward, unique
from rewrite.align.settings import SampleSettings
from rewrite.errors import Unfit
from rewrite.rewriter import Rewriter
from rewrite.settings import Sampling
from rewrite.template import Template, uncut
from rewrite.types import Answer
from rewrite.votes import in_order, voted

PATTERN = "samples-*.jsonl"
EVEN = 1e-9
"""Rewards that differ by less are the same."""
PER_ANSWER = ("answers", "readable", "finished", "rewards")


@dataclass(frozen=True, slots=True)
class Sample:
    """The answers to one query, and what they earned."""

    source: str
    id: str
    utterance: str
    candidates: tuple[str, ...]
    answers: tuple[str, ...]
    """As they are read, and so learned from: without the line in whose midst a cap ended one."""
    readable: tuple[bool, ...]
    finished: tuple[bool, ...]
    """False where a cap ended an answer."""
    rewards: tuple[float, ...]
    raw: float
    """What leaving the query alone earns."""
    oracle: float
    """What the target earns."""
    joined: bool = False
    """Whether the last answer was put together of the others' lines; one of the others may say the same."""
    target: str = ""
    """What the data set has for this query."""

    @property
    def key(self) -> str:
        """The query's."""
        return f"{self.source}/{self.id}"

    @property
    def own(self) -> Sample:
        """With the answers alone that the policy wrote."""
        if not self.joined:
            return self
        kept = {name: getattr(self, name)[:-1] for name in PER_ANSWER}
        return replace(self, **kept, joined=False)


def draw(
    rewriter: Rewriter,
    queries: Sequence[Query],
    reward: Reward,
    settings: SampleSettings,
    folder: Path,
    progress: bool = False,
    part: tuple[int, int] = (0, 1),
) -> None:
    """Draws what the folder does not hold yet; of several processes each (number, of how many) takes its chunks."""
    folder.mkdir(parents=True, exist_ok=True)
    number, count = part
    path = folder / f"samples-{number}.jsonl"
    _cut_torn(path)
    known, each = {sample.key for sample in read_samples(folder)}, unique(queries)
    starts = range(0, len(each), settings.chunk)
    mine = [start for start in starts if start // settings.chunk % count == number]
    bar = tqdm(mine, desc="sampling", unit="chunk", disable=None) if progress and len(mine) > 1 else mine
    for start in bar:
        chunk = each[start : start + settings.chunk]
        if all(query.key in known for query in chunk):
            continue
        seed = settings.seed * 1_000_003 + start // settings.chunk
        drawn = _score(rewriter, chunk, reward, settings, seed)
        _append(path, [sample for sample in drawn if sample.key not in known])


def _score(
    rewriter: Rewriter, queries: Sequence[Query], reward: Reward, settings: SampleSettings, seed: int
) -> list[Sample]:
    sampling = Sampling(settings.temperature, settings.top_p, settings.answers, settings.most_tokens, seed)
    template = rewriter.template
    found = rewriter.samples([query.example.ask for query in queries], sampling)
    asked: list[Query] = []
    answers: list[Answer] = []
    most = min(settings.joined, template.most_lines)
    together = [template.write(in_order(lines, each)) if (lines := voted(each, most)) else "" for each in found]
    for query, rewrites, more in zip(queries, found, together, strict=True):
        if rewrites[0].status != "too-long":
            written = [Answer(each.answer, each.tokens, each.finished) for each in rewrites]
            written += [Answer(more, 0)] if more else []
            answers += [*written, Answer(template.none, 0), Answer(_target(query, template), 0)]
            asked += [query] * (len(written) + 2)
    rewards = reward(asked, answers) if asked else []
    samples, start = [], 0
    for query, rewrites, more in zip(queries, found, together, strict=True):
        example = query.example
        facts = (query.source, example.id, example.utterance, example.candidates)
        if rewrites[0].status == "too-long":
            samples.append(Sample(*facts, (), (), (), (), 0.0, 0.0))
            continue
        count = settings.answers + bool(more) + 2
        *earned, raw, oracle = rewards[start : start + count]
        start += count
        whole = (True,) * bool(more)
        readable = tuple(each.status != "unparseable" for each in rewrites) + whole
        finished = tuple(each.finished for each in rewrites) + whole
        texts = tuple(uncut(each.answer, each.finished) for each in rewrites) + (more,) * bool(more)
        target = _target(query, template)
        samples.append(Sample(*facts, texts, readable, finished, tuple(earned), raw, oracle, bool(more), target))
    return samples


def _target(query: Query, template: Template) -> str:
    return template.write(query.example.lines)


def read_samples(folder: Path) -> list[Sample]:
    """All samples of a folder whose query had room for an answer or not, in the order of their keys."""
    found: dict[str, Sample] = {}
    for path in sorted(folder.glob(PATTERN)):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
            try:
                row: dict[str, Any] = json.loads(line)
                for name in ("candidates", *PER_ANSWER):
                    row[name] = tuple(row[name])
                sample = Sample(**row)
            except (ValueError, KeyError, TypeError) as error:
                raise Unfit(f"{path}:{number}: not a sample; remove the file, and it is drawn again") from error
            found.setdefault(sample.key, sample)
    return [found[key] for key in sorted(found)]


def _append(path: Path, samples: Sequence[Sample]) -> None:
    text = "".join(json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in samples)
    with path.open("ab") as stream:
        stream.write(text.encode())
        stream.flush()
        os.fsync(stream.fileno())


def _cut_torn(path: Path) -> None:
    """Cuts off the line in whose midst a process died."""
    if path.is_file():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
