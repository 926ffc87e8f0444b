"""A retriever that remembers queries must not repeat their tools while rewriters are trained and dev is evaluated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from masstool_data import SETTINGS

from pipelines.cli import main as cli
from pipelines.context import make_context
from pipelines.data.dataset import DataSet, load_dataset
from pipelines.data.dataset_writer import write_dataset
from pipelines.data.folds import without_fold
from pipelines.data.sample_data import sample_folder
from pipelines.held_out import HeldOutSearch, fold_folder, refuse_learned
from pipelines.index.folds import copy_folds
from pipelines.index.trained_on import refuse_trained
from pipelines.search import ToolSearch
from retrievers.errors import BadInput
from retrievers.index import Index, build, confirm, remove
from retrievers.masstool.artifacts import decode_pairs, decode_split, encode_pairs, untrained
from retrievers.masstool.near_copies import NearCopies, copy_features
from retrievers.masstool.settings import MassToolSettings
from retrievers.settings import BM25Settings, HybridSettings
from retrievers.types import Ranking
from reward.metrics import judge, measure
from rewrite.types import Rewrite

SHIPPED = sample_folder() / "index"


def recall(search: ToolSearch, data: DataSet, split: str) -> float:
    gold = data.split(split)
    order = sorted(gold)
    rankings = search.retrieve([data.queries[query].text for query in order], 10)
    judged = judge([ranking.ids for ranking in rankings], [gold[query] for query in order])
    return float(measure("recall@5", judged).mean())


def test_dev_is_as_hard_as_it_was_for_training() -> None:
    """The pool of the sealed index holds dev: asked as a user would, it finds nearly everything."""
    index, data = Index(SHIPPED, make_context("cpu")), load_dataset("bundled:sample")
    model = index.manifest.retrievers["masstool"].model
    training = json.loads((SHIPPED / model / "training.json").read_text())
    assert recall(ToolSearch(index, "masstool"), data, "dev") > 0.95
    held_out = recall(ToolSearch(index, "masstool", held_out=True), data, "dev")
    assert held_out == pytest.approx(training["after"]["recall@5"], abs=0.005)


def small_dataset(folder: Path) -> DataSet:
    """The sample's first tools, and the queries that need no others."""
    data = load_dataset("bundled:sample")
    tools = data.tools[:40]
    ids = {tool.id for tool in tools}
    gold = {split: {query: own for query, own in data.split(split).items() if own <= ids} for split in data.gold}
    used = [data.queries[query] for part in gold.values() for query in part]
    write_dataset(folder, tools, used, gold)
    return load_dataset(str(folder))


def test_training_queries_are_answered_by_the_fold_that_did_not_learn_them(tmp_path: Path) -> None:
    data = small_dataset(tmp_path / "small")
    training = {"data": [{"path": f"{tmp_path}/small"}], "epochs": 8, "batch_size": 32, "folds": 2}
    config = {
        "index": f"{tmp_path}/index",
        "catalogue": f"{tmp_path}/small",
        "retrievers": {"masstool": {"kind": "masstool", "modules": {"detection": False}, "train": training}},
    }
    (tmp_path / "index.yaml").write_text(yaml.safe_dump(config))
    command = ["build", str(tmp_path / "index.yaml"), "--device", "cpu"]
    assert cli.index(command) == 0
    index = Index(tmp_path / "index", make_context("cpu"))
    served, held_out = ToolSearch(index, "masstool"), ToolSearch(index, "masstool", held_out=True)
    assert recall(served, data, "train") > 0.95
    noise = 2 * (0.2 / len(data.split("test")) + 0.2 / len(data.split("train"))) ** 0.5  # two standard errors
    assert recall(held_out, data, "train") < recall(served, data, "test") + noise < 0.9
    texts = [data.queries[query].text for query in sorted(data.split("train"))]
    folds = [Index(fold_folder(index.folder, fold), index.context).retriever("masstool") for fold in (0, 1)]
    learned = np.array([fold.learned(texts) for fold in folds])  # type: ignore[attr-defined]
    assert not learned.all(axis=0).any()  # each has a fold that does not know it
    assert learned.any(axis=0).all()
    manifest = tmp_path / "index.folds/0/manifest.json"
    before = manifest.stat().st_mtime_ns
    assert cli.index(command) == 0
    assert manifest.stat().st_mtime_ns == before  # the same data: kept
    remove(index.folder, [data.tools[0].id], index.context)
    with pytest.raises(BadInput, match="has other tools"):
        ToolSearch(Index(index.folder, index.context), "masstool", held_out=True)
    copy_folds(index.folder, index.folder, index.context)  # as `rewrite-train renew` does
    again = ToolSearch(Index(index.folder, index.context), "masstool", held_out=True)
    assert data.tools[0].id not in again.retrieve(texts[:1], 100)[0].ids
    manifest.unlink()
    with pytest.raises(BadInput, match="built with 2 folds; build it again"):
        ToolSearch(Index(tmp_path / "index", make_context("cpu")), "masstool", held_out=True)


def test_a_retriever_without_folds_cannot_train_a_rewriter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"output": f"{tmp_path}/t", "data": "bundled:sample", "index": str(SHIPPED), "retriever": "masstool"}
    (tmp_path / "targets.yaml").write_text(yaml.safe_dump(config))
    assert cli.train(["targets", str(tmp_path / "targets.yaml"), "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert "was trained on" in error
    assert "train.folds: 3" in error
    assert not (tmp_path / "t").exists()


class Learner:
    """A retriever that has learned some queries, and answers with its name."""

    remembers_queries = True

    def __init__(self, name: str, *queries: str) -> None:
        self.name, self.queries = name, queries

    def learned(self, utterances: Sequence[str]) -> list[bool]:
        return [utterance in self.queries for utterance in utterances]

    def search_held_out(self, texts: Sequence[str], k: int, utterances: Sequence[str]) -> list[Ranking]:
        return [Ranking((self.name,), (1.0,))] * len(texts)


def test_each_utterance_goes_to_the_first_index_that_did_not_learn_it() -> None:
    search = HeldOutSearch(Learner("whole", "a", "b", "c"), [Learner("one", "b", "c"), Learner("two", "a", "c")])
    texts, owners = ["x", "x", "x", "a"], ["a", "b", "new", "new"]
    assert [ranking.ids for ranking in search.search(texts, 1, owners)] == [("one",), ("two",), ("whole",), ("whole",)]
    with pytest.raises(BadInput, match="every fold of the retriever 'masstool' has learned 1 of these 3 queries"):
        refuse_learned(search, ["a", "b", "c"], "masstool")
    refuse_learned(search, ["a", "b"], "masstool")


def test_dev_queries_are_noted_by_row_and_not_by_their_text() -> None:
    pairs = [("rain tomorrow", ("weather",)), ("rain tomorrow", ("weather",)), ("a table", ("restaurant",))]
    lines = encode_pairs(pairs, [False, True, False])
    assert decode_pairs(lines) == pairs
    assert decode_split(lines) == (False, True, False)
    assert decode_split(encode_pairs(pairs)) is None
    artifacts = replace(untrained(MassToolSettings(), 8), pairs=pairs, from_dev=(False, True, False))
    assert artifacts.split_pool() == (["rain tomorrow", "a table"], ["rain tomorrow"])
    with pytest.raises(BadInput, match="does not note which"):
        replace(artifacts, from_dev=None).split_pool()


@pytest.mark.parametrize(
    "change", [{"split": "dev"}, {"split": "train"}, {"choose": True}, {"choose": True, "split": "train"}]
)
def test_an_index_of_another_protocol_cannot_be_measured_on_dev(change: dict[str, Any]) -> None:
    manifest = Index(SHIPPED, make_context("cpu")).manifest
    part = manifest.retrievers["masstool"]
    other = {**part.settings, "train": {**part.settings["train"], "protocol": "late-tools"}}
    index = cast(
        Index, SimpleNamespace(manifest=SimpleNamespace(retrievers={"masstool": replace(part, settings=other)}))
    )
    uses_dev = bool(change.get("choose")) or change.get("split") == "dev"
    with pytest.raises(BadInput, match="was trained on"):
        refuse_trained("it", index, "masstool", "sample", "official", uses_dev, change.get("split") == "train")
    refuse_trained("it", index, "masstool", "sample", "official", False)


@pytest.mark.parametrize("name", ["masstool", "hybrid"])
@pytest.mark.parametrize(
    "copy",
    [
        "a table for two at Luigi's",
        "Table for TWO at luigis!",
        "please, a table for two at Luigi's",
        "Luigi's: a table for two",
    ],
)
def test_a_planted_copy_has_no_vote(name: str, copy: str, tmp_path: Path) -> None:
    tools = load_dataset("bundled:sample").tools[:40]
    wrong = tools[3].id
    settings = {
        "masstool": MassToolSettings(),
        "bm25": BM25Settings(),
        "hybrid": HybridSettings(of=("masstool", "bm25")),
    }
    build(tmp_path / "index", tools, settings, make_context("cpu"))
    before = Index(tmp_path / "index", make_context("cpu"))
    utterance = "a table for two at Luigi's"
    plain = before.retriever(name).search([utterance, "book a table"], 10)
    confirm(tmp_path / "index", [(copy, (wrong,))], make_context("cpu"))
    index = Index(tmp_path / "index", make_context("cpu"))
    search = ToolSearch(index, name, held_out=True)
    assert wrong in index.retriever("masstool").search([copy], 1)[0].ids
    [alone] = search.retrieve([utterance], 10)
    [[line]] = search.search_rewrites([Rewrite(("book a table",), "rewritten")], [utterance])
    assert [alone.ids, line.cut(10).ids] == [ranking.ids for ranking in plain]


def test_folds_by_tools_know_nothing_of_their_tools() -> None:
    data = load_dataset("bundled:sample")
    assert SETTINGS.train is not None
    kept = []
    for fold in range(3):
        settings = replace(SETTINGS.train, folds=3, fold_by="tools", left_out_fold=fold)
        train = without_fold(data, settings).split("train")
        kept.append({tool for gold in train.values() for tool in gold})
    everything = {tool for gold in data.split("train").values() for tool in gold}
    left_out = [everything - tools for tools in kept]
    assert set().union(*left_out) == everything
    assert sum(len(tools) for tools in left_out) < 1.6 * len(everything)


WORDS = st.lists(st.sampled_from("rain Oslo tomorrow cheap flights hotel Paris table two dinner".split()), min_size=1)


@given(WORDS, st.randoms())
def test_order_case_and_punctuation_do_not_hide_a_copy(words: list[str], chance: object) -> None:
    shuffled = list(words)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    copies = NearCopies([", ".join(word.upper() for word in shuffled)])
    assert copies.is_copy(0, copy_features(" ".join(words)))


def test_similar_requests_are_no_copies() -> None:
    copies = NearCopies(["will it rain in Oslo tomorrow", "cheap flights to Oslo", "weather in oslo tomorow evening"])
    assert not copies.is_copy(0, copy_features("what can I wear in Oslo tomorrow"))
    assert not copies.is_copy(1, copy_features("cheap hotels in Oslo"))
    assert copies.is_copy(2, copy_features("weather in Oslo tomorrow evening"))
