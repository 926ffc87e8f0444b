"""What every retriever promises, asked of a ToolWeaver: the same tests, another retriever."""

from __future__ import annotations

from dataclasses import replace
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
from weaver_toys import QUICK, any_set, toolweaver

from retrievers.base import Retriever
from retrievers.generative.retriever import GenerativeRetriever
from retrievers.index import Index, add, build
from retrievers.kind import Context
from retrievers.settings import BM25Settings, HybridSettings
from retrievers.types import Tool
from retrievers.weaver.settings import QuantiserSettings


@pytest.fixture(scope="module")
def folder(some_tools: list[Tool], context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = save_toy_model(tmp_path_factory.mktemp("models") / "toy")
    twins = [Tool(f"twin/{letter}", "twin_tool", "Tells twins apart.") for letter in "ba"]
    tools = [*some_tools, *twins]
    quantiser = QuantiserSettings(levels=3, codebook_size=8, width=16, steps=80)
    weaver = toolweaver(model, QUICK, quantiser, batch_size=4, new_tools="token")
    kinds = {"toolweaver": weaver, "bm25": BM25Settings(), "hybrid": HybridSettings(of=("bm25", "toolweaver"))}
    folder = tmp_path_factory.mktemp("contract") / "index"
    build(folder, tools, kinds, context, text=["name"], training={"toolweaver": [any_set(tools)]})
    add(folder, [Tool("late", "late_tool", "Comes after training."), replace(twins[0], id="late/twin")], context)
    return folder


@pytest.fixture(scope="module")
def index(folder: Path, context: Context) -> Index:
    return Index(folder, context)


@pytest.fixture(params=["toolweaver", "hybrid"])
def retriever(request: pytest.FixtureRequest, index: Index) -> Retriever:
    return index.retriever(request.param)


def test_exact_duplicates_have_codes_of_their_own(index: Index) -> None:
    retriever = index.retriever("toolweaver")
    assert isinstance(retriever, GenerativeRetriever)
    assert len(set(retriever.branches.values())) == len(index.tools)
    assert retriever.branches["twin/a"][:2] == retriever.branches["twin/b"][:2]


def test_over_all_tools_the_probabilities_sum_to_one(index: Index) -> None:
    import numpy as np

    (ranking,) = index.retriever("toolweaver").search(["will it rain"], 1000)
    assert len(ranking) == len(index.tools)
    assert float(np.exp(ranking.scores).sum()) == pytest.approx(1.0, abs=2e-3)
