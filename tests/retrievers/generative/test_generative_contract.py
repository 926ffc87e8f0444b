"""What every retriever promises, asked of generative ones: the same tests, other retrievers."""

from __future__ import annotations

from pathlib import Path

import pytest
from generative_toys import save_toy_model
from test_contract import (  # noqa: F401 - collected here once more, with the fixtures below
    test_a_giant_query_is_answered,
    test_a_shorter_list_is_the_head_of_a_longer_one,
    test_an_empty_query_finds_nothing,
    test_any_text_is_a_query,
    test_batching_changes_nothing,
    test_k_may_exceed_the_catalogue,
    test_lone_surrogates_do_no_harm,
    test_one_answer_a_query_in_order,
    test_reload_gives_identical_rankings,
    test_scores_fall_and_ids_are_known_and_unique,
)

from retrievers.base import Retriever
from retrievers.generative.settings import ToolGenSettings
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.settings import BM25Settings, HybridSettings
from retrievers.types import Tool

INDEXINGS = ("atomic", "semantic", "numeric", "hierarchical")


@pytest.fixture(scope="module")
def folder(some_tools: list[Tool], context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = str(save_toy_model(tmp_path_factory.mktemp("models") / "toy"))
    twins = [Tool(f"twin/{letter}", "twin_tool", "Tells twins apart.") for letter in "ba"]
    kinds = {name: ToolGenSettings(model=model, indexing=name, batch_size=4) for name in INDEXINGS}  # type: ignore[arg-type]
    others = {"bm25": BM25Settings(), "hybrid": HybridSettings(of=("bm25", "atomic"))}
    folder = tmp_path_factory.mktemp("contract") / "index"
    build(folder, [*some_tools, *twins], {**kinds, **others}, context, text=["name"])
    return folder


@pytest.fixture(scope="module")
def index(folder: Path, context: Context) -> Index:
    return Index(folder, context)


@pytest.fixture(params=[*INDEXINGS, "hybrid"])
def retriever(request: pytest.FixtureRequest, index: Index) -> Retriever:
    return index.retriever(request.param)


def test_twins_stand_in_the_order_of_ids(index: Index) -> None:
    (ranking,) = index.retriever("atomic").search(["tells twins apart"], 1000)
    place = ranking.ids.index("twin/a")
    assert ranking.ids[place + 1] == "twin/b"
    assert ranking.scores[place] == ranking.scores[place + 1]
