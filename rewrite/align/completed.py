"""What an answer leaves out: a target with the lines that would have helped the other queries it was said to.

A policy says the same answer to many queries. Where it is right, nothing lacks; where it is wrong, the lines that lack
are often the same, and places of the served list are left for them. No single query shows that, and least one that the
policy knows by heart: the answers to all of them are pooled. The same answer without those lines is the other half of
the pair, so that nothing but the end of an answer is learned.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rewrite.align.pairs import Pair
from rewrite.align.query import Query, Reward, unique
from rewrite.align.samples import EVEN, Sample
from rewrite.template import Template
from rewrite.types import Answer

TRIED = 8
"""Lines that are tried after an answer: those that lacked most often."""
ASKED = 48
"""Queries that a line is tried with."""
LEAST = 2
"""Queries that an answer was said to, or it tells nothing."""
Key = tuple[str, tuple[str, ...]]
"""A catalogue, and the lines of an answer for it."""


@dataclass(slots=True)
class Said:
    """An answer that is some query's target, and the queries that it was said to."""

    queries: list[Query] = field(default_factory=list)
    lacked: Counter[str] = field(default_factory=Counter)
    """Lines of those queries' targets that it does not have."""

    def right(self, lines: tuple[str, ...]) -> list[bool]:
        """For every query whether this is its target."""
        return [set(query.example.lines) == set(lines) for query in self.queries]


@dataclass(frozen=True, slots=True)
class Completed:
    """An answer with what pays off, or as it is and with what does not; each with what it earns on average."""

    better: tuple[str, ...]
    worse: tuple[str, ...]
    rewards: tuple[float, float]


def completed_pairs(
    samples: Sequence[Sample], queries: Sequence[Query], reward: Reward, template: Template, most: int
) -> list[Pair]:
    """A pair for every query whose target was said to others too: completed up to so many lines, and as it is; none
    where the query itself would lose by it."""
    found = complete(pooled(samples, queries, template), reward, template, min(most, template.most_lines))
    each = [(query, pair) for query in unique(queries) if (pair := found.get((query.source, query.example.lines)))]
    answers = [Answer(template.write(lines), 0) for _, pair in each for lines in (pair.better, pair.worse)]
    own = reward([query for query, _ in each for _ in range(2)], answers) if each else []
    pairs: list[Pair] = []
    for place, (query, pair) in enumerate(each):
        chosen, rejected = answers[2 * place].text, answers[2 * place + 1].text
        if own[2 * place] >= own[2 * place + 1] - EVEN:
            facts = (query.example.candidates, query.source, query.example.id, pair.rewards)
            pairs.append(Pair(query.example.utterance, chosen, rejected, *facts))
    return pairs


def pooled(samples: Sequence[Sample], queries: Sequence[Query], template: Template) -> dict[Key, Said]:
    """For every target the queries that the policy said it to."""
    known = {query.key: query for query in queries}
    said: dict[Key, Said] = defaultdict(Said)
    targets = {(query.source, query.example.lines) for query in known.values() if query.example.lines}
    for sample in samples:
        query = known.get(sample.key)
        if query is None:
            continue
        for lines in dict.fromkeys(template.parse(Answer(text, 0)).lines for text in sample.own.answers):
            key = (sample.source, lines)
            if key in targets:
                said[key].queries.append(query)
                said[key].lacked.update(line for line in query.example.lines if line not in key[1])
    return {key: each for key, each in said.items() if len(each.queries) >= LEAST}


def complete(said: Mapping[Key, Said], reward: Reward, template: Template, most: int) -> dict[Key, Completed]:
    """Adds to every answer the line that its queries earn most by, then the next, while they earn more and the ones to
    whom it was right lose nothing."""
    grown = {key: key[1] for key in said}
    open_ends = dict(said)
    before: dict[Key, float] = {}
    found: dict[Key, Completed] = {}
    while open_ends:
        trials = {
            key: [grown[key], *((*grown[key], line) for line in _tried(each, grown[key], most))]
            for key, each in open_ends.items()
        }
        values = _earned(said, trials, reward, template)
        going = {}
        for key, each in open_ends.items():
            (now, rights), *others = values[key]
            before.setdefault(key, now)
            fit = [place for place, (mean, right) in enumerate(others) if mean > now + EVEN and right >= rights - EVEN]
            if fit:
                best = max(fit, key=lambda place: (others[place][0], -place))
                grown[key] = trials[key][best + 1]
                found[key] = Completed(grown[key], key[1], (others[best][0], before[key]))
                going[key] = each
            elif key not in found and others and others[0][0] < now - EVEN:
                found[key] = Completed(key[1], trials[key][1], (now, others[0][0]))
        open_ends = going
    return found


def _tried(said: Said, lines: tuple[str, ...], most: int) -> list[str]:
    if len(lines) >= most:
        return []
    return [line for line, _ in said.lacked.most_common(TRIED) if line not in lines]


def _earned(
    said: Mapping[Key, Said], trials: Mapping[Key, Sequence[tuple[str, ...]]], reward: Reward, template: Template
) -> dict[Key, list[tuple[float, float]]]:
    """What every trial earns on average: of all its queries, and of those alone whose target the answer is."""
    asked: list[Query] = []
    answers: list[Answer] = []
    for key, lists in trials.items():
        few = said[key].queries[:ASKED]
        for lines in lists:
            asked += few
            answers += [Answer(template.write(lines), 0)] * len(few)
    rewards = iter(reward(asked, answers) if asked else [])
    found: dict[Key, list[tuple[float, float]]] = {}
    for key, lists in trials.items():
        right = said[key].right(key[1])[:ASKED]
        found[key] = []
        for _ in lists:
            earned = [next(rewards) for _ in right]
            safe = [value for value, own in zip(earned, right, strict=True) if own]
            found[key].append((fmean(earned), fmean(safe) if safe else 0.0))
    return found
