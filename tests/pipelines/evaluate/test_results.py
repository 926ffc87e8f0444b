"""The results table: what a run says stands in it, what nobody ran says so, and what is off is told."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from paths import ROOT

from pipelines import config as configs
from pipelines.cli import main as cli
from pipelines.cli.evaluate import MatrixConfig, make_page
from pipelines.evaluate.published.check import ExpectedConfig, check
from pipelines.evaluate.published.figures import RETRIEVERS, REWRITERS, FigureFile, read_figures
from pipelines.evaluate.published.page import PLOTS, SECTIONS, PageRow, plot_csv
from pipelines.rewriters import RewriterParts, RewriterSettings, find_parts
from pipelines.system_description import (
    count_parameters,
    describe_system,
    fusion_warning,
    retriever_label,
    rewriter_label,
)
from retrievers.errors import BadInput
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.settings import BM25Settings, DenseSettings, HybridSettings, RewriteFusion
from retrievers.types import Tool

ROW = {"retriever": "bm25", "metrics": {"recall@5": 0.5}}
FILE: dict[str, Any] = {
    "dataset": "toollens",
    "queries": 10,
    "command": "rewrite-eval x.yaml",
    "machine": "one H200",
    "date": "2026-11-15",
    "seeds": [0],
    "rows": [ROW],
}


@pytest.fixture(scope="module")
def place(sample_tools: list[Tool], context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of the real command, with a rewriter in it, and configs around it."""
    place = tmp_path_factory.mktemp("results")
    build(place / "index", sample_tools, {"bm25": BM25Settings()}, context)
    config = {
        "output": f"{place}/runs/sample/eval",
        "data": "bundled:sample",
        "index": f"{place}/index",
        "group_by": "language",
        "rewriters": {"rules": {"template": "needs", "backend": {"kind": "rules"}}},
        "systems": {
            "bm25": {"retriever": "bm25"},
            "alone": {"retriever": "bm25", "rewriter": "rules", "fusion": {"raw": 0}},
            "rules": {"retriever": "bm25", "rewriter": "rules", "fusion": {"raw": 0.6}},
        },
    }
    (place / "eval.json").write_text(json.dumps(config))
    assert cli.evaluate([str(place / "eval.json")]) == 0
    matrix = {"page": f"{place}/docs/matrix.md", "figures": f"{place}/docs/figures", "pictures": f"{place}/docs/pics"}
    (place / "matrix.yaml").write_text(yaml.safe_dump(matrix))
    return place


def told(place: Path) -> Any:
    return json.loads((place / "runs/sample/eval/metrics.json").read_text())


def test_a_run_says_what_its_systems_are_made_of(place: Path) -> None:
    made = told(place)["made_of"]
    assert made["bm25"] == {"retriever": "bm25", "rewriter": "none", "parameters": 0}
    assert made["rules"] == {"retriever": "bm25", "rewriter": "rules", "parameters": 0}


def test_what_was_written_once_is_judged_anywhere(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rewrites of an evaluation, in front of the same index: the same figures without the rewriter."""
    written = {"kind": "replay", "path": f"{place}/runs/sample/eval/queries.jsonl", "made_by": "rules"}
    config = json.loads((place / "eval.json").read_text()) | {"output": f"{tmp_path}/eval"}
    config["rewriters"] = {"rules": {"backend": written | {"rewriter": "rules"}}}
    (tmp_path / "eval.json").write_text(json.dumps(config))
    assert cli.evaluate([str(tmp_path / "eval.json")]) == 0
    again = json.loads((tmp_path / "eval/metrics.json").read_text())
    assert again["systems"] == told(place)["systems"]
    assert again["made_of"]["rules"] == {"retriever": "bm25", "rewriter": "rules", "parameters": None}
    capsys.readouterr()
    assert cli.evaluate([str(tmp_path / "eval.json"), "--set", "split=dev", "--set", f"output={tmp_path}/dev"]) == 2
    assert "has no rewrite of" in capsys.readouterr().err


def test_a_kept_run_stands_in_the_table_with_its_own_figures(place: Path) -> None:
    words = ["matrix", str(place / "matrix.yaml"), "--keep", f"{place}/runs/sample/eval", "--note", "a quiet machine"]
    assert cli.evaluate(words) == 0
    text, metrics = (place / "docs/matrix.md").read_text(), told(place)
    section = text[text.index("## sample") :]
    first = f"{metrics['systems']['bm25']['recall@5']:.3f}".removeprefix("0")
    fused = f"{metrics['systems']['rules']['recall@5']:.3f}".removeprefix("0")
    assert f"| BM25 | {first} | {fused} | not run | not run | not run |" in section
    assert "401 queries, 224 tools" in section
    assert "the rewrite alone" in section
    assert "a quiet machine" in section
    for group, values in metrics["groups"].items():
        assert group in section
        assert f"{values['bm25']['recall@5']:.3f}".removeprefix("0") in section
    p = next(c["p_value"] for c in metrics["comparisons"] if (c["system"], c["metric"]) == ("rules", "recall@5"))
    assert (f"{p:.3f}".removeprefix("0") if p >= 0.001 else "< .001") + " (bm25)" in section
    assert (place / "docs/figures/rows.csv").read_text().count("\n") == 3


def test_what_nobody_has_run_says_so_in_every_grid(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/one.json").write_text(json.dumps(FILE))
    matrix = MatrixConfig(f"{tmp_path}/page.md", f"{tmp_path}/figures", f"{tmp_path}/pictures")
    make_page(matrix, Path("x.yaml"))
    text = (tmp_path / "page.md").read_text()
    for title in SECTIONS.values():
        assert f"## {title}\n" in text
    assert text.count("not run") == len(SECTIONS) * len(RETRIEVERS) * len(REWRITERS) - 1


def test_a_run_kept_again_keeps_what_was_said_of_it_and_no_other_takes_its_place(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, figures = f"{place}/runs/sample/eval", tmp_path / "figures"
    matrix = {"page": f"{tmp_path}/matrix.md", "figures": str(figures), "pictures": f"{tmp_path}/pics"}
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump(matrix))
    words = ["matrix", str(tmp_path / "matrix.yaml"), "--keep"]
    assert cli.evaluate([*words, run, "--note", "a quiet machine"]) == 0
    path = figures / "sample-eval.json"
    kept = json.loads(path.read_text())
    kept["rows"][0] |= {"variant": True, "note": "an older text"}
    path.write_text(json.dumps(kept))
    assert cli.evaluate([*words, run]) == 0
    again = json.loads(path.read_text())
    assert (again["note"], again["rows"][0]["variant"], again["rows"][0]["note"]) == (
        "a quiet machine",
        True,
        "an older text",
    )
    other = shutil.copytree(run, tmp_path / "runs/sample/eval")
    assert cli.evaluate([*words, str(other)]) == 2
    assert f"holds the figures of {run}; rename it, or the run" in capsys.readouterr().err
    better = json.loads((other / "metrics.json").read_text())
    better["systems"] = {name: {**each, "recall@5": 0.99} for name, each in better["systems"].items()}
    (other / "metrics.json").write_text(json.dumps(better))
    other.rename(tmp_path / "runs/sample/other")
    assert cli.evaluate([*words, f"{tmp_path}/runs/sample/other"]) == 2
    assert "have different figures for" in capsys.readouterr().err
    assert [path.name for path in figures.glob("*.json")] == ["sample-eval.json"]


def test_a_run_of_some_queries_is_not_kept(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "runs/sample/eval"
    shutil.copytree(place / "runs/sample/eval", run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "max_queries": 9}))
    assert cli.evaluate(["matrix", str(place / "matrix.yaml"), "--keep", str(run)]) == 2
    assert "max_queries" in capsys.readouterr().err
    assert cli.evaluate(["matrix", str(place / "matrix.yaml"), "--keep", str(tmp_path)]) == 2
    assert "has no metrics.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": [{**ROW, "metrics": {"recall@5": 34.7}}]}, "must be at most 1, got 34.7"),
        ({"rows": [{**ROW, "metrics": {"recal@5": 0.3}}]}, "unknown metric"),
        ({"rows": [{**ROW, "metrics": {}}]}, "at least one figure"),
        ({"rows": [{**ROW, "p_values": {"recall@5": 0.01}}]}, "need the name of the system"),
        ({"rows": [{**ROW, "ranges": {"recall@5": [0.6, 0.7]}}]}, "around its mean"),
        ({"rows": [{**ROW, "rewriter": "sfd"}]}, "did you mean sft"),
        ({"rows": []}, "at least one row"),
        ({"machine": ""}, "need the key machine"),
        ({"seeds": []}, "seeds"),
        ({"date": "yesterday"}, "YYYY-MM-DD"),
        ({"querys": 3}, "did you mean queries"),
        ({"source": "published"}, "need the key paper"),
        ({"source": "published", "paper": "x", "reason": "y"}, "comparable"),
    ],
)
def test_a_faulty_file_of_figures_is_one_sentence(
    change: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/bad.json").write_text(json.dumps({**FILE, **change}))
    matrix = {"page": f"{tmp_path}/page.md", "figures": f"{tmp_path}/figures", "pictures": str(tmp_path)}
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump(matrix))
    assert cli.evaluate(["matrix", str(tmp_path / "matrix.yaml")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "bad.json" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "page.md").exists()


def test_two_different_figures_for_one_place_are_refused(tmp_path: Path) -> None:
    other = {**FILE, "rows": [{**ROW, "metrics": {"recall@5": 0.51}}]}
    for name, content in (("one", FILE), ("two", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match=r"one\.json and two\.json .* `variant"):
        read_figures(tmp_path)
    (tmp_path / "two.json").write_text(json.dumps({**FILE, "rows": [{**ROW, "variant": True}]}))
    assert len(read_figures(tmp_path)) == 2
    (tmp_path / "two.json").write_text(json.dumps({**FILE, "rows": [{**ROW, "metrics": {"recall@5": 0.504}}]}))
    assert len(read_figures(tmp_path)) == 2  # the same, measured twice


def test_the_page_in_the_docs_is_that_of_the_figures_there(tmp_path: Path) -> None:
    config = configs.load(ROOT / "configs/matrix/results.yaml", MatrixConfig)
    for folder in ("docs/figures", "docs/pictures"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    moved = MatrixConfig(*(str(tmp_path / each) for each in (config.page, config.figures, config.pictures)))
    make_page(moved, Path("configs/matrix/results.yaml"))
    for name in (config.page, "docs/figures/rows.csv"):
        again = "run `rewrite-eval matrix configs/matrix/results.yaml` and `python docs/plot.py`"
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), again


def test_expected_figures_are_those_in_the_table() -> None:
    expected = configs.load(ROOT / "configs/expected.yaml", ExpectedConfig)
    looked_at = 0
    for figures in read_figures(ROOT / "docs/figures").values():
        run = expected.runs.get(figures.run)
        for row in figures.rows if run else ():
            for metric, value in run.systems.get(row.system, {}).items() if run else ():
                assert abs(row.metrics[metric] - value) <= run.tolerances.get(metric, run.tolerance)
                looked_at += 1
    assert looked_at >= 20


def expect(place: Path, **changes: Any) -> Path:
    recall = told(place)["systems"]["bm25"]["recall@5"]
    run = {"command": "rewrite-eval x", "machine": "here", "queries": 401, "systems": {"bm25": {"recall@5": recall}}}
    path = place / "expected.yaml"
    path.write_text(yaml.safe_dump({"runs": {f"{place}/runs/sample/eval": {**run, **changes}}}))
    return path


def test_check(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.evaluate(["--check", str(expect(place))]) == 0
    assert "1 figures as expected, 0 not, 0 runs missing" in capsys.readouterr().out
    systems = {"bm25": {"recall@5": 0.9, "mrr": 0.9, "recall@50": 0.9}, "gone": {"recall@5": 0.1}}
    assert cli.evaluate([str(expect(place, systems=systems, queries=400)), "--check"]) == 1
    said = capsys.readouterr().err.strip().split("\n")
    assert len(said) == 5
    assert re.search(r"runs/sample/eval: bm25 recall@5 is 0\.\d{4}, expected 0\.9000 ± 0\.002", "\n".join(said))
    assert any("no system gone" in line for line in said)
    assert any("has no recall@50" in line for line in said)
    assert any("401 queries, expected 400" in line for line in said)
    wide = expect(place, systems={"bm25": {"recall@5": 0.9}}, tolerances={"recall@5": 0.7})
    assert cli.evaluate(["--check", str(wide)]) == 0


def test_check_names_what_is_missing(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = yaml.safe_load(expect(place).read_text())
    run = next(iter(whole["runs"].values()))
    whole["runs"][f"{tmp_path}/runs/elsewhere/eval"] = run
    path = tmp_path / "expected.yaml"
    path.write_text(yaml.safe_dump(whole))
    assert cli.evaluate(["--check", str(path)]) == 1
    assert "runs/elsewhere/eval: not run; rewrite-eval x" in capsys.readouterr().err
    assert cli.evaluate(["--check", str(path), "--run", f"{place}/runs/sample"]) == 0
    assert cli.evaluate(["--check", str(path), "--run", "runs/nowhere"]) == 2
    assert "no figures are expected of runs/nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "0.5", True, [0.5]])
def test_what_is_no_number_is_not_as_expected(value: object, place: Path, tmp_path: Path) -> None:
    run = yaml.safe_load(expect(place).read_text())["runs"].popitem()[1]
    (tmp_path / "metrics.json").write_text(json.dumps({"queries": 401, "systems": {"bm25": {"recall@5": value}}}))
    verdict = check(configs.parse(ExpectedConfig, {"runs": {str(tmp_path): run}}))
    assert verdict.right == 0
    assert "no number as recall@5" in verdict.wrong[0]


def test_check_of_a_damaged_run_is_no_success(place: Path, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text("{")
    run = yaml.safe_load(expect(place).read_text())["runs"].popitem()[1]
    with pytest.raises(BadInput, match="run `rewrite-eval x` again"):
        check(configs.parse(ExpectedConfig, {"runs": {str(tmp_path): run}}))


def test_parameters_are_those_that_torch_counts(context: Context) -> None:
    from transformers import AutoModel

    folder = context.find_model("bundled:minilm")
    model = AutoModel.from_pretrained(folder)
    assert count_parameters(folder) == sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize("content", [b"", b"weights", b"\x05\0\0\0\0\0\0\0junk!"])
def test_parameters_that_cannot_be_counted_are_no_number(content: bytes, tmp_path: Path) -> None:
    assert count_parameters(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(content)
    assert count_parameters(tmp_path) is None


def test_what_a_system_is_made_of(some_tools: list[Tool], context: Context, tmp_path: Path) -> None:
    settings = {"bm25": BM25Settings(), "dense": DenseSettings(), "both": HybridSettings(of=("bm25", "dense"))}
    build(tmp_path / "index", some_tools[:8], settings, context)
    index = Index(tmp_path / "index", context)
    encoder = 22_713_216
    assert count_parameters(context.find_model("bundled:minilm")) == encoder
    made = {name: describe_system(index, name, context.find_model) for name in settings}
    assert {name: (each.retriever, each.parameters) for name, each in made.items()} == {
        "bm25": ("bm25", 0),
        "dense": ("dense", encoder),
        "both": ("hybrid", encoder),
    }
    parts = find_parts(
        RewriterSettings(base="bundled:minilm", template="needs")
    )  # any weights will do: none are loaded
    asked = describe_system(index, "dense", context.find_model, parts)
    assert (asked.rewriter, asked.parameters) == ("zero-shot", 2 * encoder)


@pytest.mark.parametrize(
    ("how", "word"),
    [("supervised fine-tuning", "sft"), ("dpo after supervised fine-tuning", "aligned"), ("", "zero-shot")],
)
def test_rewriters_in_a_word(how: str, word: str) -> None:
    parts = find_parts(RewriterSettings(base="bundled:minilm", template="needs"))
    same = RewriterParts(parts.template, parts.phrasing, parts.model, None, [], parts.facts, trained_by=how)
    assert rewriter_label(same) == word


def test_the_csv_has_one_line_per_cell_of_the_tables() -> None:
    rows = [
        {"retriever": "dense", "rewriter": name, "milliseconds": 9 + i, "metrics": {"recall@5": 0.8 + i / 100}}
        for i, name in enumerate(REWRITERS)
    ]
    figures = configs.parse(FigureFile, {**FILE, "rows": [*rows, {**ROW, "variant": True}]})
    lines = plot_csv([PageRow("a", figures, row) for row in figures.rows]).splitlines()
    assert lines[0] == "dataset,protocol,retriever,rewriter,recall@5,milliseconds,gpu"
    assert lines[1] == "toollens,official,dense,none,0.8,9.0,1"  # one H200
    assert len(lines) == 1 + len(REWRITERS)


def test_the_pictures_are_drawn_from_the_csv(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, str(ROOT / "docs/plot.py"), str(ROOT / "docs/figures/rows.csv"), str(tmp_path)]
    subprocess.run(command, check=True)
    for name in PLOTS:
        drawn = (tmp_path / name).read_text()
        assert "<svg" in drawn
        assert all(f">{dataset}<" in drawn for dataset in ("ToolLens", "ToolBench", "ToolE", "BFCL", "MCP-Zero"))
        assert (ROOT / "docs/pictures" / name).is_file()


def test_the_example_of_a_file_of_figures_is_one() -> None:
    text = (ROOT / "docs/figures/README.md").read_text()
    [block] = re.findall(r"```json\n(.+?)```", text, re.DOTALL)
    assert configs.parse(FigureFile, json.loads(block)).rows[0].rewriter == "aligned"


def test_every_figure_in_the_docs_has_its_origin() -> None:
    found = read_figures(ROOT / "docs/figures")
    assert {figures.source for figures in found.values()} == {"measured", "published"}
    for name, figures in found.items():
        assert isinstance(figures, FigureFile)
        assert (figures.source == "published") == name.startswith("published-")


def test_how_a_retriever_searches_in_words() -> None:
    told: dict[str, dict[str, Any]] = {
        "bm25": {"kind": "bm25"},
        "vectors": {"kind": "dense", "train": None},
        "elsewhere": {"kind": "milvus"},
        "tuned": {"kind": "dense", "train": {"epochs": 1}},
        "masstool": {"kind": "masstool", "train": {}},
        "both": {"kind": "hybrid", "of": ["bm25", "masstool"]},
    }
    parts = {name: SimpleNamespace(settings=settings) for name, settings in told.items()}
    index: Any = SimpleNamespace(manifest=SimpleNamespace(retrievers=parts))
    assert {name: retriever_label(index, name) for name in told} == {
        "bm25": "bm25",
        "vectors": "dense",
        "elsewhere": "dense",
        "tuned": "trained dense",
        "masstool": "trained masstool",
        "both": "hybrid of bm25 and trained masstool",
    }


@pytest.mark.parametrize(
    ("searches", "raw", "behind", "told"),
    [
        (["dense"], 0.6, "trained dense", True),
        (["dense"], 0.6, "dense", False),
        (["bm25", "trained dense"], 0.6, "trained dense", False),
        (["dense"], 1.0, "trained dense", False),
        ([""], 0.6, "trained dense", False),
        ([], 0.6, "trained dense", False),
    ],
)
def test_a_share_is_for_the_retrievers_that_it_was_chosen_for(
    searches: list[str], raw: float, behind: str, told: bool
) -> None:
    parts = find_parts(RewriterSettings(base="bundled:minilm", template="needs"))
    parts = replace(
        parts, fusion=RewriteFusion(raw=raw), data=[{"searches": each} if each else {} for each in searches]
    )
    assert bool(fusion_warning(parts, behind, "fusion")) == told
    assert not fusion_warning(replace(parts, fusion=None), behind, "fusion")
