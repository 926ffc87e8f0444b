"""Several answers to one query, and what most of them say.

One answer commits itself: its later lines are said in view of the earlier ones. Several answers tell what a model is
torn between, and the lines that most of them have name it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rewrite.settings import Sampling
from rewrite.template import Template
from rewrite.types import Answer, Rewrite


def voted(rewrites: Sequence[Rewrite], most: int, least: int = 1) -> tuple[str, ...]:
    """The lines that most rewrites have, `least` at the least, those with most votes first; nothing where more of them
    leave the query alone."""
    votes = Counter(line for each in rewrites for line in each.lines).most_common(most)
    silent = sum(each.status == "none" for each in rewrites)
    return () if not votes or votes[0][1] < silent else tuple(line for line, count in votes if count >= least)


def in_order(lines: Sequence[str], rewrites: Sequence[Rewrite]) -> tuple[str, ...]:
    """Lines in the order in which the rewrites write them, so that a policy has no other order to learn beside."""
    places: dict[str, list[int]] = {line: [] for line in lines}
    for each in rewrites:
        for place, line in enumerate(each.lines):
            if line in places:
                places[line].append(place)
    return tuple(sorted(places, key=lambda line: sum(places[line]) / len(places[line])))


def one_answer(template: Template, answers: Sequence[Answer], sampling: Sampling) -> Answer:
    """The answer to a query that got several: one as it is; of more the lines that most of them have, as many as
    sampling says. Where too few of them agree on any line the query is left alone. Its tokens are those of all."""
    if len(answers) == 1:
        return answers[0]
    tokens = sum(answer.tokens for answer in answers)
    rewrites = [template.parse(answer) for answer in answers]
    if all(each.status == "unparseable" for each in rewrites):
        return Answer(answers[0].text, tokens, answers[0].finished)
    return Answer(template.write(voted(rewrites, sampling.joined, sampling.votes)), tokens)
