"""Vectors in Milvus behind the same index: the same rankings as vectors in memory, whatever else lies there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from doubles import counting_context, tiny_model, varied_tools

from pipelines.config import parse
from pipelines.index.build import IndexConfig
from retrievers.base import Retriever
from retrievers.dense.milvus import Milvus
from retrievers.errors import BadInput, StoreDown
from retrievers.index import Index, add, build, remove, verify
from retrievers.kind import Context
from retrievers.rows import Rows
from retrievers.settings import DenseSettings, HybridSettings, MilvusSettings
from retrievers.types import Ranking, Tool

pytest.importorskip("milvus_lite")
QUERIES = [
    "will it rain in Lisbon on Thursday",
    "¿cuánto son 300 coronas en euros?",
    "my parcel never came",
    "",
    "coat",
]


@pytest.fixture(scope="module")
def folder(some_tools: list[Tool], context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's tools, and two that differ in nothing but their id."""
    folder = tmp_path_factory.mktemp("milvus")
    twins = [Tool(f"twin/{letter}", "twin_tool", "Tells twins apart.") for letter in "ba"]
    settings = {
        "dense": DenseSettings(),
        "milvus": MilvusSettings(str(folder / "store" / "vectors.db")),
        "both": HybridSettings(of=("dense", "milvus")),
    }
    build(folder / "index", [*some_tools[:16], *twins], settings, context)
    return folder / "index"


def same(left: Ranking, right: Ranking) -> bool:
    return left.ids == right.ids and left.scores == pytest.approx(right.scores, abs=2e-5)


def agree(index: Index, k: int) -> bool:
    found = [index.retriever(name).search(QUERIES, k) for name in ("dense", "milvus")]
    return all(same(left, right) for left, right in zip(*found, strict=True))


def test_the_rankings_are_those_of_vectors_in_memory(folder: Path, context: Context) -> None:
    index = Index(folder, context)
    assert agree(index, 5)
    assert agree(index, 10_000)
    retriever: Retriever = index.retriever("milvus")
    assert retriever.search(["tells twins apart"], 2)[0].ids == ("twin/a", "twin/b")
    assert retriever.search([], 5) == []
    assert retriever.search(["", "\x00"], 5) == [Ranking()] * 2
    assert same(retriever.search(QUERIES, 5)[0], retriever.search(QUERIES[:1], 5)[0])
    assert len(index.retriever("both").search(["coat"], 3)[0]) == 3
    assert verify(folder) == []


def test_changes_and_old_versions(folder: Path, context: Context, some_tools: list[Tool]) -> None:
    before = Index(folder, context)
    kept = before.retriever("milvus").search(QUERIES, 8)
    strange = Tool("x' or key > 0 or '", "quagga_ledger", "Reconciles zebrafish invoices with the quagga ledger.")
    add(folder, [strange, Tool(some_tools[0].id, "other", "Something else entirely.")], context)
    after = Index(folder, context)
    assert after.retriever("milvus").search(["zebrafish invoices"], 1)[0].ids == (strange.id,)
    assert agree(after, 8)
    assert before.retriever("milvus").search(QUERIES, 8) == kept  # who opened the old version keeps it
    remove(folder, [strange.id, "twin/a"], context)
    last = Index(folder, context)
    assert strange.id not in last.retriever("milvus").search(["zebrafish invoices"], 100)[0].ids
    assert last.retriever("milvus").search(["tells twins apart"], 1)[0].ids == ("twin/b",)
    assert agree(last, 8)


def test_nothing_is_embedded_that_is_there(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    (first, one), (second, two) = counting_context(model), counting_context(model)
    settings = {"milvus": MilvusSettings(str(tmp_path / "vectors.db"), model="any")}
    build(tmp_path / "one", varied_tools(30), settings, first)
    build(tmp_path / "two", varied_tools(30), settings, second)
    assert one.embedded
    assert two.embedded == []
    found = [
        Index(tmp_path / name, context).retriever("milvus").search(["weather"], 9)
        for name, context in (("one", first), ("two", second))
    ]
    assert found[0] == found[1]


def test_more_is_asked_for_until_enough_is_ours() -> None:
    """A store that is full of what this version does not hold, against brute force."""
    chance = np.random.default_rng(3)
    everything = chance.normal(size=(3000, 8)).astype(np.float32)

    class Full:
        asked: list[int] = []  # noqa: RUF012

        def search(self, vectors: np.ndarray, limit: int) -> list[tuple[np.ndarray, np.ndarray]]:
            self.asked.append(limit)
            scores = vectors @ everything.T
            order = np.argsort(-scores, axis=1)[:, :limit]
            return [(keys, row[keys]) for keys, row in zip(order, scores, strict=True)]

    class Queries:
        def queries(self, texts: list[str]) -> np.ndarray:
            return everything[[int(text) for text in texts]]

    keys = np.concatenate([chance.choice(3000, 40, replace=False), [7, 7]])
    live = np.ones(42, dtype=bool)
    live[:5] = False
    rows = Rows([f"t{number:02}" for number in range(42)], live)
    made = Milvus(Full(), Queries(), keys, rows, "x")  # type: ignore[arg-type]
    for query in ("7", "1000", "2999"):
        scores = everything[keys] @ everything[int(query)]
        assert same(made.search([query], 6)[0], rows.best(scores.copy(), 6))
    assert max(Full.asked) > 22


def test_what_goes_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILVUS_TOKEN", "root:quagga-secret")
    context, _ = counting_context(tiny_model(tmp_path / "model"))
    settings = {"milvus": MilvusSettings("http://127.0.0.1:9", model="any")}
    with pytest.raises(StoreDown, match=r"Milvus at http://127.0.0.1:9 does not answer") as caught:
        build(tmp_path / "index", varied_tools(3), settings, context)
    assert "quagga-secret" not in str(caught.value)
    assert not (tmp_path / "index" / "manifest.json").exists()
    for wrong in ({"uri": ""}, {"uri": "http://root:secret@milvus:19530"}, {"uri": "x", "collection": "a-b"}):
        with pytest.raises(BadInput):
            parse(
                IndexConfig,
                {"index": "i", "catalogue": "bundled:sample", "retrievers": {"m": {"kind": "milvus", **wrong}}},
            )
