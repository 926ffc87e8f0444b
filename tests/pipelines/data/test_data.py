"""Data sets: what is read, what is refused, and splits that are what they claim."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.dataset import DataSet, Query, load_dataset
from pipelines.data.splits import Protocol, apply_protocol, late_tools, leave_one_out, unseen_tools
from pipelines.data.training_sets import training_sets
from retrievers.errors import BadInput
from retrievers.settings import DenseTraining, TrainingSource
from retrievers.types import Tool


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small data set without dev."""
    folder = tmp_path / "small"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": f"t{i}", "title": f"tool {i}", "text": ""}) + "\n" for i in range(6))
    )
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{i}", "text": f"query {i}"}) + "\n" for i in range(60))
    )
    rows = [f"q{i}\tt{i % 6}\t1\n" for i in range(50)]
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    (folder / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q{i}\tt{i % 6}\t1\n" for i in range(50, 60))
    )
    return folder


def test_a_missing_dev_is_cut_from_train_and_never_from_test(folder: Path) -> None:
    data = load_dataset(str(folder))
    assert len(data.gold["train"]) + len(data.gold["dev"]) == 50
    assert 1 <= len(data.gold["dev"]) <= 12
    assert not data.gold["dev"].keys() & data.gold["train"].keys()
    assert data.gold["test"].keys() == {f"q{i}" for i in range(50, 60)}
    assert load_dataset(str(folder)).gold == data.gold


def _edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / name
        path.write_text(path.read_text().replace(old, new, 1))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_edit("qrels/test.tsv", "q52\tt4", "q52\tt99"), "test.tsv:4: the gold tool 't99' is not in the corpus"),
        (_edit("qrels/test.tsv", "q52\t", "q99\t"), "test.tsv:4: the query 'q99' is not in queries.jsonl"),
        (_edit("qrels/test.tsv", "q52\tt4\t1", "q52\tt4\t0"), "the query 'q52' has no gold tool"),
        (_edit("qrels/test.tsv", "q52\tt4\t1", "q52 t4 1"), "test.tsv:4: a row is query-id"),
        (_edit("qrels/test.tsv", "q52\tt4", "q3\tt4"), "the query 'q3' is in both test and train"),
        (_edit("queries.jsonl", '"q3"', '"q2"'), "queries.jsonl:4: duplicate query id 'q2'"),
        (_edit("queries.jsonl", '{"_id": "q3"', '{"_id": 3'), "queries.jsonl:4: _id and text"),
        (_edit("queries.jsonl", '"text": "query 3"', '"text": " "'), "queries.jsonl:4: _id and text"),
        (_edit("queries.jsonl", '{"_id": "q3"', '{_id: "q3"'), "queries.jsonl:4: a query is a JSON object"),
        (_edit("qrels/test.tsv", "q52\tt4\t1", "q52\tt4\t--1"), "test.tsv:4: a row is query-id"),
        (_edit("queries.jsonl", '"text": "query 3"', '"text": "x", "metadata": "y"'), "queries.jsonl:4: the metadata"),
        (_edit("queries.jsonl", '"text": "query 3"', '"text": ' + "[" * 100_000), "queries.jsonl:4: a query is"),
        (lambda folder: (folder / "queries.jsonl").write_bytes(b"\xff"), "not UTF-8"),
        (lambda folder: (folder / "queries.jsonl").unlink(), "queries.jsonl is missing"),
        (lambda folder: [path.unlink() for path in (folder / "qrels").iterdir()], "has no qrels"),
    ],
)
def test_a_faulty_data_set_is_refused_by_name(folder: Path, spoil: Callable[[Path], None], words: str) -> None:
    spoil(folder)
    with pytest.raises(BadInput) as caught:
        load_dataset(str(folder))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_set_without_train_has_no_unseen_cut(folder: Path) -> None:
    (folder / "qrels" / "train.tsv").unlink()
    with pytest.raises(BadInput, match="too small or too entangled"):
        apply_protocol(load_dataset(str(folder)), "unseen-tools")


def test_an_empty_split_is_refused(folder: Path) -> None:
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n")
    with pytest.raises(BadInput, match="no queries in its test split"):
        load_dataset(str(folder)).split("test")
    with pytest.raises(BadInput, match="no split 'tset'"):
        load_dataset(str(folder)).split("tset")


def invented(scenes: list[tuple[set[str], str]]) -> DataSet:
    """A data set out of gold sets and the splits they are in."""
    tools = tuple(Tool(tool, tool) for tool in sorted(set().union(*(scene for scene, _ in scenes))))
    gold: dict[str, dict[str, frozenset[str]]] = {"train": {}, "dev": {}, "test": {}}
    for number, (scene, split) in enumerate(scenes):
        gold[split][f"q{number}"] = frozenset(scene)
    queries = {f"q{number}": Query(f"q{number}", "text") for number in range(len(scenes))}
    return DataSet("invented", tools, queries, gold)


scene_lists = st.lists(
    st.tuples(
        st.sets(st.sampled_from([f"t{i}" for i in range(25)]), min_size=1, max_size=3),
        st.sampled_from(["train", "train", "dev", "test"]),
    ),
    min_size=40,
    max_size=120,
)


@settings(max_examples=60, deadline=None)
@given(scene_lists)
def test_unseen_tools_are_unseen(scenes: list[tuple[set[str], str]]) -> None:
    data = invented(scenes)
    try:
        split = unseen_tools(data)
    except BadInput as error:
        assert "too small or too entangled" in str(error)  # noqa: PT017
        return
    used = {name: set().union(*gold.values()) for name, gold in split.gold.items()}
    assert not used["train"] & used["test"]
    assert not used["train"] & used["dev"]
    assert not used["dev"] & used["test"]
    assert split.gold["test"].keys() <= data.gold["test"].keys()
    assert not (split.gold["train"].keys() | split.gold["dev"].keys()) & data.gold["test"].keys()
    kept = sum(len(gold) for gold in split.gold.values())
    assert kept + sum(count for what, count in split.report.items() if what.startswith("dropped")) == len(scenes)
    assert unseen_tools(data) == split


def test_tools_a_data_set_keeps_for_its_test_stay_there() -> None:
    scenes = [({f"t{i % 20}"}, "train") for i in range(100)] + [({f"new{i % 8}"}, "test") for i in range(40)]
    split = unseen_tools(invented(scenes))
    assert len(split.gold["test"]) == 40


@settings(max_examples=60, deadline=None)
@given(scene_lists)
def test_late_tools_come_after_training(scenes: list[tuple[set[str], str]]) -> None:
    data = invented(scenes)
    try:
        split = late_tools(data)
    except BadInput as error:
        assert "too small or too entangled" in str(error)  # noqa: PT017
        return
    trained = set().union(*split.gold["train"].values())
    assert all(gold - trained for part in ("dev", "test") for gold in split.gold[part].values())
    late = set().union(*(gold - trained for gold in split.gold["test"].values()))
    assert not any(gold & late - trained for gold in split.gold["train"].values())
    assert split.gold["test"].keys() <= data.gold["test"].keys()
    assert not (split.gold["train"].keys() | split.gold["dev"].keys()) & data.gold["test"].keys()


@pytest.mark.parametrize("protocol", ["unseen-tools", "late-tools"])
def test_the_sample_can_be_cut(protocol: Protocol) -> None:
    data = apply_protocol(load_dataset("bundled:sample"), protocol)
    assert all(len(gold) > 20 for gold in data.gold.values())


def test_training_on_several_sets_can_hold_one_out(folder: Path) -> None:
    sources = (TrainingSource("bundled:sample"), TrainingSource(str(folder), text=("name",)))
    both = training_sets(DenseTraining(data=sources), ["description"])
    assert [each.name for each in both] == ["sample", "small"]
    assert both[1].documents[0] == "tool 0"
    assert [each.name for each in training_sets(DenseTraining(data=sources, hold_out="sample"), ["name"])] == ["small"]
    with pytest.raises(BadInput, match="cannot hold out 'nobody'"):
        training_sets(DenseTraining(data=sources, hold_out="nobody"), ["name"])
    with pytest.raises(BadInput, match="the same name"):
        training_sets(DenseTraining(data=(sources[1], TrainingSource(str(folder)))), ["name"])


def test_training_sets_know_nothing_of_test(folder: Path) -> None:
    (small,) = training_sets(DenseTraining(data=(TrainingSource(str(folder)),)), ["name"])
    asked = set(small.train.queries) | set(small.dev.queries)
    assert asked == {f"query {i}" for i in range(50)}


def test_leave_one_out() -> None:
    sets = [invented([({"a"}, "train")]), DataSet("other", (), {}, {}), DataSet("third", (), {}, {})]
    train, test = leave_one_out(sets, "other")
    assert [data.name for data in train] == ["invented", "third"]
    assert test.name == "other"
    with pytest.raises(BadInput, match="cannot hold out 'nobody'"):
        leave_one_out(sets, "nobody")
