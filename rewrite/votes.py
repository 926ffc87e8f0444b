"""Merges several answers to one query into the lines that most of them share.

The later lines of one answer depend on its earlier ones. Several answers show the alternatives that a model wavers
between, and the lines with the most votes name them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rewrite.settings import Sampling
from rewrite.template import Template
from rewrite.types import Answer, Rewrite


def vote_lines(rewrites: Sequence[Rewrite], max_lines: int, min_votes: int = 1) -> dict[str, int]:
    """Lines and their votes, those with the most first; none where more rewrites leave the query alone."""
    votes = Counter(line for rewrite in rewrites for line in rewrite.lines).most_common(max_lines)
    abstained = sum(rewrite.status == "none" for rewrite in rewrites)
    if not votes or votes[0][1] < abstained:
        return {}
    return {line: count for line, count in votes if count >= min_votes}


def merge_answers(template: Template, answers: Sequence[Answer], sampling: Sampling) -> Answer:
    """One answer with the lines that most answers share; a single answer stays as it is. Its tokens are those of all
    answers. Where too few answers agree on any line, the query is left alone."""
    if len(answers) == 1:
        return answers[0]
    tokens = sum(answer.tokens for answer in answers)
    rewrites = [template.parse(answer) for answer in answers]
    if all(rewrite.status == "unparseable" for rewrite in rewrites):
        return Answer(answers[0].text, tokens, answers[0].finished)
    votes = vote_lines(rewrites, sampling.max_lines, sampling.min_votes)
    return Answer(template.write(list(votes)), tokens, votes=tuple(votes.values())[: template.max_lines])
