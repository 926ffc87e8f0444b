from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievers.errors import BadInput
from retrievers.fusion import DEPTH, ExactNames, add_scores, fuse, with_raw
from retrievers.hybrid import Hybrid
from retrievers.settings import FusionSettings, RewriteFusion
from retrievers.types import Ranking, ranked

A = Ranking(("a", "b", "c"), (0.9, 0.8, 0.1))
B = Ranking(("c", "d"), (12.0, 3.0))
METHODS = ["interleave", "rrf", "max", "weighted", "add"]
rankings = st.lists(
    st.dictionaries(st.sampled_from("abcdefgh"), st.floats(-1, 20), max_size=8).map(lambda d: ranked(d.items(), 8)),
    max_size=4,
)


def test_interleaving_takes_turns_and_each_tool_once() -> None:
    assert fuse([A, B], 10, FusionSettings("interleave")).ids == ("a", "c", "b", "d")


def test_rrf_is_the_sum_of_reciprocal_places() -> None:
    fused = fuse([A, B], 10, FusionSettings("rrf", rrf_k=60))
    expected = {"a": 1 / 61, "b": 1 / 62, "c": 1 / 63 + 1 / 61, "d": 1 / 62}
    assert dict(fused) == pytest.approx(expected)
    assert fused.ids == ("c", "a", "b", "d")


def test_max_keeps_the_best_score() -> None:
    assert dict(fuse([A, B], 10, FusionSettings("max"))) == {"c": 12.0, "d": 3.0, "a": 0.9, "b": 0.8}


def test_weighted_stretches_each_list_and_sums() -> None:
    fused = dict(fuse([A, B], 10, FusionSettings("weighted", (1.0, 2.0))))
    assert fused == pytest.approx({"a": 1.0, "b": 0.01 + 0.99 * 0.875, "c": 0.01 + 2.0, "d": 0.02})


def test_scores_are_added_in_the_units_of_their_lists() -> None:
    fused = dict(add_scores([A, B], 10, (1.0, 10.0)))
    assert fused == pytest.approx({"a": 0.9, "b": 0.8, "c": 0.1 + 1.2, "d": 0.3})


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=3 * DEPTH), st.lists(st.floats(0, 80), max_size=3 * DEPTH))
def test_added_scores_by_brute_force(cosines: list[float], words: list[float]) -> None:
    parts = [ranked(((f"{row:03d}", score) for row, score in enumerate(own)), len(own)) for own in (cosines, words)]
    total = dict.fromkeys([*parts[0].ids, *parts[1].ids], 0.0)
    for part, unit in zip(parts, (1.0, 75.0), strict=True):
        full = len(part) >= DEPTH
        lowest = sorted(part.scores, reverse=True)[DEPTH - 1] if full else min([0.0, *part.scores])
        for tool in total:
            total[tool] += max(dict(part).get(tool, lowest) - lowest, 0.0) / unit
    fused = add_scores(parts, 5, (1.0, 75.0))
    assert list(fused.scores) == pytest.approx(sorted(total.values(), reverse=True)[:5], abs=1e-8)
    assert add_scores(parts, 4 * DEPTH, (1.0, 75.0)).ids[:5] == fused.ids


class _Fixed:
    """A retriever with one answer."""

    fingerprint = ""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        return [self._ranking] * len(queries)


class _Scored(_Fixed):
    """A retriever whose scores compare."""

    def __init__(self, ranking: Ranking, unit: float) -> None:
        super().__init__(ranking)
        self.score_unit = unit


@pytest.mark.parametrize(
    ("parts", "fusion", "expected"),
    [
        ((_Scored(A, 1.0), _Scored(B, 10.0)), None, add_scores([A, B], 3, (1.0, 10.0))),
        ((_Scored(A, 1.0), _Scored(B, 1.0)), None, fuse([A, B], 3, FusionSettings())),  # two encoders
        ((_Fixed(A), _Scored(B, 10.0)), None, fuse([A, B], 3, FusionSettings())),
        ((_Scored(A, 1.0), _Scored(B, 10.0)), FusionSettings("max"), fuse([A, B], 3, FusionSettings("max"))),
        ((_Scored(A, 1.0), _Scored(B, 1.0)), FusionSettings("add", (1.0, 0.5)), add_scores([A, B], 3, (1.0, 2.0))),
    ],
)
def test_a_hybrid_adds_scores_that_compare(
    parts: tuple[_Fixed, _Fixed], fusion: FusionSettings | None, expected: Ranking
) -> None:
    hybrid = Hybrid({"one": parts[0], "other": parts[1]}, fusion, "")
    [ranking] = hybrid.search(["q"], 3)
    assert (ranking.ids, ranking.scores) == (expected.ids, expected.scores)


def test_ranks_cannot_be_added_to_scores() -> None:
    with pytest.raises(BadInput, match="add takes scores of bm25, dense and milvus; learned has others"):
        Hybrid({"bm25": _Scored(A, 75.0), "learned": _Fixed(B)}, FusionSettings("add"), "")


def test_weights_decide() -> None:
    assert fuse([A, B], 1, FusionSettings("weighted", (1.0, 0.0))).ids == ("a",)
    assert fuse([A, B], 1, FusionSettings("rrf", (0.0, 1.0))).ids == ("c",)


@given(lists=rankings, k=st.integers(1, 10), method=st.sampled_from(METHODS))
def test_fusion_invents_nothing_and_loses_nothing(lists: list[Ranking], k: int, method: str) -> None:
    fused = fuse(lists, k, FusionSettings(method))  # type: ignore[arg-type]
    everything = {tool for ranking in lists for tool in ranking.ids}
    assert set(fused.ids) <= everything
    assert len(fused) == min(k, len(everything)) == len(set(fused.ids))
    assert list(fused.scores) == sorted(fused.scores, reverse=True)


@given(lists=rankings, method=st.sampled_from(["rrf", "max", "weighted"]))
def test_the_order_of_the_lists_does_not_matter(lists: list[Ranking], method: str) -> None:
    forward = fuse(lists, 8, FusionSettings(method))  # type: ignore[arg-type]
    backward = fuse(lists[::-1], 8, FusionSettings(method))  # type: ignore[arg-type]
    assert dict(forward) == pytest.approx(dict(backward))


def test_wrong_weights_are_refused() -> None:
    with pytest.raises(BadInput, match="2 fusion weights for 3 lists"):
        fuse([A, B, A], 5, FusionSettings("rrf", (1.0, 1.0)))
    with pytest.raises(BadInput, match="0 or more"):
        FusionSettings("rrf", (-1.0,))


NAMES = ExactNames(
    [
        ("code/find_symbol", "find_symbol"),
        ("shop/search", "search"),
        ("news/search", "search"),
        ("x/getWeather", "getWeather"),
        ("y/v2/quotes", "v2/quotes"),
    ]
)


@pytest.mark.parametrize(
    ("utterance", "expected"),
    [
        ("find symbol", ["code/find_symbol"]),
        ("Find_Symbol", ["code/find_symbol"]),
        ("please run find_symbol on main.py", ["code/find_symbol"]),
        ("call getweather() now", ["x/getWeather"]),
        ("does `v2/quotes`, still work?", ["y/v2/quotes"]),
        ("use x/getWeather.", ["x/getWeather"]),
        ("search", ["news/search", "shop/search"]),
        ("search for a red bicycle", []),
        ("find the symbol of my home town", []),
        ("", []),
    ],
)
def test_exact_names(utterance: str, expected: list[str]) -> None:
    assert NAMES.find(utterance) == expected


def test_a_named_tool_ranks_first_and_nothing_is_lost() -> None:
    promoted = NAMES.promote("find_symbol", Ranking(("a", "code/find_symbol", "b"), (3.0, 2.0, 1.0)), 10)
    assert promoted == Ranking(("code/find_symbol", "a", "b"), (4.0, 3.0, 1.0))
    assert NAMES.promote("find_symbol", Ranking(), 5).ids == ("code/find_symbol",)
    assert len(NAMES.promote("find_symbol", A, 2)) == 2


def test_a_list_longer_than_the_depth_is_not_cut_below_k() -> None:
    long = Ranking(tuple(f"t{i:03}" for i in range(300)), tuple(float(300 - i) for i in range(300)))
    assert len(fuse([long, Ranking()], 250, FusionSettings("rrf"))) == 250


RAW = Ranking(("a", "b", "c", "d"), (0.9, 0.8, 0.5, 0.1))
LINES = [Ranking(("x", "b", "y"), (0.7, 0.6, 0.2)), Ranking(("z", "b", "a"), (9.0, 8.0, 1.0))]


@pytest.mark.parametrize("method", ["interleave", "rrf", "weighted", "add"])
def test_without_a_rewrite_or_with_a_share_of_one_the_raw_list_stays(
    method: Literal["interleave", "rrf", "weighted", "add"],
) -> None:
    assert with_raw(RAW, [], 3, RewriteFusion(method, 0.0)) == RAW.cut(3)
    assert with_raw(RAW, [Ranking()], 3, RewriteFusion(method, 0.3)) == RAW.cut(3)
    assert with_raw(RAW, LINES, 3, RewriteFusion(method, 1.0)) == RAW.cut(3)


@pytest.mark.parametrize("method", ["interleave", "rrf", "weighted"])
def test_a_share_of_zero_leaves_the_raw_query_out(method: Literal["interleave", "rrf", "weighted"]) -> None:
    found = with_raw(RAW, LINES, 10, RewriteFusion(method, 0.0))
    assert set(found.ids) == {"x", "b", "y", "z", "a"}
    assert set(found.ids[:2]) == {"x", "z"}  # the first of each line: nobody's second choice is before them


def test_a_line_counts_as_much_as_it_has_to_say() -> None:
    """The second line finds little: its first tool scores below the raw query's third."""
    lines = [Ranking(("x", "b"), (0.7, 0.6)), Ranking(("z", "a"), (0.2, 0.1))]
    assert with_raw(RAW, lines, 9, RewriteFusion("weighted", 0.4)).ids[:2] == ("x", "z")
    found = with_raw(RAW, lines, 9, RewriteFusion("add", 0.4))
    assert dict(found) == pytest.approx({"b": 0.68, "x": 0.42, "a": 0.42, "c": 0.2, "z": 0.12, "d": 0.04})


@given(
    st.lists(st.lists(st.floats(-1, 3), min_size=1, max_size=DEPTH + 9), min_size=1, max_size=4),
    st.floats(0, 0.99),
)
def test_added_scores_of_a_rewrite_by_brute_force(lists: list[list[float]], share: float) -> None:
    rankings = [ranked(((f"{row:03d}", score) for row, score in enumerate(own)), DEPTH) for own in lists]
    found = with_raw(RAW, rankings, 3 * DEPTH, RewriteFusion("add", share))
    for tool, score in found:
        gains = []
        for each in (RAW, *rankings):
            floor = each.scores[-1] if len(each) == DEPTH else min(0.0, each.scores[-1])
            gains.append(max(dict(each)[tool] - floor, 0.0) if tool in each.ids else 0.0)
        assert score == pytest.approx(share * gains[0] + (1 - share) * max(gains[1:]), abs=1e-9)


def test_each_line_answers_its_own_need() -> None:
    """A tool that is every line's second choice does not beat one line's first: places are not summed."""
    assert with_raw(RAW, LINES, 3, RewriteFusion("rrf", 0.0, rrf_k=1)).ids == ("x", "z", "b")


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(-5, 5)), max_size=8), max_size=4),
    st.floats(0, 1),
)
def test_the_raw_share_by_brute_force(lists: list[list[tuple[str, float]]], share: float) -> None:
    rankings = [ranked(dict(each).items(), 8) for each in lists]
    found = with_raw(RAW, rankings, 20, RewriteFusion("rrf", share, rrf_k=5))
    lines = [each for each in rankings if each]
    if not lines or share == 1:
        assert found == RAW
        return
    for tool, score in found:
        of_raw = 1 / (6 + RAW.ids.index(tool)) if tool in RAW.ids else 0.0
        of_lines = max((1 / (6 + each.ids.index(tool)) if tool in each.ids else 0.0) for each in lines)
        assert score == pytest.approx(share * of_raw + (1 - share) * of_lines)
    assert list(found.scores) == sorted(found.scores, reverse=True)
