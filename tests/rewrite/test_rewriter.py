"""The rewriter before a real, untrained model of 512 tokens: what fits, what is cut, what becomes of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rewrite.backends.in_process import TransformersBackend
from rewrite.errors import RewriteError
from rewrite.rewriter import Rewriter, fit_prompts
from rewrite.settings import Sampling, TransformersSettings
from rewrite.template import load_template
from rewrite.types import Answer, Prompt, RewriteRequest

MOST_TOKENS = 8
TOOLS = tuple(f"tool number {number}: " + "does things " * 9 for number in range(10))
"""Some 30 tokens each."""
LONG = "a long story " * 60
"""Fits, but leaves no room for all tools."""
TOO_LONG = "a long story " * 400


class Listening(TransformersBackend):
    """The real backend, which also remembers what it was asked."""

    heard: list[Prompt]

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        self.heard = list(prompts)
        return super().generate(prompts, sampling, show_progress)


@pytest.fixture(scope="module")
def backend(tiny_lm: Path) -> Listening:
    made = Listening(TransformersSettings(), tiny_lm, device="cpu")
    made.heard = []
    return made


@pytest.fixture
def rewriter(backend: Listening) -> Rewriter:
    return Rewriter(load_template("candidates"), backend, Sampling(max_tokens=MOST_TOKENS))


def test_a_short_query_is_shown_all_its_tools(rewriter: Rewriter, backend: Listening) -> None:
    template = replace(rewriter.template, candidates=3)
    [(prompt, cut)] = fit_prompts(template, backend, [RewriteRequest("hi", TOOLS)], MOST_TOKENS)
    assert (prompt, cut) == (template.render(RewriteRequest("hi", TOOLS)), 0)
    assert [f"tool number {number}" in prompt[1]["content"] for number in range(4)] == [True, True, True, False]


def test_tools_are_cut_from_the_back_and_counted_never_the_utterance(rewriter: Rewriter, backend: Listening) -> None:
    template = rewriter.template
    [(prompt, cut)] = fit_prompts(template, backend, [RewriteRequest(LONG, TOOLS)], MOST_TOKENS)
    assert prompt is not None
    assert 0 < cut < len(TOOLS)
    assert LONG.strip() in prompt[1]["content"]
    assert prompt == template.render(RewriteRequest(LONG, TOOLS[:-cut]))
    # One more would not have fitted.
    one_more = template.render(RewriteRequest(LONG, TOOLS[: len(TOOLS) - cut + 1]))
    room = 512 - MOST_TOKENS
    [ours, theirs] = backend.count([prompt, one_more])
    assert ours <= room < theirs


def test_a_query_that_is_too_long_by_itself_is_not_asked(rewriter: Rewriter, backend: Listening) -> None:
    rewrites = rewriter.rewrite([RewriteRequest("hi"), RewriteRequest(TOO_LONG, TOOLS), RewriteRequest("ho")])
    assert [rewrite.status == "too-long" for rewrite in rewrites] == [False, True, False]
    assert (rewrites[1].lines, rewrites[1].answer, rewrites[1].cut) == ((), "", len(TOOLS))
    assert backend.heard == [rewriter.template.render(RewriteRequest(text)) for text in ("hi", "ho")]


def test_where_all_are_too_long_nothing_is_asked(rewriter: Rewriter, backend: Listening) -> None:
    backend.heard = []
    several = Sampling(temperature=1.0, answers=3, max_tokens=MOST_TOKENS)
    samples = rewriter.sample([RewriteRequest(TOO_LONG)], several)
    assert [[rewrite.status for rewrite in rewrites] for rewrites in samples] == [["too-long"] * 3]
    assert backend.heard == []
    assert rewriter.rewrite([]) == []


def test_answers_that_leave_no_room_for_any_prompt_are_refused(rewriter: Rewriter) -> None:
    """Else all queries would be too long, and their raw rankings would pass for what the rewriter reaches."""
    with pytest.raises(RewriteError, match=r"answers of 512 tokens leave no room for a prompt in the model's 512"):
        replace(rewriter, sampling=Sampling(max_tokens=512)).rewrite([RewriteRequest("hi")])


def test_the_order_is_kept(rewriter: Rewriter) -> None:
    asks = [
        RewriteRequest("hi"),
        RewriteRequest(LONG, TOOLS),
        RewriteRequest("book a flight", TOOLS[:2]),
        RewriteRequest(TOO_LONG),
        RewriteRequest("天气预报"),
    ]
    sampled = replace(rewriter, sampling=Sampling(temperature=1.0, max_tokens=MOST_TOKENS))
    together = sampled.rewrite(asks)
    assert len({rewrite.answer for rewrite in together}) == len(asks)
    again = rewriter.rewrite(asks)
    assert [again[place] for place in (4, 3, 2, 1, 0)] == rewriter.rewrite(asks[::-1])
    assert [rewrite.cut > 0 for rewrite in together] == [False, True, False, False, False]


def test_answers_that_cannot_be_read_are_visible(rewriter: Rewriter) -> None:
    [rewrite] = rewriter.rewrite([RewriteRequest("hi")])
    assert rewrite.status == "unparseable"
    assert rewrite.lines == ()
    assert len(rewrite.answer) > 0
    assert rewrite.tokens == MOST_TOKENS


def test_every_answer_is_read(rewriter: Rewriter) -> None:
    # A template that takes any line as a query, so that even an untrained model has something to say.
    easy = replace(rewriter, template=replace(load_template("needs"), line="{query}"))
    several = Sampling(temperature=1.0, answers=4, max_tokens=MOST_TOKENS, seed=2)
    samples = easy.sample([RewriteRequest("hi"), RewriteRequest("ho")], several)
    assert [[rewrite.status for rewrite in rewrites] for rewrites in samples] == [["rewritten"] * 4] * 2
    assert len({rewrite.lines for rewrites in samples for rewrite in rewrites}) == 8
    assert easy.sample([RewriteRequest("hi"), RewriteRequest("ho")], several) == samples
