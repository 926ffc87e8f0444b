"""The rerank stage of `ToolSearch`: first order and new one, exact names, failures, probabilities, bad folders."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from doubles import plain_context
from rerankers import BEHIND_BM25, BrokenReranker, CountingReranker, write_cross_encoder

from pipelines.rerank.loading import choice_warning, choose, find_reranker, load_model, make_stage, retriever_words
from pipelines.rerank.settings import RerankSettings
from pipelines.rerank.stage import RerankStage
from pipelines.search import ToolSearch
from retrievers.errors import BadInput, ModelMismatch, ModelMissing
from retrievers.index import Index
from retrievers.rerank.folder import RerankChoice, RerankerCard, write_card
from retrievers.text import tokens

QUERY = "list invoices of a customer"


def search_with(index: Path, stage: RerankStage | None) -> ToolSearch:
    return ToolSearch(Index(index, plain_context()), "bm25", reranker=stage)


def test_the_first_tools_are_read_once_and_reordered(index: Path) -> None:
    model = CountingReranker()
    plain, stage = search_with(index, None), RerankStage(model, top=8, weight=1.0)
    first, [answer] = plain.search([QUERY], 20)[0], search_with(index, stage).explain([QUERY], 20)
    assert set(answer.ranking.ids[:8]) == set(first.ids[:8])
    assert answer.ranking.ids[8:] == first.ids[8:]
    assert answer.ranking.ids != first.ids
    [(query, texts)] = model.read
    assert query == QUERY
    assert len(texts) == 8
    lengths = [len(tokens(texts[first.ids.index(tool)])) for tool in answer.ranking.ids[:8]]
    assert lengths == sorted(lengths)
    assert list(answer.ranking.scores) == sorted(answer.ranking.scores, reverse=True)
    assert search_with(index, stage).search([QUERY], 3)[0].ids == answer.ranking.ids[:3]


def test_named_tools_stay_first_and_an_empty_list_is_no_failure(index: Path) -> None:
    search = search_with(index, RerankStage(CountingReranker(), top=20, weight=1.0))
    named = search.tools["tool-003"]
    [answer, empty] = search.explain([f"please call {named.id} for {QUERY}", "zxqv"], 5)
    assert answer.ranking.ids[0] == named.id
    assert not empty.ranking
    assert empty.rerank_failure is None


def test_a_model_that_answers_no_number_leaves_the_first_order(index: Path) -> None:
    first = search_with(index, None).search([QUERY], 10)[0]
    [answer] = search_with(index, RerankStage(BrokenReranker(), top=10, weight=1.0)).explain([QUERY], 10)
    assert answer.rerank_failure == "not_finite"
    assert answer.ranking.ids == first.ids
    with pytest.raises(ConnectionError):  # callers decide; a server falls back
        search_with(index, RerankStage(BrokenReranker(ConnectionError()), 10, 1.0)).search([QUERY], 10)


def test_probabilities_leave_out_what_is_probably_not_needed(index: Path) -> None:
    stage = RerankStage(CountingReranker(), 8, 1.0, BEHIND_BM25.calibrate())
    search = search_with(index, stage)
    [answer] = search.explain([QUERY], 10)
    assert answer.probabilities is not None
    assert len(answer.probabilities) == len(answer.ranking) == 10
    assert list(answer.probabilities[:8]) == sorted(answer.probabilities[:8], reverse=True)
    limit = answer.probabilities[2]
    [kept] = search.explain([QUERY], 10, min_probability=limit)
    assert kept.probabilities is not None
    assert min(kept.probabilities) >= limit
    assert 3 <= len(kept.ranking) < 10
    [none] = search.explain([QUERY], 10, min_probability=1.0)
    assert not none.ranking
    assert "below min_probability 1" in str(none.nothing_fits)
    with pytest.raises(BadInput, match="min_probability must be a number between 0 and 1"):
        search.search([QUERY], 3, min_probability=2)


def test_a_folder_gives_its_own_depth_and_weight(index: Path, tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "reranker", BEHIND_BM25, RerankChoice("masstool", 5, 0.0))
    parts = find_reranker(RerankSettings(str(folder)))
    stage = make_stage(parts, load_model(parts, "cpu"), "bm25")
    assert (stage.top, stage.weight, stage.calibration is None) == (10, 1.0, False)
    [answer] = search_with(index, stage).explain([QUERY], 5)
    assert answer.rerank_failure is None
    assert len(answer.ranking) == 5
    given = find_reranker(RerankSettings(str(folder), top=3))
    assert (choose(given, "bm25").top, choose(given, "bm25").calibration) == (3, {})
    assert "were chosen in front of bm25; masstool, and this is dense" in choice_warning(parts, "dense")
    assert "gives the reranker no weight" in choice_warning(parts, "masstool")
    assert choice_warning(parts, "bm25") == ""


def test_folders_that_cannot_work_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="rewrite-train rerank"):
        find_reranker(RerankSettings(str(tmp_path)))
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_model.safetensors").touch()
    card = RerankerCard("language-model", "bundled:minilm", "other", "lora", 256, 64, (BEHIND_BM25,))
    write_card(folder, card)
    with pytest.raises(ModelMismatch, match="is an adapter of bundled:minilm"):
        find_reranker(RerankSettings(str(folder)))
    with pytest.raises(ModelMissing, match="no model folder"):
        find_reranker(RerankSettings(str(folder), base="./nowhere"))
    encoder = write_cross_encoder(tmp_path / "reranker")
    with pytest.raises(BadInput, match="vLLM runs language models"):
        find_reranker(RerankSettings(str(encoder), engine="vllm"))
    with pytest.raises(BadInput, match="leave `base` out"):
        find_reranker(RerankSettings(str(encoder), base="bundled:minilm"))


def test_a_retriever_without_the_bonus_for_names_is_another_front() -> None:
    retrievers: dict[str, dict[str, Any]] = {
        "bm25": {"kind": "bm25", "names": 2.5},
        "words": {"kind": "bm25", "names": 0},
        "dense": {"kind": "dense", "model": "bundled:tools"},
        "hybrid": {"kind": "hybrid", "of": ["bm25", "dense"]},
        "old": {"kind": "hybrid", "of": ["words", "dense"], "fusion": {"method": "rrf"}},
    }
    entries = {name: SimpleNamespace(settings=settings) for name, settings in retrievers.items()}
    index: Any = SimpleNamespace(manifest=SimpleNamespace(retrievers=entries))
    assert retriever_words(index, "hybrid") == "hybrid of bm25 and dense bundled:tools"
    assert retriever_words(index, "old") == "hybrid (rrf) of bm25 without names and dense bundled:tools"
