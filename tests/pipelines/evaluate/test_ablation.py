"""MassTool without each of its parts, from a config."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from doubles import counting_context, tiny_model

from pipelines import config as configs
from pipelines.cli import index_masstool
from pipelines.cli import main as cli
from pipelines.config import parse
from pipelines.data.training_sets import labelled_set
from pipelines.evaluate.ablation import PARTS, ablation, format_table
from pipelines.index.build import IndexConfig, build_index
from retrievers.errors import BadInput
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.masstool.model import Heads
from retrievers.masstool.offline_scores import offline_scores
from retrievers.masstool.settings import AuxiliaryLosses, EncoderTuning, MassToolSettings
from retrievers.masstool.training.tensors import TrainingTensors

TUNING = EncoderTuning(
    mode="joint",
    epochs=1,
    max_length=16,
    blends=(0.5, 1.0),
    auxiliary=AuxiliaryLosses(vote_weight=1.0, ema_decay=0.9),
)
WORDS = "blorp zindle quax frum teggle wix snarb plood".split()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Eight tools whose texts tell nothing; made-up words in the queries do."""
    folder = tmp_path / "data"
    (folder / "qrels").mkdir(parents=True)
    (folder / "labels").mkdir()
    tools = [{"_id": f"t{i}", "title": f"tool{i}", "text": f"does thing number {i}"} for i in range(8)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(tool) + "\n" for tool in tools))
    queries, qrels, labels = [], {"train": [], "dev": [], "test": []}, {"train": [], "dev": [], "test": []}
    for number in range(8 * 12):
        split = "test" if number % 6 == 5 else "dev" if number % 6 == 4 else "train"
        queries.append({"_id": f"q{number}", "text": f"{WORDS[number % 8]} wanted {number}"})
        qrels[split].append(f"q{number}\tt{number % 8}\t1")
        labels[split].append(f"q{number}\t1")
    for number in range(30):
        queries.append({"_id": f"n{number}", "text": f"hello there friend {number}"})
        labels["train" if number < 20 else "dev"].append(f"n{number}\t0")
    (folder / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    for split in qrels:
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(qrels[split]))
        (folder / "labels" / f"{split}.tsv").write_text("\n".join(labels[split]))
    return folder


def config(data: Path, tmp_path: Path) -> IndexConfig:
    train = {"data": [{"path": str(data)}], "epochs": 3, "batch_size": 16, "learning_rate": 0.003}
    return parse(
        IndexConfig,
        {
            "index": str(tmp_path / "index"),
            "catalogue": [str(data)],
            "retrievers": {"masstool": {"kind": "masstool", "threshold": 0.3, "train": train}},
        },
    )


def test_every_part_is_left_out_once(data: Path, tmp_path: Path) -> None:
    context, _ = counting_context(tiny_model(tmp_path / "model"), tmp_path / "cache")
    rows = ablation(config(data, tmp_path), context, "test")
    assert list(rows) == ["encoder alone", "MassTool", *(f"without {name}" for name in PARTS)]
    assert rows["MassTool"]["recall@3"] > rows["encoder alone"]["recall@3"]
    assert rows["MassTool"]["p recall@3"] == 1.0
    assert len(format_table(rows).splitlines()) == len(rows) + 1
    assert not (tmp_path / "index-ablation").exists()
    assert list(ablation(config(data, tmp_path), context, "dev", ("graph",)))[2:] == ["without graph"]
    with pytest.raises(BadInput, match="no part 'garph'"):
        ablation(config(data, tmp_path), context, "test", ("garph",))


def test_dev_queries_do_not_answer_themselves(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, _ = counting_context(tiny_model(tmp_path / "model"), tmp_path / "cache")
    pools = []

    def watched(heads: Heads, lessons: TrainingTensors, queries: torch.Tensor) -> torch.Tensor:
        pools.append((len(lessons.train), len(lessons.dev), len(lessons.dev_gold)))
        return offline_scores(heads, lessons, queries)

    monkeypatch.setattr("pipelines.evaluate.ablation.offline_scores", watched)
    for split in ("dev", "test"):
        ablation(config(data, tmp_path), context, split, ("graph",))
    assert pools == [(64, 0, 0)] * 2 + [(64, 16, 16)] * 2


def test_the_command_prints_and_writes_the_rows(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _ = counting_context(tiny_model(tmp_path / "model"), tmp_path / "cache")
    monkeypatch.setattr(index_masstool, "make_context", lambda *_: context)
    (tmp_path / "config.yaml").write_text(configs.dump(config(data, tmp_path)))
    words = ["ablate", str(tmp_path / "config.yaml"), "--without", "graph", "--output", str(tmp_path / "rows.json")]
    assert cli.index(words) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert list(rows) == ["encoder alone", "MassTool", "without graph"]
    assert format_table(rows) in capsys.readouterr().out


def test_a_killed_ablation_of_another_config_is_not_gone_on_with(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    context, _ = counting_context(tiny_model(tmp_path / "model"), tmp_path / "cache")
    plain = config(data, tmp_path)
    expected = ablation(plain, context, "test", ("graph",))
    settings = plain.retrievers["masstool"]
    assert isinstance(settings, MassToolSettings)
    assert settings.train is not None
    other = replace(settings, train=replace(settings.train, learning_rate=1.0))
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.evaluate.ablation.offline_scores", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ablation(replace(plain, retrievers={"masstool": other}), context, "test", ("graph",))
    assert (tmp_path / "index-ablation" / "MassTool" / "heads.safetensors").exists()
    assert ablation(plain, context, "test", ("graph",)) == expected
    (tmp_path / "index-ablation").mkdir()
    (tmp_path / "index-ablation" / "mine.txt").write_text("precious")
    with pytest.raises(BadInput, match=r"mine\.txt"):
        ablation(plain, context, "test")
    assert (tmp_path / "index-ablation" / "mine.txt").exists()


def test_labels_come_from_the_data_set_and_never_from_its_test(data: Path, tmp_path: Path) -> None:
    settings = config(data, tmp_path).retrievers["masstool"]
    assert isinstance(settings, MassToolSettings)
    assert settings.train is not None
    [found] = labelled_set(settings.train, ("name", "description"))
    assert len(found.labels.queries) == 64 + 20 + 16 + 5  # a quarter of both kinds, joined; its own are all labelled
    assert not set(found.labels.queries) & set(found.dev_labels.queries)
    assert found.ids[:2] == ("t0", "t1")
    # Another folder's labels with test queries of this data set: they are left out.
    rows = (data / "labels" / "test.tsv").read_text()
    (data / "labels" / "train.tsv").write_text((data / "labels" / "train.tsv").read_text() + "\n" + rows)
    [again] = labelled_set(settings.train, ("name", "description"))
    assert again.labels == found.labels
    # Nor is a threshold chosen by test queries, or by queries that retrieval learns from.
    moved = rows + "\n" + (data / "labels" / "train.tsv").read_text()
    (data / "labels" / "train.tsv").write_text("\n".join(row for row in moved.splitlines() if row[0] == "n"))
    dev = (data / "labels" / "dev.tsv").read_text()
    (data / "labels" / "dev.tsv").write_text("\n".join([dev, *(row for row in moved.splitlines() if row[0] == "q")]))
    [last] = labelled_set(settings.train, ("name", "description"))
    assert last.dev_labels == found.dev_labels


def test_an_index_is_built_and_answers(data: Path, tmp_path: Path) -> None:
    context, _ = counting_context(tiny_model(tmp_path / "model"), tmp_path / "cache")
    build_index(config(data, tmp_path), context)
    index = Index(tmp_path / "index", context)
    assert index.retriever("masstool").search(["blorp wanted now"], 3)[0].ids[0] == "t0"
    assert not (tmp_path / "index-training").exists()


def test_an_index_with_a_jointly_tuned_encoder_keeps_train_and_dev_in_its_pool(
    data: Path, tmp_path: Path, context: Context
) -> None:
    plain = config(data, tmp_path).retrievers["masstool"]
    assert isinstance(plain, MassToolSettings)
    assert plain.train is not None
    settings = replace(plain, train=replace(plain.train, encoder=TUNING))
    build_index(replace(config(data, tmp_path), retrievers={"masstool": settings}), context)
    folder = next((tmp_path / "index").glob("masstool-model-*"))
    facts = json.loads((folder / "training.json").read_text())
    [training_set] = labelled_set(plain.train, ("name", "description"))
    pool = [json.loads(line)["query"] for line in (folder / "pool.jsonl").read_text().splitlines()]
    assert pool == [*training_set.train.queries, *training_set.dev.queries]
    assert {"before", "after", "best", "blends"} <= facts["encoder"].keys()
    assert Index(tmp_path / "index", context).retriever("masstool").search(["blorp wanted now"], 3)[0].ids[0] == "t0"
