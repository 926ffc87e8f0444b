"""The headline table: its data sets, its counts, its files, and the figures that were published."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from paths import ROOT

from pipelines import config as configs
from pipelines.data.dataset import Query, load_dataset
from pipelines.data.dataset_writer import normalize_utterance, write_dataset
from pipelines.evaluate.published.check import ExpectedConfig
from retrievers.types import Tool

NAMES = ("headline", "headline_sets", "headline_table", "tuning_bases", "harness")
FIGURES = ROOT / "docs/figures"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import headline

    yield headline
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two data sets, and configs of BM25 alone that take the place of the real ones."""
    tools = [Tool(f"t{number}", f"tool {number}", f"word{number} thing of some use") for number in range(6)]
    queries = [Query(f"q{number}", f"word{number % 6} please {number // 12}") for number in range(24)]
    gold = {query.id: frozenset({f"t{int(query.id[1:]) % 6}"}) for query in queries}
    (tmp_path / "data").mkdir()
    write_dataset(tmp_path / "data/own", tools, queries, {"train": gold})
    halves = dict(list(gold.items())[:12]), dict(list(gold.items())[12:])
    write_dataset(tmp_path / "data/split", tools, queries, dict(zip(("train", "test"), halves, strict=True)))
    bm25 = "retrievers:\n  bm25: {kind: bm25}\n"
    learned = [*tools[:2], Tool("t9", "another", "Word2, thing of some use"), Tool("t8", "short", "word3 thing")]
    write_dataset(tmp_path / "data/learned", learned, queries[:1], {"train": dict(list(gold.items())[:1])})
    source = (ROOT / "configs/rerank/lm-1.5b.yaml").read_text()
    groups = "groups: {one: [{path: data/learned}]}\njudged: [{path: data/own}, {path: data/split}]\ntraining"
    files = {
        "index/headline.yaml": "index: runs/headline/<dataset>/index\ncatalogue: runs/headline/data/<dataset>\n"
        f"dataset: x\n{bm25}",
        "eval/headline.yaml": "dataset: x\noutput: runs/headline/<dataset>/eval\ndata: runs/headline/data/<dataset>\n"
        "index: runs/headline/<dataset>/index\nmetrics: [recall@5, ndcg@5, comp@5]\n"
        "rewriters: {rules: {template: needs, backend: {kind: rules}}}\nsystems:\n  minilm: {retriever: bm25}\n"
        "  bm25: {retriever: bm25}\n  rules: {retriever: bm25, rewriter: rules, fusion: {raw: 0.6}}\n",
        "rerank/lm-1.5b.yaml": re.sub(r"groups:.*\ntraining", groups, source, flags=re.DOTALL).replace(
            "max_judged: 300", "max_judged: 6"
        ),
    }
    for name, text in files.items():
        (tmp_path / "configs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "configs" / name).write_text(text)
    (tmp_path / "docs/figures").mkdir(parents=True)
    shutil.copy(FIGURES / "headline-h200.csv", tmp_path / "docs/figures")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_judged_queries_are_never_trained_on(benchmark: ModuleType, place: Path) -> None:
    config, sets = benchmark.judged_sets(Path("data"))
    assert [(judged.name, judged.official) for judged in sets] == [("own", False), ("split", True)]
    for judged in sets:
        benchmark.write_judged(judged, config, place / judged.name)
        data = load_dataset(str(place / judged.name))
        texts = {
            split: {normalize_utterance(data.queries[query].text) for query in gold}
            for split, gold in data.gold.items()
        }
        assert 3 <= len(data.gold["test"]) == len(texts["test"]) <= 6  # equal texts are one query
        assert not texts["test"] & (texts["train"] | texts["dev"])
        assert data.tools == load_dataset(judged.source.path).tools
    assert set(load_dataset("split").gold["train"]) < set(load_dataset("data/split").queries)


def test_the_command_writes_table_csv_and_means(
    benchmark: ModuleType, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark.main(["data", "--no-labels", "--csv", "out/headline.csv", "--out", "facts.json"])
    table = capsys.readouterr().out
    assert "| MiniLM as it comes | 1.000 |" in table
    assert "reranked" not in table  # published figures are of other sets
    with (place / "out/headline.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {(row["set"], row["system"]) for row in rows if row["machine"] == "cpu"} == {
        (name, system) for name in ("own", "split") for system in ("minilm", "bm25", "rules")
    }
    assert all(float(row["cpu_ms"]) > 0 for row in rows if row["machine"] == "cpu")
    means = json.loads((place / "runs/headline/mean/metrics.json").read_text())
    judged = [load_dataset(f"runs/headline/data/{name}").gold["test"] for name in ("own", "split")]
    assert means["queries"] == sum(map(len, judged))
    assert means["systems"]["bm25"]["recall@5 of own"] == 1.0
    assert json.loads((place / "facts.json").read_text())["table"] in table
    before = (place / "runs/headline/own/eval/cpu.json").read_text()
    benchmark.main(["data", "--no-labels"])
    assert (place / "runs/headline/own/eval/cpu.json").read_text() == before  # finished sets are not run again


def test_tools_that_were_trained_on_are_counted(benchmark: ModuleType, place: Path) -> None:
    config, sets = benchmark.judged_sets(Path("data"), ["own"])
    assert benchmark.count_shared(config, sets, place / "data") == {"own": 3}  # by its words, two of the three by name


def test_sets_are_better_or_worse_after_correction(benchmark: ModuleType) -> None:
    from headline_table import SetResult, corrected_tests, count

    def result(name: str, gains: np.ndarray) -> SetResult:
        values = {"old": {"recall@5": np.zeros(40)}, "new": {"recall@5": gains}}
        return SetResult(name, 40, 9, 0, True, values, {})

    chance = np.where(np.arange(40) < 20, 0.5, -0.5)
    few = np.where(np.arange(40) < 6, 0.5, 0.0)  # p .03 alone
    sets = [result("up", np.ones(40)), result("down", -np.ones(40)), result("same", chance), result("few", few)]
    tests = corrected_tests(sets, "new", "old")
    assert count(tests) == "1, 1"
    assert tests["few"][1] > 0.05 > corrected_tests(sets[3:], "new", "old")["few"][1]
    assert count(corrected_tests(sets, "new", "gone")) == ""


def test_a_row_of_few_sets_names_its_rival_there(benchmark: ModuleType) -> None:
    from headline_table import METRICS, SetResult, markdown

    def result(name: str, **recalls: float) -> SetResult:
        values = {system: {metric: np.full(9, value) for metric in METRICS} for system, value in recalls.items()}
        return SetResult(name, 9, 9, 0, True, values, {"hybrid": 2.0})

    table = markdown([result("sgd", hybrid=0.5, labels=0.9), result("n8n", hybrid=0.9)], [])
    hybrid, labels = table.split("\n")[2:]
    assert "| .700 | .700 | .700 | .700 |" in hybrid
    assert hybrid.endswith("| CPU 2.0 |")
    assert "(1 sets, where hybrid has .500) | .900 |" in labels


def test_figures_of_rerankers_are_those_of_the_notes() -> None:
    notes = ROOT / "docs/notes"
    first, second = (
        (notes / f"2026-11-{name}.md").read_text() for name in ("18-reranking", "19-reranking-both-halves")
    )
    with (FIGURES / "headline-h200.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 50
    for row in rows:
        note = second if row["system"] in ("hybrid-h200", "lm-1.5b") else first
        cell = " / ".join(row[metric].removeprefix("0") for metric in ("recall@5", "ndcg@5", "comp@5"))
        assert any(line.startswith(f"| {row['set']} |") and cell in line for line in note.split("\n")), row


def test_the_published_table_is_what_the_check_expects(benchmark: ModuleType) -> None:
    import headline_table

    expected = configs.load(ROOT / "configs/expected.yaml", ExpectedConfig).runs["runs/headline/mean"]
    with (FIGURES / "headline.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["machine"] == "cpu"]
    order = [row["set"] for row in rows if row["system"] == "minilm"]
    for system, figures in expected.systems.items():
        own = [row for row in rows if row["system"] == system]
        for metric, value in figures.items():
            name, _, only = metric.partition(" of ")
            kept = {"": order, "new tools": [one for one in order if one not in headline_table.SHARED]}.get(
                only, [only]
            )
            chosen = [float(row[name]) for row in own if row["set"] in kept]
            assert abs(np.mean(chosen) - value) < 0.001, (system, metric)
    assert sum(int(row["queries"]) for row in rows if row["system"] == "minilm") == expected.queries


def test_a_part_of_a_data_set_has_the_tools_that_its_queries_need(benchmark: ModuleType, place: Path) -> None:
    import tuning_bases

    tuning_bases.write_part(Path("data/split"), place / "part", queries=2, judged=2, max_tools=4)
    data = load_dataset(str(place / "part"))
    assert {split: len(gold) for split, gold in data.gold.items()}["train"] == 2
    needed = {tool for gold in data.gold.values() for tools in gold.values() for tool in tools}
    assert needed <= {tool.id for tool in data.tools}
    assert len(data.tools) == max(4, len(needed))


def test_the_picture_is_that_of_the_published_table(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = (ROOT / "docs/pictures/headline.svg").read_text()
    with (FIGURES / "headline.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import plot

    for system, title in plot.STEPS.items():
        values = [float(row["recall@5"]) for row in rows if row["system"] == system]
        assert len(values) == 10
        assert f">{np.mean(values):.3f}<" in picture, f"{system}: run `python docs/plot.py`"
        assert f">{title}<" in picture
    sys.modules.pop("plot")
