"""MassTool in an index folder: the same scores as in training, and a catalogue that lives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from killing import die_before_step, in_a_child
from masstool_data import SETTINGS, small_set, torch_heads

from retrievers.base import Detector, HasParts, RankingParts, adds_votes
from retrievers.dense.encoder import Encoder
from retrievers.errors import BadInput
from retrievers.hybrid import Hybrid
from retrievers.index import Index, add, build, confirm, remove, verify
from retrievers.index import manifest as manifests
from retrievers.kind import Context
from retrievers.masstool.artifacts import load_artifacts, save_artifacts
from retrievers.masstool.offline_scores import offline_scores
from retrievers.masstool.retriever import WITHOUT_VOTES
from retrievers.masstool.settings import MassToolSettings
from retrievers.masstool.training.pipeline import make_artifacts
from retrievers.masstool.training.tensors import embed_training_set
from retrievers.settings import BM25Settings, DenseSettings
from retrievers.types import Tool

BLANK = MassToolSettings()


@pytest.fixture(scope="module")
def folder(some_tools: list[Tool], context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained and blank side by side, as nobody may change it."""
    folder = tmp_path_factory.mktemp("masstool") / "index"
    kinds = {"masstool": SETTINGS, "blank": BLANK, "dense": DenseSettings()}
    build(folder, some_tools, kinds, context, training={"masstool": [small_set(some_tools)]})
    return folder


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "index")
    return tmp_path / "index"


def test_an_index_scores_as_training_did(folder: Path, some_tools: list[Tool], context: Context) -> None:
    data = small_set(some_tools)
    index = Index(folder, context)
    model = folder / index.manifest.retrievers["masstool"].model
    heads = torch_heads(load_artifacts(model, SETTINGS).heads)
    encoder = Encoder(context.find_model(SETTINGS.model), SETTINGS.batch_size, "cpu")
    lessons = embed_training_set(data, encoder, context)
    queries = ["will it rain tomorrow", "send money to my sister", "a table for two tonight", *data.dev.queries[:5]]
    expected = offline_scores(heads, lessons, torch.from_numpy(encoder.queries(queries)))
    for ranking, row in zip(index.retriever("masstool").search(queries, 10), expected, strict=True):
        best = row.topk(10)
        assert np.allclose(ranking.scores, best.values.numpy(), atol=2e-5)
        assert ranking.ids[0] == data.ids[int(best.indices[0])]


def test_blank_it_is_plain_dense_search(folder: Path, context: Context) -> None:
    index, queries = Index(folder, context), ["will it rain tomorrow", "my parcel never came"]
    assert index.retriever("blank").search(queries, 10) == index.retriever("dense").search(queries, 10)


def test_its_rankings_have_parts(own: Path, context: Context, some_tools: list[Tool]) -> None:
    query, tool = "will it rain tomorrow", some_tools[-1].id
    index = Index(own, context)
    blank, dense = index.retriever("blank"), index.retriever("dense")
    assert isinstance(blank, HasParts)
    assert blank.ranking_parts(query, 5) == RankingParts({WITHOUT_VOTES: dense.search([query], 5)[0]}, [])
    assert blank.ranking_parts(" ", 5) == RankingParts()
    confirm(own, [(query, [tool])], context)
    confirmed = Index(own, context).retriever("masstool")
    assert isinstance(confirmed, HasParts)
    votes = confirmed.ranking_parts(query, 5).votes
    assert [tool] in votes
    assert confirmed.ranking_parts(query, 0) == RankingParts({}, votes)
    hybrid = Hybrid({"dense": dense, "voting": confirmed}, None, "").ranking_parts(query, 5)
    assert (list(hybrid.rankings), hybrid.votes) == (["dense", "voting"], votes)


def test_votes_can_be_left_out(own: Path, context: Context, some_tools: list[Tool]) -> None:
    query, tool = "will it rain tomorrow", some_tools[-1].id
    index = Index(own, context)
    blank, dense = index.retriever("blank"), index.retriever("dense")
    plain = Hybrid({"dense": dense, "voting": blank}, None, "")
    assert not any(map(adds_votes, (dense, blank, plain)))
    confirm(own, [(query, [tool])], context)
    confirmed = Index(own, context).retriever("masstool")
    assert adds_votes(confirmed)
    assert confirmed.search([query], 5)[0].ids[0] == tool
    [ranking] = confirmed.search_without_votes([query], 5)
    assert ranking == confirmed.ranking_parts(query, 5).rankings[WITHOUT_VOTES]
    assert ranking.ids[0] != tool
    confirmed = Index(own, context).retriever("blank")
    hybrid = Hybrid({"dense": dense, "voting": confirmed}, None, "")
    assert adds_votes(hybrid)
    assert hybrid.search_without_votes([query], 5) == plain.search([query], 5)
    assert hybrid.search([query], 5) != plain.search([query], 5)


def test_it_learned_something_and_detects(folder: Path, context: Context) -> None:
    index = Index(folder, context)
    facts = json.loads(next(folder.glob("masstool-model-*/training.json")).read_text())
    assert facts["after"]["mean"] > facts["plain"]["mean"]
    detector = index.retriever("masstool")
    assert isinstance(detector, Detector)
    assert not isinstance(index.retriever("blank"), Detector)
    wants, chats, nothing = detector.probabilities(["what's the weather in Oslo on Friday", "thanks, you're sweet", ""])
    assert 0 <= chats < wants <= 1
    assert nothing == 0


def test_a_new_tool_is_found_at_once_and_a_removed_one_is_gone(own: Path, context: Context) -> None:
    tool = Tool("new/llama", "shear_llama", "Shears a llama and sells its wool on the spot market.")
    add(own, [tool], context)
    index = Index(own, context)
    for name in ("masstool", "blank"):
        assert index.retriever(name).search(["shear my llama and sell the wool"], 3)[0].ids[0] == tool.id
    remove(own, [tool.id], context)
    again = Index(own, context)
    for name in ("masstool", "blank"):
        assert tool.id not in again.retriever(name).search(["shear my llama and sell the wool"], 100)[0].ids
    assert verify(own) == []


def test_votes_for_removed_tools_are_gone_too(own: Path, some_tools: list[Tool], context: Context) -> None:
    """The pool forgets a removed tool: what is left scores as if it had never been anybody's gold."""
    data = small_set(some_tools)
    gold = data.ids[data.train.gold[0][0]]
    query = data.train.queries[0]
    remove(own, [gold], context)
    index = Index(own, context)
    retriever = index.retriever("masstool")
    pool = retriever._pool  # type: ignore[attr-defined]
    assert gold not in retriever.search([query], 100)[0].ids
    only = [place for place, (_, tools) in enumerate(retriever._artifacts.pairs) if tools == (gold,)]  # type: ignore[attr-defined]
    assert not pool.live[only].any()


@pytest.mark.parametrize("name", ["masstool", "blank"])
def test_a_confirmed_query_helps_the_next_one_like_it(own: Path, context: Context, name: str) -> None:
    index = Index(own, context)
    asked, alike = "sort out the thing with aunt Berta", "please sort out that thing with my aunt Berta"
    last = index.retriever(name).search([alike], 60)[0].ids[-1]
    change = confirm(own, [(asked, [last])], context)
    assert change.confirmed == 1
    found = Index(own, context)
    assert found.fingerprint != index.fingerprint
    assert found.retriever(name).search([alike], 3)[0].ids[0] == last
    far = "what is the square root of nine"
    assert index.retriever(name).search([far], 5) == found.retriever(name).search([far], 5)
    # Confirmed again with other tools, the last word counts.
    other = index.retriever(name).search([alike], 60)[0].ids[-2]
    confirm(own, [(asked, [other])], context)
    assert Index(own, context).retriever(name).search([alike], 3)[0].ids[0] == other
    assert verify(own) == []
    # What was confirmed survives other changes, and goes with its tools.
    add(own, [Tool("new/x", "x", "an x")], context)
    assert Index(own, context).retriever(name).search([alike], 3)[0].ids[0] == other
    remove(own, [other], context)
    assert Index(own, context).retriever(name).search([alike], 1)[0].ids != (other,)


def test_nonsense_is_not_confirmed(own: Path, context: Context, tmp_path: Path, some_tools: list[Tool]) -> None:
    before = Index(own, context).fingerprint
    for pairs in ([("a query", ["nobody/knows"])], [("", [some_tools[0].id])], [("a query", [])], []):
        with pytest.raises(BadInput):
            confirm(own, pairs, context)
    assert Index(own, context).fingerprint == before
    build(tmp_path / "bm25", some_tools, {"bm25": BM25Settings()}, context)
    with pytest.raises(BadInput, match="masstool"):
        confirm(tmp_path / "bm25", [("a query", [some_tools[0].id])], context)


def test_an_index_without_confirmed_queries_reads_as_it_always_did(folder: Path) -> None:
    assert "extras" not in (folder / manifests.NAME).read_text()


def test_a_kill_while_confirming_leaves_the_old_index_or_the_new_one(own: Path, context: Context) -> None:
    tool = next(iter(Index(own, context).tools))
    context.find_model(BLANK.model)
    Index(own, context).retriever("blank").search(["warm"], 1)
    old = manifests.read(own)[1]
    kills, news = 0, 0
    for step in range(1, 200, 3):
        copy = own.parent / f"step-{step}"
        shutil.copytree(own, copy)

        def dying(copy: Path = copy, step: int = step) -> None:
            die_before_step(step)
            confirm(copy, [("warm", [tool])], context)

        code = in_a_child(dying)
        assert verify(copy) == []
        fresh = Index(copy, context)
        news += fresh.fingerprint != old
        shutil.rmtree(copy)
        if code == 0:
            break
        kills += 1
    assert kills >= 3
    assert news >= 1


def test_a_large_pool_is_searched_by_a_graph_alike(
    folder: Path, some_tools: list[Tool], context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, retriever = small_set(some_tools), Index(folder, context).retriever("masstool")
    encoder = Encoder(context.find_model(SETTINGS.model), SETTINGS.batch_size, "cpu")
    heads = torch_heads(retriever._artifacts.heads)  # type: ignore[attr-defined]
    tensors = embed_training_set(data, encoder, context)
    monkeypatch.setattr("retrievers.masstool.training.pipeline.POOL_GRAPH_ABOVE", 10)
    save_artifacts(tmp_path, make_artifacts(heads, data, tensors, {}))
    graph = load_artifacts(tmp_path, SETTINGS).pool_graph
    assert graph is not None
    pool, queries = retriever._pool, tensors.dev[:8].numpy()  # type: ignore[attr-defined]
    utterances = list(data.train.queries[:8])  # every one of them lies in the pool
    exact, without_copies = pool.nearest(queries, 5), pool.nearest_but_copies(queries, 5, utterances)
    pool.use_graph(graph)
    near = pool.nearest(queries, 5)
    assert np.array_equal(near.rows, exact.rows)
    assert np.allclose(near.cosines, exact.cosines, atol=1e-3)  # its keys take 16 bits
    assert np.array_equal(pool.nearest_but_copies(queries, 5, utterances).rows, without_copies.rows)
