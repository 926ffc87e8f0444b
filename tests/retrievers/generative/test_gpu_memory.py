"""How many answers a generative search has under way at a time: as many as there is room for, and the same tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from generative_toys import save_toy_model, toolgen

from retrievers.generative.decoding.language_model import LanguageModel
from retrievers.generative.decoding.local_model import ExtendedVocabulary, LocalDecoder
from retrievers.generative.retriever import GenerativeRetriever
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.types import Tool


@pytest.fixture(scope="module")
def toy_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_model(tmp_path_factory.mktemp("models") / "toy")


@pytest.mark.parametrize(("rows", "together"), [(1, [1, 1, 1, 1]), (7, [2, 2]), (10_000, [3, 1])])
def test_how_many_beams_are_under_way_together_changes_no_ranking(
    rows: int, together: list[int], toy_lm: Path, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = [Tool(f"id{place}", name, name) for place, name in enumerate(["get a", "get b", "put a", "put a b"])]
    three = replace(toolgen(toy_lm, None, "semantic"), beams=2, batch_size=3)
    build(tmp_path / "index", tools, {"toolgen": three}, context)
    queries = ["please blorp", "a", "get me a zindle and more", "put b", "a"]
    usual = Index(tmp_path / "index", context).retriever("toolgen").search(queries, 3)
    begun, asked = list[int](), list[int]()
    begin = LocalDecoder.__init__

    def count(
        self: LocalDecoder, vocabulary: ExtendedVocabulary, prompts: Sequence[Sequence[int]], whole: bool
    ) -> None:
        begun.append(len(prompts))
        begin(self, vocabulary, prompts, whole)

    monkeypatch.setattr(LocalDecoder, "__init__", count)
    monkeypatch.setattr(LanguageModel, "max_rows", lambda self, tokens: [asked.append(tokens), rows][1])
    retriever = Index(tmp_path / "index", context).retriever("toolgen")
    assert retriever.search(queries, 3) == usual
    assert begun == together, "as many queries as there is room for, three beams each, and three at most"
    assert isinstance(retriever, GenerativeRetriever)
    assert asked[-1] == max(len(retriever.chat.query_prompt(query, 256)) for query in queries), "the longest of those"


def test_a_gpu_with_room_keeps_more_beams_under_way(toy_lm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    language = LanguageModel(toy_lm, "cpu")
    assert language.max_rows(100) == 1024
    kept = language.model.base_model(input_ids=torch.ones(1, 10, dtype=torch.long), use_cache=True).past_key_values
    token = sum(layer.keys[0, :, 0].nbytes + layer.values[0, :, 0].nbytes for layer in kept.layers)
    language.__dict__["device"] = "cuda"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 16 * 5000 * 100 * token))
    assert language.max_rows(100) == 5000
    assert language.max_rows(10_000) == 1024, "never fewer than without being told"
    language.__dict__["_config"] = SimpleNamespace(hidden_size=64, num_hidden_layers=2)
    assert language.max_rows(100) == 1024, "a model that has no heads"
