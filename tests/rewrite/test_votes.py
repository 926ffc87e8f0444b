"""Several answers to one query, made into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import config as configs
from pipelines.rewriters import RewriterSettings
from retrievers.errors import BadInput
from rewrite.errors import RewriteError
from rewrite.rewriter import Rewriter
from rewrite.settings import RulesSettings, Sampling
from rewrite.template import load_template
from rewrite.types import Answer, Prompt, Rewrite, RewriteRequest
from rewrite.votes import merge_answers, vote_lines

TEMPLATE = load_template("needs")
SEVERAL = Sampling(temperature=1.0, answers=3, min_votes=1)


def _answers(*texts: str) -> list[Answer]:
    return [Answer(text, 4) for text in texts]


def test_lines_that_most_answers_have_come_first() -> None:
    rewrites = [Rewrite(lines, "rewritten") for lines in (("a", "b"), ("c",), ("a", "b"), ("c", "d"), ("e", "a"))]
    assert tuple(vote_lines(rewrites, 3)) == ("a", "b", "c")
    assert tuple(vote_lines(rewrites, 9)) == ("a", "b", "c", "d", "e")
    assert tuple(vote_lines(rewrites, 0)) == ()
    assert tuple(vote_lines(rewrites, 9, min_votes=2)) == ("a", "b", "c")
    assert tuple(vote_lines(rewrites, 9, min_votes=4)) == ()
    silent = Rewrite((), "none")
    assert tuple(vote_lines([silent, Rewrite((), "unparseable")], 3)) == ()
    assert tuple(vote_lines([silent, silent, Rewrite(("a",), "rewritten")], 3)) == ()  # most want none
    assert tuple(vote_lines([silent, Rewrite(("a",), "rewritten")], 3)) == ("a",)


def test_one_answer_stays_as_it_is() -> None:
    [only] = _answers("- fly\n- half a li")
    assert merge_answers(TEMPLATE, [replace(only, finished=False)], SEVERAL) == replace(only, finished=False)


def test_several_answers_are_one_with_the_lines_that_most_have() -> None:
    found = merge_answers(
        TEMPLATE,
        _answers("- fly\n- pay", "- pay\n- rent", "no list at all", "- pay\n- fly"),
        replace(SEVERAL, max_lines=2),
    )
    assert found == Answer("- pay\n- fly", 16, votes=(3, 2))
    assert merge_answers(TEMPLATE, _answers(TEMPLATE.none, TEMPLATE.none, "- fly"), SEVERAL).text == TEMPLATE.none
    assert merge_answers(TEMPLATE, _answers("no list", "at all"), SEVERAL) == Answer("no list", 8)
    cut = [Answer("- fly\n- half a li", 9, finished=False), *_answers("- fly")]
    assert merge_answers(TEMPLATE, cut, SEVERAL) == Answer("- fly", 13, votes=(2,))  # what a cap ended is not a line


def test_what_nobody_says_twice_is_not_asked_for() -> None:
    torn = _answers("- fly", "- rent a car", "- pay\n- fly")
    assert merge_answers(TEMPLATE, torn, Sampling(temperature=1.0, answers=3)).text == "- fly"
    apart = _answers("- fly", "- rent a car", "- pay")
    assert merge_answers(TEMPLATE, apart, Sampling(temperature=1.0, answers=3)).text == TEMPLATE.none


@given(
    st.lists(st.lists(st.sampled_from("abcdef"), max_size=5, unique=True), min_size=2, max_size=8), st.integers(1, 5)
)
def test_no_line_has_fewer_votes_than_one_left_out(drawn: list[list[str]], most: int) -> None:
    answers = [Answer(TEMPLATE.write(lines), 1) for lines in drawn]
    lines = TEMPLATE.parse(merge_answers(TEMPLATE, answers, replace(SEVERAL, max_lines=most))).lines
    votes = {line: sum(line in each for each in drawn) for line in "abcdef"}
    assert len(lines) <= most
    assert all(votes[line] for line in lines)
    if lines:
        assert min(votes[line] for line in lines) >= max((votes[o] for o in votes if o not in lines), default=0)


class Torn:
    """Answers in turn with this and that."""

    rejects_long_prompts = True

    def __init__(self, context: int | None = None) -> None:
        self.context = context

    def count(self, prompts: Sequence[Prompt]) -> list[int]:
        return [len(prompt[-1]["content"]) for prompt in prompts]

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        if any("endless" in prompt[-1]["content"] for prompt in prompts):
            return [[] for _ in prompts]
        if any("capped" in prompt[-1]["content"] for prompt in prompts):
            return [[Answer("- fly\n- pa", 4, finished=False), *_answers("- rent")] for _ in prompts]
        return [_answers("- fly\n- pay", "- rent", "- pay")[: sampling.answers] for _ in prompts]


def test_a_rewriter_asks_as_often_as_its_sampling_says() -> None:
    once, often = Rewriter(TEMPLATE, Torn()), Rewriter(TEMPLATE, Torn(), SEVERAL)
    assert [each.lines for each in once.rewrite([RewriteRequest("a trip")] * 2)] == [("fly", "pay")] * 2
    [found] = often.rewrite([RewriteRequest("a trip")])
    assert (found.lines, found.status, found.tokens) == (("pay", "fly", "rent"), "rewritten", 12)
    assert [each.lines for each in often.sample([RewriteRequest("a trip")])[0]] == [
        ("fly", "pay"),
        ("rent",),
        ("pay",),
    ]
    [few] = replace(often, sampling=replace(SEVERAL, max_lines=1)).rewrite([RewriteRequest("a trip")])
    assert few.lines == ("pay",)
    assert [each.status for each in often.rewrite([RewriteRequest("endless")])] == ["too-long"]
    assert found.finished
    [short] = often.rewrite([RewriteRequest("capped")])
    assert (short.lines, short.finished) == (("fly", "rent"), False)  # what a cap ended is told, and not read


def test_what_makes_no_sense_is_said() -> None:
    with pytest.raises(RewriteError, match="greedy answers are all the same"):
        Sampling(answers=3)
    with pytest.raises(BadInput, match="max_lines must be at least 1, got 0"):
        configs.parse(Sampling, {"max_lines": 0})
    with pytest.raises(RewriteError, match="no line gets 5 votes of 3 answers"):
        Sampling(temperature=1.0, answers=3, min_votes=5)
    with pytest.raises(BadInput, match="rules always answer the same"):
        RewriterSettings(template="needs", backend=RulesSettings(), sampling=SEVERAL)
    assert RewriterSettings(base="any", template="needs", sampling=SEVERAL).sampling.answers == 3
