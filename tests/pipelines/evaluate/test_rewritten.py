"""rewrite-eval with rewriters: fused, counted, chosen on dev, and refused where that would mislead."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

import pytest
from doubles import ScriptedBackend, state

from pipelines.cli import main as cli
from pipelines.config import parse
from pipelines.data.sample_data import sample_folder
from pipelines.evaluate.rewriter_stats import figures
from pipelines.evaluate.run import EvalConfig, Evaluation, evaluate
from pipelines.exit_codes import exit_code
from pipelines.rewriters import RewriterSettings, make_rewriter
from pipelines.search import ToolSearch
from retrievers.dense.encoder import fingerprint
from retrievers.errors import BadInput, ModelMismatch, ModelMissing
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.settings import BM25Settings, RewriteFusion
from retrievers.types import Tool
from reward.metrics import DEPTH
from rewrite.backends import base
from rewrite.errors import BackendDown, Interrupted, RewriteError
from rewrite.folder import CARD_FILE, RewriterCard
from rewrite.rewriter import Rewriter
from rewrite.template import TEMPLATE_FILE, load_template
from rewrite.types import Rewrite, RewriteRequest

SIZES = {"test": 24, "dev": 16}
ALONE = {"method": "interleave", "raw": 0}
SYSTEMS: dict[str, dict[str, Any]] = {
    "raw": {"retriever": "bm25"},
    "alone": {"retriever": "bm25", "rewriter": "mine", "fusion": ALONE},
    "fused": {"retriever": "bm25", "rewriter": "mine", "fusion": {"method": "rrf", "raw": 0.4}},
    "same": {"retriever": "bm25", "rewriter": "mine", "fusion": {"raw": 1}},
    "chosen": {"retriever": "bm25", "rewriter": "mine", "choose_fusion": True},
}
HOSTILE = "<script>alert('x')</script> & \x1b[31m red" + " and so on" * 110
"""Also so long that a small model has no room for tools beside it."""


@pytest.fixture(scope="module")
def place(sample_tools: list[Tool], context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few queries of the sample, and an index of its tools."""
    place = tmp_path_factory.mktemp("rewritten")
    build(place / "index", sample_tools, {"bm25": BM25Settings(), "flat": BM25Settings(k1=0.01, b=0.0)}, context)
    data, sample = place / "few", sample_folder()
    (data / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl"):
        shutil.copy(sample / name, data / name)
    for split, size in SIZES.items():
        head, *rows = (sample / "qrels" / f"{split}.tsv").read_text().splitlines()
        kept = list(dict.fromkeys(row.split("\t")[0] for row in rows))[:size]
        rows = [row for row in rows if row.split("\t")[0] in kept]
        (data / "qrels" / f"{split}.tsv").write_text("\n".join([head, *rows]) + "\n")
    first = min(row.split("\t")[0] for row in (data / "qrels" / "test.tsv").read_text().splitlines()[1:])
    queries = [json.loads(row) for row in (data / "queries.jsonl").read_text().splitlines()]
    for query in queries:
        query["text"] += HOSTILE if query["_id"] == first else ""
    (data / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    return place


def facts(place: Path, **changes: object) -> dict[str, Any]:
    return {
        "output": str(place / "run"),
        "data": str(place / "few"),
        "index": str(place / "index"),
        "systems": SYSTEMS,
        "rewriters": {"mine": {"base": str(place / "model"), "template": "needs"}},
        **changes,
    }


def scripted(
    monkeypatch: pytest.MonkeyPatch, place: Path, script: Callable[[str], str | None], **changes: object
) -> Evaluation:
    """An evaluation in which the model answers by the script."""
    (place / "model").mkdir(exist_ok=True)
    (place / "model" / "model.safetensors").write_bytes(b"no weights")
    monkeypatch.setitem(base.BACKENDS, "transformers", "doubles:ScriptedBackend")
    monkeypatch.setattr(ScriptedBackend, "script", staticmethod(script), raising=False)
    monkeypatch.setattr(ScriptedBackend, "asked", [])
    return evaluate(parse(EvalConfig, facts(place, **changes)), Context(_never))


def _never(reference: str) -> Path:
    raise AssertionError(f"somebody asked for the encoder {reference}")


def perfect(place: Path) -> Callable[[str], str]:
    """Answers with the names of the gold tools, one a line."""
    queries = [json.loads(row) for row in (place / "few" / "queries.jsonl").read_text().splitlines()]
    texts = {row["_id"]: " ".join(row["text"].replace("\x1b", " ").split()) for row in queries}
    tools = [json.loads(row) for row in (place / "few" / "corpus.jsonl").read_text().splitlines()]
    names = {tool["_id"]: f"{tool['title']} {tool['text'][:60]}" for tool in tools}
    gold: dict[str, list[str]] = {}
    for split in SIZES:
        for row in (place / "few" / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]:
            query, tool, _ = row.split("\t")
            gold.setdefault(texts[query], []).append(f"- {names[tool]}")
    return lambda prompt: "\n".join(gold[" ".join(prompt.split())])


def ids(evaluation: Evaluation, system: str) -> list[tuple[str, ...]]:
    return [evaluation.answers[system].rankings[query].ids for query in evaluation.order]


def test_a_good_rewriter_alone_fused_and_chosen(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = scripted(monkeypatch, place, perfect(place))
    recall = {name: values["recall@5"] for name, values in found.summary()["systems"].items()}
    assert recall["alone"] > recall["raw"] + 0.2
    assert recall["raw"] < recall["fused"]
    assert recall["chosen"] > recall["raw"] + 0.2
    assert found.answers["same"].rankings == found.answers["raw"].rankings
    told = found.summary()["fusions"]
    assert told.keys() == {"alone", "fused", "same", "chosen"}
    assert (told["alone"]["raw"], told["alone"]["chosen_on"]) == (0.0, None)
    chosen = told["chosen"]["chosen_on"]
    assert (chosen["split"], chosen["queries"], chosen["metric"]) == ("dev", SIZES["dev"], "recall@5")
    assert {key: told["chosen"][key] for key in ("method", "raw")} == {
        key: chosen["tried"][0][key] for key in ("method", "raw")
    }
    scores = [each["score"] for each in chosen["tried"]]
    assert scores[1:] == sorted(scores[1:], reverse=True)
    assert max(scores) - scores[0] < 0.1  # the one that was taken stands first; it need not be the very best
    assert chosen["tried"][-1]["raw"] == 1  # what the raw query reaches alone is always told


def test_every_query_is_asked_once_whoever_uses_the_answer(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = {"flat": {"retriever": "flat", "rewriter": "mine", "fusion": ALONE}}
    scripted(monkeypatch, place, perfect(place), systems={**SYSTEMS, **flat})
    assert len(ScriptedBackend.asked) == len(set(ScriptedBackend.asked)) == SIZES["test"] + SIZES["dev"]
    # Where tools are shown, other retrievers show others; dev is asked only for the one that chooses.
    shown = {"mine": {"base": str(place / "model"), "template": "candidates"}}
    found = scripted(monkeypatch, place, lambda prompt: "NONE", systems={**SYSTEMS, **flat}, rewriters=shown)
    assert len(ScriptedBackend.asked) == 2 * SIZES["test"] + SIZES["dev"]
    assert found.rewriters.keys() == {"mine with bm25", "mine with flat"}
    assert found.summary()["fusions"]["flat"]["rewriter"] == "mine with flat"


def test_evaluation_takes_the_path_of_every_query(
    place: Path, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = scripted(monkeypatch, place, perfect(place))
    rewriter = Rewriter(load_template("needs"), ScriptedBackend())
    for name, fusion in (("alone", RewriteFusion("interleave", 0)), ("fused", RewriteFusion("rrf", 0.4))):
        search = ToolSearch(Index(place / "index", context), "bm25", rewriter, fusion)
        assert [ranking.ids for ranking in search.search(found.texts, DEPTH)] == ids(found, name)


def test_what_is_no_rewrite_falls_back_to_the_raw_query_and_is_counted(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: dict[str, int] = {}
    answers: list[str | None] = ["- find a flight\n- book a hotel", "NONE", "I would rather not say", None]

    def script(said: str) -> str | None:
        return answers[order.setdefault(said, len(order)) % 4]

    found = scripted(monkeypatch, place, script, systems={name: SYSTEMS[name] for name in ("raw", "alone")})
    statuses = [rewrite.status for rewrite in found.rewriters["mine"].rewrites]
    assert statuses == ["rewritten", "none", "unparseable", "too-long"] * 6
    for status, ours, raw in zip(statuses, ids(found, "alone"), ids(found, "raw"), strict=True):
        assert (ours == raw) == (status != "rewritten")
    told = found.summary()["rewriters"]["mine"]
    shares = {key: told[key] for key in ("queries", "parsed", "none", "unparseable", "too_long", "cut", "lines")}
    quarter = {"none": 0.25, "unparseable": 0.25, "too_long": 0.25}
    assert shares == {"queries": 24, "parsed": 0.5, **quarter, "cut": 0.0, "lines": 2.0}
    assert told["tokens"] == pytest.approx((9 + 2 + 6) / 3)
    assert len({sample["query"] for sample in told["samples"]}) == 8
    assert told["made_of"]["template"] == {"name": "needs", "version": 1, "candidates": 0}
    seconds = found.summary()["seconds_per_query"]
    assert seconds["alone"] > told["seconds_per_query"] > 0


def test_figures_say_nothing_of_what_nobody_knows() -> None:
    silent = figures([Rewrite((), "none", "NONE", 0), Rewrite((), "too-long", cut=10)], 3.0)
    assert (silent.lines, silent.tokens, silent.cut, silent.seconds_per_query) == (None, None, 0.0, 1.5)
    counted = figures([Rewrite(("a", "b", "c"), cut=2, tokens=9), Rewrite(("a",), tokens=3)], 1.0)
    assert (counted.lines, counted.tokens, counted.cut, counted.parsed) == (2.0, 6.0, 0.5, 1.0)
    assert counted.unfinished == 0.0
    assert figures([Rewrite(("a",), finished=False, tokens=9), Rewrite((), "too-long")], 1.0).unfinished == 0.5


def test_a_run_with_a_real_model_is_written_down_and_shown(
    place: Path, tiny_lm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = shutil.copytree(tiny_lm, tmp_path / "model")
    known = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(known | {"max_position_embeddings": 640}))  # room for all but one
    small = {"base": str(model), "template": "candidates", "phrasing": "indexed", "sampling": {"max_tokens": 16}}
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(facts(place, output=str(tmp_path / "run"), rewriters={"mine": small})))
    assert cli.evaluate([str(config), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    told = metrics["rewriters"]["mine"]
    assert told["made_of"]["fingerprint"] == fingerprint(model)
    assert told["made_of"]["phrasing"] == "indexed"
    assert told["tokens"] > 0
    assert told["cut"] == pytest.approx(1 / 24, abs=1e-6)
    rows = [json.loads(row) for row in (tmp_path / "run" / "queries.jsonl").read_text().splitlines()]
    assert {row["rewrites"]["mine"]["status"] for row in rows} <= {"rewritten", "none", "unparseable", "too-long"}
    assert all(
        (row["rewrites"]["mine"]["status"] == "rewritten") == bool(row["rewrites"]["mine"]["lines"]) for row in rows
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Rewrites</h2>" in page
    assert escape("<script>alert('x')</script>") in page
    assert page.count("<script>") == 1
    assert "mine writes, for example:" in out
    assert "chosen: weighted, raw 1; chosen on dev: recall@5 " in out  # what an untrained model writes is no help
    assert "\x1b" not in out


def rewriter_folder(folder: Path, card: RewriterCard, template: str = "needs") -> Path:
    """A rewriter's folder, finished; without weights where there are none yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "adapter_model.safetensors").exists():
        (folder / "adapter_model.safetensors").write_bytes(b"no weights")
    (folder / TEMPLATE_FILE).write_text(load_template(template).dump())
    (folder / CARD_FILE).write_text(json.dumps(asdict(card)))
    return folder


def test_a_trained_rewriter_answers_with_its_own_template(tiny_lm: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "run" / "rewriter"
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_lm), LoraConfig(r=4, target_modules="all-linear")
    )
    adapted.save_pretrained(folder)
    data = [{"dataset": "few", "protocol": "official", "retriever": "bm25"}]
    card = RewriterCard("moved/away", fingerprint(tiny_lm), "lora", "path", data=data)
    rewriter_folder(folder, card, "imagine")
    settings = parse(
        RewriterSettings, {"path": str(tmp_path / "run"), "base": str(tiny_lm), "sampling": {"max_tokens": 4}}
    )
    rewriter, told = make_rewriter(settings, "cpu")
    assert (rewriter.template.name, told["phrasing"], told["method"]) == ("imagine", "path", "lora")
    assert told["trained_on"] == data
    assert rewriter.rewrite([RewriteRequest("hello")])[0].status in {"rewritten", "unparseable"}
    with pytest.raises(ModelMissing, match="name its location with `base`"):
        make_rewriter(parse(RewriterSettings, {"path": str(folder)}), "cpu")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("fusion", {"method": "weighted", "later": 1}, "unknown key later"),
        ("fusion", {"method": "by hand"}, "method cannot be 'by hand'"),
        ("fusion", [0.5], "not a rewriter's card"),
        ("phrasing", "poetry", "phrasing must be one of path"),
        ("data", ["few"], "not a rewriter's card"),
        ("base", None, "not a rewriter's card"),
    ],
)
def test_a_card_that_cannot_be_meant_is_refused(tiny_lm: Path, tmp_path: Path, key: str, value: Any, said: str) -> None:
    folder = rewriter_folder(tmp_path / "rewriter", RewriterCard(str(tiny_lm), fingerprint(tiny_lm), "lora"))
    card = json.loads((folder / CARD_FILE).read_text())
    (folder / CARD_FILE).write_text(json.dumps(card | {key: value}))
    with pytest.raises((BadInput, RewriteError), match=said) as caught:
        make_rewriter(parse(RewriterSettings, {"path": str(folder)}), "cpu")
    assert str(folder / CARD_FILE) in str(caught.value)


def test_an_adapter_of_another_model_is_refused(tiny_lm: Path, tmp_path: Path) -> None:
    folder = rewriter_folder(tmp_path / "rewriter", RewriterCard(str(tiny_lm), "0123456789abcdef", "lora"))
    with pytest.raises(ModelMismatch, match=r"is an adapter of .*0123456789abcdef.* name the right model with `base`"):
        make_rewriter(parse(RewriterSettings, {"path": str(folder)}), "cpu")


def test_a_rewriter_that_has_seen_the_tools_is_not_tested_as_if_it_had_not(
    place: Path, tiny_lm: Path, tmp_path: Path, context: Context
) -> None:
    seen = [{"dataset": "other", "protocol": "official"}, {"dataset": "sample", "protocol": "official"}]
    card = RewriterCard(str(tiny_lm), fingerprint(tiny_lm), "lora", data=seen)
    folder = rewriter_folder(tmp_path / "rewriter", card)
    wanted = facts(place, data="bundled:sample", protocol="unseen-tools", rewriters={"mine": {"path": str(folder)}})
    with pytest.raises(ValueError, match="the rewriter 'mine' was trained on sample with protocol official, so it has"):
        evaluate(parse(EvalConfig, wanted), context)


def test_weights_are_not_chosen_on_queries_that_were_learned(
    place: Path, tiny_lm: Path, tmp_path: Path, context: Context
) -> None:
    """Under unseen-tools, queries of the official dev split are trained on."""
    seen = [{"dataset": "sample", "protocol": "unseen-tools"}]
    folder = rewriter_folder(tmp_path / "rewriter", RewriterCard(str(tiny_lm), fingerprint(tiny_lm), "lora", data=seen))
    wanted = facts(place, data="bundled:sample", rewriters={"mine": {"path": str(folder)}})
    with pytest.raises(
        ValueError, match="it may have seen dev queries of protocol official; evaluate test with a given fusion"
    ):
        evaluate(parse(EvalConfig, wanted), context)


ZERO = {"base": "bundled:smollm2-135m", "template": "needs"}
NOBODY = {"kind": "server", "url": "http://127.0.0.1:9/v1", "model": "x", "retries": 0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rewriters": {"mime": ZERO}}, "names the rewriter 'mine'; did you mean mime?"),
        ({"rewriters": {}}, "names the rewriter 'mine'; `rewriters` has none"),
        ({"split": "dev"}, "chooses its fusion on dev, so dev cannot measure it"),
        ({"rewriters": {"mine": {**ZERO, "path": "x"}}}, "rewriters.mine.template: a trained rewriter brings its own"),
        ({"rewriters": {"mine": {"path": "x", "phrasing": "path"}}}, "a trained rewriter brings its own phrasing"),
        ({"rewriters": {"mine": {"template": "needs"}}}, "needs a model"),
        ({"rewriters": {"mine": {"base": "bundled:smollm2-135m"}}}, "or a `template` to ask a model with"),
        ({"rewriters": {"mine": {**ZERO, "backend": NOBODY}}}, "loads no model; leave `base` out"),
        ({"rewriters": {"mine": {**ZERO, "phrasing": "loud"}}}, "got 'loud'"),
        ({"rewriters": {"mine": {**ZERO, "sampling": {"answers": 2}}}}, "greedy answers are all the same"),
        ({"rewriters": {"mine": {**ZERO, "template": "neds"}}}, "no template neds"),
        ({"rewriters": {"mine": {**ZERO, "base": "./nowhere"}}}, "no model folder ./nowhere"),
        ({"rewriters": {"mine": {"path": "nowhere"}}}, "nowhere is not a finished rewriter"),
        ({"rewriters": {"m/n": ZERO}}, "names of systems and rewriters consist of"),
        ({"systems": {"a": {"run": "x", "rewriter": "mine"}}}, "a run file is final"),
        ({"systems": {"a": {"retriever": "bm25", "fusion": ALONE}}}, "without a `rewriter`"),
        ({"systems": {"a": {**SYSTEMS["chosen"], "fusion": ALONE}}}, "give the fusion or choose it"),
        ({"systems": {"a": {**SYSTEMS["alone"], "fusion": {"raw": 2}}}}, "raw must be at most 1, got 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], words: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        json.dumps(facts(place, **{"rewriters": {"mine": ZERO}, "output": str(tmp_path / "run"), **changes}))
    )
    before = state(tmp_path)
    assert cli.evaluate([str(config)]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert state(tmp_path) == before


def test_a_server_that_is_not_there_is_no_result(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    served = {"mine": {"template": "needs", "backend": NOBODY}}
    config.write_text(json.dumps(facts(place, output=str(tmp_path / "run"), rewriters=served)))
    assert cli.evaluate([str(config)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_errors_of_rewriters_have_their_exit_codes() -> None:
    assert [exit_code(error) for error in (RewriteError("x"), BackendDown("x"), Interrupted("x"))] == [2, 1, 130]
