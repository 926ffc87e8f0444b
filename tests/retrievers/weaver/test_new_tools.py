"""Tools that come after a ToolWeaver's training, each said by a token of its own until it is trained in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from generative_toys import DATA, IDS, TOOLS, TRAINING, WORDS, save_toy_model
from safetensors.numpy import load_file
from weaver_toys import QUICK, toolweaver

from retrievers.errors import BadInput
from retrievers.generative import code_table
from retrievers.generative.code_table import CodeTable
from retrievers.generative.decoding.language_model import LanguageModel
from retrievers.generative.retriever import GenerativeRetriever
from retrievers.generative.training.new_tokens import RIDGE
from retrievers.index import Index, add, build, remove, verify
from retrievers.index.in_memory import MemoryIndex, make_memory_segment
from retrievers.index.reader import open_kinds
from retrievers.index.tools import encode
from retrievers.kind import Context
from retrievers.registry import make_kind
from retrievers.text import clean, document
from retrievers.types import Ranking, Tool

NAME = "toolweaver"
PAIRS = [("blorp", "wix"), ("frum", "snarb"), ("quax", "plood")]
NEW = [Tool(f"new{i}", f"{a}_{b}_tool", f"Does {a} and {b} things.") for i, (a, b) in enumerate(PAIRS)]
BY_HEART = replace(
    TRAINING,
    memorise=replace(TRAINING.memorise, epochs=30),
    retrieve=replace(TRAINING.retrieve, epochs=8, rehearse=0.17),  # every document once
    eval_every=8,
)
ASKED = [f"one {word}" for word in WORDS]


@pytest.fixture(scope="module")
def context(context: Context, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    """Exact vectors: between made-up words the margins are smaller than what int8 rounds off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLREWRITE_ENCODER", "float32")
        yield replace(context, cache=tmp_path_factory.mktemp("cache"), encoders={})


@pytest.fixture(scope="module")
def toy_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_model(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(scope="module")
def built(toy_lm: Path, context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new_tools") / "index"
    build(folder, TOOLS, {NAME: toolweaver(toy_lm, BY_HEART, new_tools="token")}, context, training={NAME: [DATA]})
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "index")


def opened(folder: Path, context: Context) -> GenerativeRetriever:
    retriever = Index(folder, context).retriever(NAME)
    assert isinstance(retriever, GenerativeRetriever)
    return retriever


def known(ranking: Ranking) -> list[str]:
    return [tool for tool in ranking.ids if tool in IDS]


def test_for_its_own_document_a_new_tool_is_before_all_known_tools_and_these_keep_their_order(
    folder: Path, context: Context
) -> None:
    before = opened(folder, context)
    ranked = before.search(ASKED, 8)
    for tool in NEW:  # a segment each
        add(folder, [tool], context)
    assert verify(folder) == []
    after = opened(folder, context)
    for tool, ranking in zip(NEW, after.search([document(tool) for tool in NEW], 11), strict=True):
        assert ranking.ids.index(tool.id) < min(ranking.ids.index(other) for other in IDS)
    assert before.branches.items() < after.branches.items()
    assert len(set(after.branches.values())) == 11
    assert {len(path) for path in after.branches.values()} == {3}
    for old, new in zip(ranked, after.search(ASKED, 99), strict=True):
        assert len(new) == 11
        assert known(new) == known(old)
        assert float(np.exp(new.scores).sum()) == pytest.approx(1.0, abs=2e-3)
    assert opened(folder, context).search(ASKED, 11) == after.search(ASKED, 11)


def test_among_all_tokens_it_can_be_said_as_well(folder: Path, context: Context) -> None:
    add(folder, NEW, context)
    index = Index(folder, context)
    model = folder / index.manifest.retrievers[NAME].model
    settings = replace(toolweaver(model, new_tools="token"), scores="vocabulary")
    retriever = make_kind(settings, context, model).open(index.blocks(NAME), index.rows, "", index.retriever)
    (ranking,) = retriever.search([document(NEW[1])], 11)
    assert "new1" in ranking.ids[:3]
    assert len(ranking) == 11


def test_removed_returned_and_folded_they_stay_what_they_are(folder: Path, context: Context) -> None:
    add(folder, NEW, context)
    first = opened(folder, context)
    ranked = first.search(ASKED, 11)
    remove(folder, ["new1", "t0"], context)
    without = opened(folder, context)
    assert all({"new1", "t0"}.isdisjoint(ranking.ids) for ranking in without.search([document(NEW[1]), *ASKED], 11))
    add(folder, [NEW[1]], context)
    add(folder, [TOOLS[0]], context)
    again = opened(folder, context)
    assert again.branches == first.branches
    assert again.search(ASKED, 11) == ranked
    segments = len(Index(folder, context).manifest.segments)
    for number in range(12):  # until segments are folded
        passing = Tool(f"passing{number}", "passing_tool", f"Passes {number} by.")
        add(folder, [passing], context)
        remove(folder, [passing.id], context)
    index = Index(folder, context)
    assert len(index.manifest.segments) < segments + 12
    rows = sum(len(block.arrays["outputs"]) for block in index.blocks(NAME))
    assert rows < 15  # of those that passed by, folded ones left nothing behind
    folded = opened(folder, context)
    assert folded.branches == first.branches
    assert folded.search(ASKED, 11) == ranked


def test_building_further_trains_them_in_under_their_codes_whatever_their_order(
    folder: Path, toy_lm: Path, context: Context
) -> None:
    twins = [replace(NEW[0], id=f"twin{i}") for i in range(3)]  # whoever comes first has the nearest code
    for tool in reversed(twins):
        add(folder, [tool], context)
    remove(folder, ["twin2"], context)
    before = opened(folder, context)
    size = CodeTable.read(folder / Index(folder, context).manifest.retrievers[NAME].model).vocab_size
    tools = [*TOOLS, *twins[:2]]
    more = replace(
        DATA,
        ids=tuple(tool.id for tool in tools),
        documents=tuple(tool.description for tool in tools),
        train=replace(DATA.train, queries=(*DATA.train.queries, "a mimsy"), gold=(*DATA.train.gold, (8, 9))),
    )
    further = replace(BY_HEART, retrieve=QUICK.retrieve)
    settings = {NAME: toolweaver(toy_lm, further, new_tools="token")}
    build(folder, tools, settings, context, training={NAME: [more]}, resume=True)
    after = opened(folder, context)
    assert after.branches == before.branches
    index = Index(folder, context)
    table = CodeTable.read(folder / index.manifest.retrievers[NAME].model)
    assert table.vocab_size == size  # no row of theirs is left
    assert table.own_logit is not None
    assert [len(block.arrays["outputs"]) for block in index.blocks(NAME)] == [0]
    (ranking,) = after.search([document(NEW[0])], 2)
    assert set(ranking.ids) == {"twin0", "twin1"}


def test_of_all_rows_that_its_document_calls_for_it_is_the_one_that_known_documents_call_for_least(
    built: Path, context: Context
) -> None:
    model = built / Index(built, context).manifest.retrievers[NAME].model
    table, language = CodeTable.read(model), LanguageModel(model, "cpu")
    known, new = (
        language.last_states([language.chat.query_prompt(clean(document(tool)), 256) for tool in tools]).numpy()
        for tools in (TOOLS, NEW)
    )
    firsts = [table.codes[tool][0] for tool in IDS]
    outputs = language.outputs.numpy()
    assert table.own_logit == pytest.approx(float((known * outputs[firsts]).sum(axis=1).mean()), rel=1e-4)
    kind = make_kind(toolweaver(model, new_tools="token"), context, model)
    rows = kind.tool_rows(NEW, [document(tool) for tool in NEW])["outputs"]  # type: ignore[attr-defined]
    assert (rows * new).sum(axis=1) == pytest.approx(
        table.own_logit, rel=1e-3
    )  # as strongly as known ones are called for
    mean, ridge = outputs[sorted(set(firsts))].mean(axis=0), RIDGE * float((known**2).mean())

    def cost(row: np.ndarray) -> float:
        return float(((known @ (row - mean)) ** 2).mean() + ridge * ((row - mean) ** 2).sum())

    chance = np.random.default_rng(0)
    for row, state in zip(rows, new, strict=True):
        for _ in range(50):
            other = chance.normal(size=row.shape) * 0.05
            other -= (other @ state) / (state @ state) * state  # its document calls for it as strongly
            assert cost(row) < cost(row + other)


def test_an_index_without_what_a_token_is_made_of_is_named(folder: Path, context: Context) -> None:
    model = folder / Index(folder, context).manifest.retrievers[NAME].model
    facts = json.loads((model / code_table.FILE).read_text())
    (model / code_table.FILE).write_text(json.dumps({**facts, "own_logit": None}))
    kind = make_kind(toolweaver(model, new_tools="token"), context, model)
    with pytest.raises(BadInput, match="build it again, or set new_tools: nearest"):
        kind.tool_rows(NEW, [document(tool) for tool in NEW])  # type: ignore[attr-defined]


def test_a_model_that_reads_by_other_rows_than_it_speaks_by_and_an_index_in_memory(
    context: Context, tmp_path: Path
) -> None:
    untied, folder = save_toy_model(tmp_path / "untied", tied=False), tmp_path / "index"
    build(folder, TOOLS, {NAME: toolweaver(untied, QUICK, new_tools="token")}, context, training={NAME: [DATA]})
    manifest = Index(folder, context).manifest
    weights = load_file(folder / manifest.retrievers[NAME].model / "model.safetensors")
    assert not np.array_equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])

    def lines(*tools: Tool) -> list[str]:
        return encode(tools).decode().rstrip("\n").split("\n")

    # As a gateway does it that finds some new_tools in its catalogue, and hears of others.
    kinds = open_kinds("memory", folder, manifest, context)
    run = make_memory_segment("memory", lines(*TOOLS, NEW[0]), manifest.text, kinds)
    memory = MemoryIndex("memory", manifest, "0", [run], folder, context)
    memory = memory.with_changes(lines(*NEW[1:]), frozenset({"t1"}), "1", context)
    retriever = memory.retriever(NAME)
    assert isinstance(retriever, GenerativeRetriever)
    assert len(set(retriever.branches.values())) == 10
    (block, more) = memory.blocks(NAME)
    assert (len(block.arrays["outputs"]), len(more.arrays["outputs"])) == (1, 2)
    assert not np.array_equal(more.arrays["inputs"], more.arrays["outputs"])
    for tool in NEW:
        (ranking,) = retriever.search([document(tool)], 10)
        assert tool.id in ranking.ids[:3]
        assert "t1" not in ranking.ids
    assert retriever.text_generator is not None
    assert {len(code) for code in retriever.text_generator().codes.values()} == {1, 3}
