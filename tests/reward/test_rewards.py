"""Rewards against brute force, unreadable answers and abstaining, one call a step, and a retriever that fails."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievers.fusion import with_raw
from retrievers.settings import RewriteFusion
from retrievers.types import Ranking, ranked
from reward.base import RewriteAttempt
from reward.language import language, same_language
from reward.lists import RankingCache
from reward.metrics import judge, measure
from reward.retrieval import RetrievalReward

TOOLS = [f"tool{number:02}" for number in range(30)]


class Chance:
    """A retriever that ranks by a hash of the text, and remembers how it was asked."""

    def __init__(self, fingerprint: str = "abc/chance", fails: bool = False, by_utterance: bool = False) -> None:
        self.fingerprint, self.fails, self.by_utterance = fingerprint, fails, by_utterance
        self.asked: list[list[str]] = []

    def search(self, texts: Sequence[str], k: int, utterances: Sequence[str]) -> list[Ranking]:
        if self.fails:
            raise ConnectionError("the index is gone")
        self.asked.append(list(texts))
        keys = [f"{text}/{utterance}" for text, utterance in zip(texts, utterances, strict=True)]
        return [self.one(key if self.by_utterance else text).cut(k) for key, text in zip(keys, texts, strict=True)]

    def one(self, text: str) -> Ranking:
        chance = random.Random(f"{self.fingerprint}/{text}")
        return ranked(((tool, chance.random()) for tool in TOOLS), len(TOOLS))


class Served:
    """The fusion of a real search, picklable."""

    def __init__(self, raw: float) -> None:
        self.fusion = RewriteFusion("weighted", raw)

    def __call__(self, utterance: str, raw: Ranking, lists: Sequence[Ranking], k: int) -> Ranking:
        return with_raw(raw, lists, k, self.fusion)


def _brute(name: str, ids: Sequence[str], gold: frozenset[str], depth: int = 100) -> float:
    """Every metric once more, as slowly and plainly as can be."""
    metric, _, k = name.partition("@")
    top = [tool in gold for tool in ids[: int(k)]]
    if metric == "recall":
        return sum(top) / len(gold)
    if metric == "comp":
        return float(sum(top) == len(gold))
    if metric == "ndcg":
        gain = sum(hit / np.log2(place + 2) for place, hit in enumerate(top))
        return float(gain / sum(1 / np.log2(place + 2) for place in range(min(len(gold), int(k)))))

    def worth(place: int) -> float:
        cut = int(k)
        return 1 - 0.5 * place / cut if place < cut else 0.5 * (depth - 1 - place) / (depth - cut)

    found = sum(worth(place) for place, tool in enumerate(ids) if tool in gold)
    return found / sum(worth(place) for place in range(len(gold)))


ATTEMPTS = st.builds(
    RewriteAttempt,
    st.sampled_from(["rain in Oslo", "book a room"]),
    st.frozensets(st.sampled_from(TOOLS), min_size=1, max_size=4),
    st.lists(st.sampled_from(["weather", "hotel", "forecast", "rooms"]), unique=True, max_size=3).map(tuple),
    st.booleans(),
    st.booleans(),
    st.integers(0, 600),
)


@given(st.lists(ATTEMPTS, min_size=1, max_size=6), st.sampled_from([0.0, 0.4, 1.0]))
def test_every_term_is_what_brute_force_says(attempts: list[RewriteAttempt], raw: float) -> None:
    weights = {"recall@5": 1.0, "ndcg@3": 0.5, "comp@5": 0.25, "rank@5": 2.0, "format": 0.1, "length": 0.3}
    weights |= {"abstain": 0.7, "language": 0.2}
    retriever = Chance()
    found = RetrievalReward(retriever, Served(raw), weights).explain(attempts)
    for place, attempt in enumerate(attempts):
        own, lists = retriever.one(attempt.utterance), [retriever.one(line) for line in attempt.lines]
        ids = with_raw(own, lists, 100, RewriteFusion("weighted", raw)).ids
        expected = {name: _brute(name, ids, attempt.gold) * attempt.readable for name in weights if "@" in name}
        expected["format"] = float(attempt.readable and attempt.finished)
        expected["length"] = (1 - min(1, attempt.length / 480)) * attempt.readable
        silent = attempt.readable and not attempt.lines
        expected["abstain"] = _brute("comp@5", own.ids, attempt.gold) if silent else 0.0
        expected["language"] = float(attempt.readable)  # nothing here is known to be of another language
        for name, value in expected.items():
            assert found[name][place] == pytest.approx(value), name
        total = sum(weights[name] * value for name, value in expected.items()) if attempt.readable else -0.2
        assert found["reward"][place] == pytest.approx(total)
        alone = {name: _brute(name, own.ids, attempt.gold) for name in weights if "@" in name}
        alone |= {"format": 1.0, "length": 1.0, "language": 1.0, "abstain": _brute("comp@5", own.ids, attempt.gold)}
        assert found["alone"][place] == pytest.approx(sum(weights[name] * value for name, value in alone.items()))
        assert found["gain"][place] == pytest.approx(found["reward"][place] - found["alone"][place])


WEIGHTS = st.dictionaries(
    st.sampled_from(["ndcg@3", "comp@5", "rank@5", "mrr", "format", "length", "language", "abstain"]),
    st.floats(-10, 10),
).flatmap(lambda others: st.floats(-10, 10).map(lambda weight: {"recall@5": weight, **others}))


@given(ATTEMPTS, WEIGHTS, st.sampled_from([0.0, 0.4, 1.0]), st.text(max_size=3))
def test_an_unreadable_answer_is_below_abstaining_with_any_weights(
    attempt: RewriteAttempt, weights: dict[str, float], raw: float, index: str
) -> None:
    garbled = replace(attempt, lines=(), readable=False)
    none = RewriteAttempt(attempt.utterance, attempt.gold)
    absolute = RetrievalReward(Chance(index), Served(raw), weights)([garbled, none, attempt])
    assert absolute[0] < absolute[1] - 0.1
    assert absolute[0] < 0
    relative = RetrievalReward(Chance(index), Served(raw), weights, "raw")([garbled, none, attempt])
    assert relative[0] < relative[1] == 0
    # The two rewards differ by a constant of the query: groups of answers to one query cannot tell them apart.
    assert relative == pytest.approx([reward - absolute[1] for reward in absolute])
    if attempt.readable and min(weights.values()) >= 0:
        assert absolute[0] < 0 <= absolute[2]


def test_the_gain_over_the_raw_query_can_be_negative() -> None:
    retriever, lines = Chance(), [f"line {number}" for number in range(40)]
    reward = RetrievalReward(retriever, Served(0.0), {"recall@5": 1.0}, "raw")
    gold = frozenset(retriever.one("rain").ids[4:6])  # the raw query finds one of two
    gains = reward([RewriteAttempt("rain", gold, (line,)) for line in lines])
    served = [len(gold & set(retriever.one(line).ids[:5])) / 2 for line in lines]
    assert gains == [value - 0.5 for value in served]
    assert {-0.5, 0.0} < set(gains)


def test_the_slope_tells_what_the_first_places_do_not() -> None:
    near, far = ([f"x{place}" for place in range(100)] for _ in range(2))
    near[20], far[90] = "gold", "gold"
    judged = judge([near, far], [{"gold"}] * 2)
    assert measure("recall@5", judged).tolist() == [0.0, 0.0]
    values = measure("rank@5", judged).tolist()
    assert values[0] > values[1] > 0
    assert measure("rank@5", judge([["gold"], ["a", "b"]], [{"gold"}] * 2)).tolist() == [1.0, 0.0]


def test_one_call_a_step_and_nothing_asked_twice() -> None:
    retriever = Chance()
    reward = RetrievalReward(retriever, Served(0.5), {"recall@5": 1.0})
    gold = frozenset(TOOLS[:2])
    attempts = [RewriteAttempt("rain", gold, ("weather", "forecast")), RewriteAttempt("rain", gold, ("weather",))]
    first = reward(attempts)
    assert [sorted(each) for each in retriever.asked] == [["forecast", "rain", "weather"]]
    assert reward(attempts) == first
    assert len(retriever.asked) == 1
    reward([RewriteAttempt("rain", gold, ("umbrella",))])
    assert retriever.asked[1:] == [["umbrella"]]
    retriever.fingerprint = "other/chance"
    reward([RewriteAttempt("rain", gold)])
    assert retriever.asked[2:] == [["rain"]]  # another index: what was known of the first one does not hold


def test_what_is_remembered_is_bounded() -> None:
    retriever = Chance()
    lists = RankingCache(retriever, max_rankings=2)
    a, b, c = (lists.key(text, "x") for text in "abc")
    lists([a, b])
    lists([a, c])
    assert lists([a, c]).keys() == {a, c}
    assert lists.calls == 2
    lists([b])
    assert retriever.asked[-1] == ["b"]


def test_a_retriever_with_a_memory_is_asked_per_utterance() -> None:
    plain, remembering = RankingCache(Chance()), RankingCache(Chance(by_utterance=True))
    assert plain.key("a", "x") == plain.key("a", "y")
    one, other = remembering.key("a", "x"), remembering.key("a", "y")
    rankings = remembering([one, other])
    assert rankings[one].ids != rankings[other].ids


def test_a_failing_retriever_is_no_score() -> None:
    reward = RetrievalReward(Chance(fails=True), Served(0.5), {"recall@5": 1.0})
    with pytest.raises(ConnectionError, match="the index is gone"):
        reward([RewriteAttempt("rain", frozenset(TOOLS[:1]))])


def test_a_reward_travels_to_other_processes() -> None:
    reward = RetrievalReward(Chance(), Served(0.5), {"recall@5": 1.0, "rank@5": 0.1})
    attempts = [RewriteAttempt("rain", frozenset(TOOLS[:3]), ("weather",))]
    assert pickle.loads(pickle.dumps(reward))(attempts) == reward(attempts)


def test_terms_that_nobody_knows_are_refused() -> None:
    with pytest.raises(ValueError, match="no term 'recal@5'"):
        RetrievalReward(Chance(), Served(0.5), {"recal@5": 1.0})
    with pytest.raises(ValueError, match="needs a metric"):
        RetrievalReward(Chance(), Served(0.5), {"format": 1.0})
    assert RetrievalReward(Chance(), Served(0.5), {"mrr": 1.0})([]) == []


def test_languages() -> None:
    assert language("wie wird das Wetter in Berlin") == "de"
    assert language("what is the weather in Berlin") == "en"
    assert language("明天北京天气怎么样") == "CJK"
    assert language("SQ 322") is None
    assert not same_language("wie wird das Wetter in Berlin", "what is the weather in the city")
    assert not same_language("明天北京天气怎么样", "weather forecast")
    assert same_language("明天北京天气怎么样", "北京 天气")
    assert same_language("wie wird das Wetter", "Wetter Berlin")
