"""What every retriever promises, asked of every retriever."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from masstool_data import SETTINGS as MASSTOOL
from masstool_data import small_set

from pipelines.calibration import Calibrator, make_reader
from retrievers.base import Retriever
from retrievers.calibration.logistic import Calibration
from retrievers.calibration.relevance import relevance
from retrievers.generative.retriever import DIGITS
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.masstool.settings import MassToolSettings
from retrievers.settings import BM25Settings, DenseSettings, FusionSettings, HybridSettings
from retrievers.types import Ranking, Tool

SETTINGS = {
    "bm25": BM25Settings(),
    "dense": DenseSettings(),
    "approximate": DenseSettings(ann_above=10),
    "hybrid": HybridSettings(of=("bm25", "dense")),
    "interleaved": HybridSettings(of=("bm25", "approximate"), fusion=FusionSettings("interleave")),
    "weighted": HybridSettings(of=("bm25", "dense"), fusion=FusionSettings("weighted", (0.3, 0.7))),
    "english": HybridSettings(of=("bm25", "dense"), other_languages=("bm25",)),
    "masstool": MASSTOOL,
    "blank-masstool": MassToolSettings(ann_above=10),
    "massive": HybridSettings(of=("bm25", "masstool")),
}
QUERIES = [
    "will it rain in Lisbon on Thursday",
    "¿cuánto son 300 coronas en euros?",
    "帮我查一下明天去杭州的火车",
    "my parcel never came",
    "getForecastByCity",
    "coat",
]


@pytest.fixture(scope="module")
def folder(some_tools: list[Tool], context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contract") / "index"
    # Two tools that differ in nothing but their id, so that there are ties.
    twins = [Tool(f"twin/{letter}", "twin_tool", "Tells twins apart.") for letter in "ba"]
    tools = [*some_tools, *twins]
    build(folder, tools, SETTINGS, context, training={"masstool": [small_set(tools)]})
    return folder


@pytest.fixture(params=list(SETTINGS))
def retriever(request: pytest.FixtureRequest, index: Index) -> Retriever:
    return index.retriever(request.param)


@pytest.fixture(scope="module")
def index(folder: Path, context: Context) -> Index:
    return Index(folder, context)


def same(left: Ranking, right: Ranking) -> bool:
    """Generative scores are rounded to few digits, the last of which the last bit of a batch may turn on some CPUs."""
    rounded = all(score == round(score, DIGITS) for score in (*left.scores, *right.scores))
    slack = 1.1 * 10**-DIGITS if rounded else 2e-5
    return left.ids == right.ids and left.scores == pytest.approx(right.scores, abs=slack)


def forget(context: Context) -> None:
    """Queries are remembered; what is asked again here must be computed again."""
    for encoder in context.encoders.values():
        encoder.clear_cache()


def test_batching_changes_nothing(retriever: Retriever, context: Context) -> None:
    together = retriever.search(QUERIES, 5)
    for query, ranking in zip(QUERIES, together, strict=True):
        forget(context)
        assert same(ranking, retriever.search([query], 5)[0])


def test_one_answer_a_query_in_order(retriever: Retriever) -> None:
    assert retriever.search([], 5) == []
    forward, backward = retriever.search(QUERIES, 5), retriever.search(QUERIES[::-1], 5)
    assert len(forward) == len(QUERIES)
    assert all(same(left, right) for left, right in zip(forward, backward[::-1], strict=True))


def test_scores_fall_and_ids_are_known_and_unique(retriever: Retriever, index: Index) -> None:
    for ranking in retriever.search(QUERIES, 20):
        assert list(ranking.scores) == sorted(ranking.scores, reverse=True)
        assert len(set(ranking.ids)) == len(ranking.ids) <= 20
        assert set(ranking.ids) <= index.tools.keys()


def test_a_shorter_list_is_the_head_of_a_longer_one(retriever: Retriever) -> None:
    for short, long in zip(retriever.search(QUERIES, 3), retriever.search(QUERIES, 10), strict=True):
        assert same(short, long.cut(3))


def test_k_may_exceed_the_catalogue(retriever: Retriever, index: Index) -> None:
    (ranking,) = retriever.search(["the weather forecast for tomorrow"], 10_000)
    assert 0 < len(ranking) <= len(index.tools)
    if "bm25" not in retriever.fingerprint:
        assert len(ranking) == len(index.tools)


def test_an_empty_query_finds_nothing(retriever: Retriever) -> None:
    assert retriever.search(["", "  \n\t", "\x00"], 5) == [Ranking()] * 3


def test_a_giant_query_is_answered(retriever: Retriever) -> None:
    (ranking,) = retriever.search(["weather in lisbon " * 20_000], 5)
    assert len(ranking) == 5 or "bm25" in retriever.fingerprint


def test_ties_stand_in_the_order_of_ids(retriever: Retriever) -> None:
    (ranking,) = retriever.search(["tells twins apart"], 4)
    assert ranking.ids[:2] == ("twin/a", "twin/b")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(), max_size=40))
def test_any_text_is_a_query(retriever: Retriever, text: str) -> None:
    (ranking,) = retriever.search([text], 3)
    assert len(ranking) <= 3


def test_lone_surrogates_do_no_harm(retriever: Retriever) -> None:
    assert len(retriever.search(["weather \ud800 forecast \udfff"], 3)[0]) == 3


def test_reload_gives_identical_rankings(retriever: Retriever, folder: Path, context: Context) -> None:
    name = retriever.fingerprint.partition("/")[2]
    again = Index(folder, context).retriever(name)
    assert again.fingerprint == retriever.fingerprint
    forget(context)  # vectors of another batch differ in their last bit
    before = retriever.search(QUERIES, 10)
    forget(context)
    assert again.search(QUERIES, 10) == before


def test_probabilities_do_not_depend_on_k_and_relevance_never_rises(retriever: Retriever, index: Index) -> None:
    name = retriever.fingerprint.partition("/")[2]
    reader = make_reader(index, name)
    calibration = Calibration(-1.0, tuple(1.0 if rises else -0.5 for rises in reader.rising))
    calibrator, queries = Calibrator(reader, calibration), [*QUERIES, ""]
    rankings = retriever.search(queries, calibrator.depth(12))
    for short, long in zip(calibrator.add(queries, rankings, 3), calibrator.add(queries, rankings, 12), strict=True):
        assert short == long.cut(3)
        assert len(long.probabilities) == len(long)
        assert all(0 <= probability <= 1 for probability in long.probabilities)
        if len(reader.parts) == 1:  # a hybrid's rank follows its parts' ranks, its probability their scores
            assert list(long.probabilities) == sorted(long.probabilities, reverse=True)
        values = relevance(long.probabilities)
        assert values == sorted(values, reverse=True)


def test_approximate_search_finds_what_exact_search_finds(index: Index) -> None:
    exact, near = index.retriever("dense").search(QUERIES, 10), index.retriever("approximate").search(QUERIES, 10)
    assert all(same(left, right) for left, right in zip(exact, near, strict=True))
