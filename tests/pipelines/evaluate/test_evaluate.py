"""rewrite-eval, end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doubles import counting_context, state, tiny_model

from pipelines.cli import main as cli
from pipelines.cli.evaluate import groups
from pipelines.config import parse
from pipelines.data.sample_data import sample_folder
from pipelines.data.trec import read_run, write_run
from pipelines.evaluate.published.keep import from_run
from pipelines.evaluate.run import METRICS, EvalConfig, evaluate
from retrievers.errors import BadInput
from retrievers.index import build
from retrievers.kind import Context
from retrievers.settings import BM25Settings, DenseSettings, DenseTraining, TrainingSource
from retrievers.types import Ranking, Tool

RECALL = "recall@5"


@pytest.fixture(scope="module")
def place(sample_tools: list[Tool], context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the sample, and the run folder of one evaluation."""
    place = tmp_path_factory.mktemp("eval")
    build(place / "index", sample_tools, {"bm25": BM25Settings(), "flat": BM25Settings(k1=0.01, b=0.0)}, context)
    assert cli.evaluate([str(config(place))]) == 0
    return place


def config(place: Path, **changes: object) -> Path:
    facts = {
        "output": str(place / "run"),
        "data": "bundled:sample",
        "index": str(place / "index"),
        "group_by": "language",
        "systems": {"bm25": {"retriever": "bm25"}, "flat": {"retriever": "flat"}},
        **changes,
    }
    path = place / "config.yaml"
    path.write_text(json.dumps(facts))
    return path


def metrics(place: Path) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = json.loads((place / "run" / "metrics.json").read_text())
    return found


def test_metrics_have_the_promised_form(place: Path) -> None:
    found = json.loads((place / "run" / "metrics.json").read_text())
    assert (found["dataset"], found["split"], found["queries"]) == ("sample", "test", 401)
    assert found["retriever"]["name"] == "bm25"
    assert found["systems"].keys() == {"bm25", "flat"}
    assert set(METRICS) == found["systems"]["bm25"].keys()
    keys = {"system", "baseline", "metric", "difference", "p_value", "better", "worse", "same"}
    for comparison in found["comparisons"]:
        assert keys <= comparison.keys()
        assert comparison["better"] + comparison["worse"] + comparison["same"] == 401
        assert comparison["difference"] == pytest.approx(
            found["systems"]["flat"][comparison["metric"]] - found["systems"]["bm25"][comparison["metric"]], abs=2e-6
        )
        low, high = comparison["interval"]
        assert low <= comparison["difference"] <= high


def test_figures_follow_from_the_run_files(place: Path) -> None:
    gold: dict[str, set[str]] = {}
    for line in (sample_folder() / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, tool, _ = line.split("\t")
        gold.setdefault(query, set()).add(tool)
    run = read_run(place / "run" / "bm25.trec")
    recall = sum(len(gold[query] & set(run[query].ids[:5])) / len(gold[query]) for query in gold if query in run) / len(
        gold
    )
    assert metrics(place)["systems"]["bm25"]["recall@5"] == pytest.approx(recall, abs=1e-6)


def test_groups_add_up(place: Path) -> None:
    found = metrics(place)
    groups = found["groups"]
    assert sum(group["queries"] for group in groups.values()) == 401
    whole = sum(group["queries"] * group["bm25"]["mrr"] for group in groups.values()) / 401  # type: ignore[operator, index]
    assert whole == pytest.approx(found["systems"]["bm25"]["mrr"], abs=1e-5)


def test_every_group_is_compared_with_the_baseline(place: Path) -> None:
    evaluation = evaluate(parse(EvalConfig, json.loads(config(place).read_text())))
    assert evaluation.group_comparisons.keys() == {"de", "en", "es", "zh"}
    for group, rows in evaluation.group_comparisons.items():
        [row] = [row for row in rows if row.metric == RECALL]
        mask = evaluation.groups[group]
        gain = (evaluation.values["flat"][RECALL] - evaluation.values["bm25"][RECALL])[mask]
        assert (row.system, row.baseline) == ("flat", "bm25")
        assert row.difference == pytest.approx(gain.mean(), abs=1e-6)
        assert row.better + row.worse + row.same == mask.sum()
    lines = groups(evaluation).splitlines()
    assert lines[0] == "recall@5 by language, p against bm25 after Holm's correction"
    assert lines[1].split("  ")[-1] == "zh (34)"
    assert lines[3].startswith("flat  ")
    assert lines[3].count(" p ") == 4


def test_the_run_folder_holds_all_that_is_needed_to_repeat_it(place: Path) -> None:
    names = {path.name for path in (place / "run").iterdir()}
    assert names == {
        "config.yaml",
        "environment.json",
        "metrics.json",
        "queries.jsonl",
        "report.html",
        "bm25.trec",
        "flat.trec",
    }
    before = metrics(place)
    assert cli.evaluate([str(place / "run" / "config.yaml"), "--set", f"output={place}/again"]) == 0
    after = json.loads((place / "again" / "metrics.json").read_text())
    assert {**before, "seconds_per_query": 0} == {**after, "seconds_per_query": 0}


def test_a_run_file_is_a_system_like_any_other(place: Path) -> None:
    path = config(
        place,
        output=str(place / "with-run"),
        systems={"bm25": {"retriever": "bm25"}, "theirs": {"run": str(place / "run" / "bm25.trec")}},
    )
    assert cli.evaluate([str(path)]) == 0
    found = json.loads((place / "with-run" / "metrics.json").read_text())
    assert found["systems"]["theirs"] == found["systems"]["bm25"]
    assert all(comparison["p_value"] == 1.0 for comparison in found["comparisons"])


def test_a_grid_asks_every_retriever_alone_and_behind_every_rewriter(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(
        place,
        output=str(tmp_path / "grid"),
        systems={},
        rewriters={"rules": {"template": "needs", "backend": {"kind": "rules"}}},
        grid={
            "retrievers": {"bm25": {}, "flat": {"retriever": "flat"}},
            "rewriters": {
                "rules": {"fusion": {"raw": 0.6}},
                "alone": {"rewriter": "rules", "fusion": {"raw": 0}, "retrievers": ["flat"]},
            },
        },
    )
    capsys.readouterr()
    assert cli.evaluate([str(path)]) == 0
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "grid" / "metrics.json").read_text())
    assert list(found["systems"]) == ["bm25", "bm25+rules", "flat", "flat+rules", "flat+alone"]
    assert {(row["system"], row["baseline"]) for row in found["rewriting"]} == {
        ("bm25+rules", "bm25"),
        ("flat+rules", "flat"),
        ("flat+alone", "flat"),
    }
    lines = [json.loads(line) for line in (tmp_path / "grid" / "queries.jsonl").read_text().splitlines()]
    for row in found["rewriting"]:
        scores = [(each["scores"][row["system"]], each["scores"][row["baseline"]]) for each in lines]
        differences = [one[row["metric"]] - other[row["metric"]] for one, other in scores]
        assert row["difference"] == pytest.approx(sum(differences) / 401, abs=2e-6)
        assert row["better"] == sum(each > 1e-9 for each in differences)
        assert row["worse"] == sum(each < -1e-9 for each in differences)
        assert row["p_value"] <= row["p_holm"] <= min(1, 3 * row["p_value"]), "corrected within its metric"
    p = next(row["p_value"] for row in found["rewriting"] if (row["system"], row["metric"]) == ("flat+rules", RECALL))
    [gain] = [line for line in printed.splitlines() if line.startswith("flat+rules ") and " better" in line]
    assert f"p {p:.4f}" in gain
    assert "Gain by rewriting" in (tmp_path / "grid" / "report.html").read_text()
    kept = {row.system: row for row in from_run(tmp_path / "grid").rows}
    assert (kept["flat+rules"].against, kept["bm25+rules"].against, kept["flat"].against) == ("flat", "bm25", "bm25")
    assert kept["flat+rules"].p_values[RECALL] == pytest.approx(p, rel=1e-2)
    assert {name for name, row in kept.items() if not row.variant} == {"bm25", "bm25+rules"}, "each place's first"


def test_a_grid_of_nothing_and_a_name_twice_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.evaluate([str(config(place, systems={}, index=None))]) == 2
    assert "there are no systems" in capsys.readouterr().err
    assert cli.evaluate([str(config(place, grid={"retrievers": {}, "rewriters": {}}))]) == 2
    assert "a grid needs at least one retriever" in capsys.readouterr().err
    again = {"retrievers": {"bm25": {"retriever": "bm25"}}, "rewriters": {}}
    assert cli.evaluate([str(config(place, grid=again))]) == 2
    assert "'bm25' is defined twice" in capsys.readouterr().err
    unknown = {"retrievers": {"again": {"retriever": "bm25"}}, "rewriters": {"nobody": {}}}
    assert cli.evaluate([str(config(place, grid=unknown))]) == 2
    told = capsys.readouterr().err
    assert "grid" in told
    assert "names the rewriter 'nobody'" in told
    alike = {"retrievers": {"x": {"retriever": "bm25"}, "x+y": {"retriever": "flat"}}, "rewriters": {"y": {}}}
    assert cli.evaluate([str(config(place, grid=alike))]) == 2
    assert "two systems of the grid would be called 'x+y'" in capsys.readouterr().err
    some = alike | {"rewriters": {"y": {"retrievers": ["x+y"]}}}
    assert cli.evaluate([str(config(place, grid=some))]) == 2
    assert "names the rewriter 'y'" in capsys.readouterr().err, "nothing is called alike where the column is not for x"
    absent = {"retrievers": {"x": {"retriever": "bm25"}}, "rewriters": {"y": {"retrievers": ["x", "z"]}}}
    assert cli.evaluate([str(config(place, grid=absent))]) == 2
    assert "the grid has no row 'z'; it has x" in capsys.readouterr().err
    both = {
        "retrievers": {"x": {"retriever": "bm25"}},
        "rewriters": {"y": {"fusion": {"raw": 0.5}, "choose_fusion": True}},
    }
    assert cli.evaluate([str(config(place, grid=both))]) == 2
    assert "grid.rewriters.y.fusion: give the fusion or choose it" in capsys.readouterr().err


def test_a_baseline_that_was_chosen_is_what_kept_figures_are_against(place: Path, tmp_path: Path) -> None:
    path = config(
        place,
        output=str(tmp_path / "run"),
        baseline="alone",
        rewriters={"rules": {"template": "needs", "backend": {"kind": "rules"}}},
        systems={
            "bm25": {"retriever": "bm25"},
            "alone": {"retriever": "bm25", "rewriter": "rules", "fusion": {"raw": 0}},
            "fused": {"retriever": "bm25", "rewriter": "rules", "fusion": {"raw": 0.6}},
        },
    )
    assert cli.evaluate([str(path)]) == 0
    kept = {row.system: row.against for row in from_run(tmp_path / "run").rows}
    assert kept == {"bm25": "alone", "alone": "", "fused": "alone"}


def test_ids_with_spaces_survive_a_run_file(tmp_path: Path) -> None:
    rankings = {
        "q 1": Ranking(("a b", "100%", "天气"), (3.0, 2.0, 1.0)),
        "q2": Ranking(("c",), (0.5,)),
        "q3": Ranking(),
    }
    (tmp_path / "x.trec").write_text(write_run(rankings, "my system"))
    assert read_run(tmp_path / "x.trec") == rankings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("q1 Q0 a 1 2.0 x\nq1 Q0 a 2 1.0 x\n", ":2: duplicate tool 'a' for query 'q1'"),
        ("q1 Q0 a 1 x\n", ":1: a line is"),
        ("q1 Q0 a 1 high x\n", ":1: a line is"),
        ("q1 Q0 a 1 nan x\n", ":1: a line is"),
        ("q1 Q0 a 1 1.0 x\nq1 Q0 b 2 0.5 x\n", ":2: the tool 'b' is not in the corpus"),
    ],
)
def test_a_faulty_run_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "x.trec").write_text(text)
    with pytest.raises(BadInput) as caught:
        read_run(tmp_path / "x.trec", {"a"})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"systems": {}, "index": None}, "no systems"),
        ({"systems": {"a": {"retriever": "nobody"}}}, "no retriever 'nobody'; it has bm25, flat"),
        ({"systems": {"a": {}}}, "either a `retriever` of an index or a `run` file"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"systems": {"a": {"run": "PLACE/short.trec"}}}, "systems must rank the same 401 queries"),
        ({"systems": {"a": {"run": "PLACE/twice.trec"}}}, "duplicate tool"),
        ({"baseline": "nobody"}, "baseline: must be one of the systems bm25, flat, got 'nobody'"),
        ({"metrics": ["recall@5", "hits@3"]}, "no metric 'hits@3'"),
        ({"metrics": ["recall@5", "recall@500"]}, "k must be at most 100, got 'recall@500'"),
        ({"group_by": "mood"}, "'mood'"),
        ({"split": "tset"}, "no split 'tset'"),
        ({"data": "nowhere"}, "no data set folder nowhere"),
        ({"index": "nowhere"}, "no finished index in nowhere"),
        ({"index": None}, "names no index"),
        ({"protocol": "unseen"}, "did you mean unseen-tools"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    place: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], words: str
) -> None:
    (place / "short.trec").write_text("q0001 Q0 larkchange/convertCurrency 1 1.0 x\n")
    (place / "twice.trec").write_text("q0001 Q0 quarkbench/sky 1 1.0 x\nq0001 Q0 quarkbench/sky 2 0.5 x\n")
    path = config(
        place, **json.loads(json.dumps({**changes, "output": str(place / "never")}).replace("PLACE", str(place)))
    )
    before = state(place)
    capsys.readouterr()
    assert cli.evaluate([str(path)]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert state(place) == before


@pytest.mark.parametrize("output", ["taken", "taken/run"])
def test_a_run_that_could_not_be_written_is_refused_before_anything_is_asked(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    (tmp_path / "taken").write_text("a file")
    capsys.readouterr()
    # The index is not there either: who says that first has begun to work.
    assert cli.evaluate([str(config(place, output=str(tmp_path / output), index="nowhere"))]) == 2
    assert "taken is a file; a run needs a folder" in capsys.readouterr().err


def test_an_encoder_that_has_seen_the_tools_is_not_tested_as_if_it_had_not(
    place: Path, sample_tools: list[Tool], tmp_path: Path
) -> None:
    context, _ = counting_context(tiny_model(tmp_path / "model"))
    training = DenseTraining(data=(TrainingSource("bundled:sample"),))
    build(tmp_path / "index", sample_tools, {"dense": DenseSettings(train=training)}, context)
    facts = {"data": "bundled:sample", "output": "x", "index": str(tmp_path / "index"), "protocol": "unseen-tools"}
    with pytest.raises(BadInput, match="has seen the tools"):
        evaluate(parse(EvalConfig, {**facts, "systems": {"dense": {"retriever": "dense"}}}), context)


def test_systems_must_search_the_same_catalogue(
    place: Path, sample_tools: list[Tool], context: Context, tmp_path: Path
) -> None:
    build(tmp_path / "more", [*sample_tools, Tool("one/more", "more")], {"bm25": BM25Settings()}, context)
    build(tmp_path / "less", sample_tools[1:], {"bm25": BM25Settings()}, context)
    for folder, verb in (("more", "has"), ("less", "lacks")):
        facts = {"data": "bundled:sample", "output": "x", "index": str(tmp_path / folder)}
        with pytest.raises(BadInput, match=f"{verb} the tool"):
            evaluate(parse(EvalConfig, {**facts, "systems": {"bm25": {"retriever": "bm25"}}}), context)


def test_a_threshold_shortens_rankings_and_its_cost_is_measured(place: Path) -> None:
    systems = {"all": {"retriever": "bm25"}, "sure": {"retriever": "bm25", "min_score": 0.3}}
    changes = {"output": str(place / "sure"), "systems": systems, "max_queries": 60}
    evaluation = evaluate(parse(EvalConfig, json.loads(config(place, **changes).read_text())))
    every, sure = (evaluation.answers[name].rankings for name in systems)
    assert all(sure[query].ids == every[query].ids[: len(sure[query])] for query in every)
    share = sum(not ranking for ranking in sure.values()) / 60
    assert evaluation.summary()["nothing_fits"] == {"sure": share}
    assert 0 < share < 1
    assert evaluation.summary()["systems"]["sure"][RECALL] < evaluation.summary()["systems"]["all"][RECALL]
    with pytest.raises(BadInput, match="a run file has no relevance"):
        parse(EvalConfig, {"output": "x", "data": "y", "systems": {"run": {"run": "z", "min_score": 0.3}}})
