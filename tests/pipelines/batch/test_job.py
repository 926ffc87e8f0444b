"""A job as its user sees it: rows in, outcomes out, bad rows aside, the same command again."""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from doubles import BM25_ONLY, ScriptedBackend, plain_context, tiny_model, varied_tools

from pipelines.batch.api import rewrite_batch, run
from pipelines.batch.settings import BatchConfig, InputSettings
from pipelines.batch.summary import BatchSummary, TooManyBadRows
from pipelines.cli import main as cli
from pipelines.data.trec import read_run
from pipelines.rewriters import RewriterSettings, make_rewriter
from pipelines.search import ToolSearch
from retrievers.errors import BadInput, IndexBusy
from retrievers.files import writer_lock
from retrievers.index import Index, add, build
from retrievers.settings import RewriteFusion
from rewrite.backends import base
from rewrite.folder import RewriterCard
from rewrite.settings import RulesSettings, Sampling
from rewrite.template import load_template

RULES = RewriterSettings(template="needs", backend=RulesSettings())
UTTERANCES = [
    f"please {verb} the {noun} for {name}, and then list all my invoices"
    for verb in ("track", "book", "cancel", "find")
    for noun in ("parcel", "flight", "hotel")
    for name in ("Anna", "Ben", "Anna")
]
CONFIG = BatchConfig(rewriter=RULES, chunk_size=5)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"_id": f"q{n}", "text": text}) + "\n" for n, text in enumerate(UTTERANCES)))
    return path


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    build(folder, varied_tools(60), BM25_ONLY, plain_context())
    return folder


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[ScriptedBackend]]:
    """A backend that answers as the test says, in place of the rules."""
    monkeypatch.setitem(base.BACKENDS, "rules", "doubles:ScriptedBackend")
    monkeypatch.setattr(ScriptedBackend, "script", staticmethod(lambda text: f"- {text[:20]}"), raising=False)
    ScriptedBackend.asked.clear()
    yield ScriptedBackend
    ScriptedBackend.asked.clear()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def do(rows: Path, out: Path, config: BatchConfig = CONFIG, **options: Any) -> BatchSummary:
    return run(str(rows), str(out), config, show=False, **options)


def test_rewrites_are_what_the_rewriter_gives(tmp_path: Path, rows: Path) -> None:
    summary = do(rows, tmp_path / "out.jsonl")
    found = read(tmp_path / "out.jsonl")
    assert [row["id"] for row in found] == [f"q{n}" for n in range(len(UTTERANCES))]
    assert [row["text"] for row in found] == UTTERANCES
    assert all(row["status"] == "rewritten" and row["queries"] for row in found)
    assert (summary.rows, summary.bad, summary.parsed, summary.fallbacks) == (36, 0, 1.0, 0)
    assert summary.answered == len(set(UTTERANCES)) == 24
    assert summary.lines == sum(len(row["queries"]) for row in found)
    assert not (tmp_path / "out.jsonl.work").exists()
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()
    assert json.loads((tmp_path / "out.jsonl.batch.json").read_text())["summary"]["rows"] == 36


@pytest.mark.parametrize("fusion", [RewriteFusion(raw=0.4), RewriteFusion("interleave")])
def test_tools_are_those_of_the_one_path_of_a_query(
    tmp_path: Path, rows: Path, index: Path, fusion: RewriteFusion
) -> None:
    config = replace(CONFIG, rewriter=replace(RULES, fusion=fusion), index=str(index), retriever="bm25", k=7)
    do(rows, tmp_path / "out.jsonl", config)
    search = ToolSearch(Index(index, plain_context()), "bm25", make_rewriter(RULES)[0], fusion)
    expected = [
        [{"id": tool, "score": round(score, 6)} for tool, score in ranking] for ranking in search.search(UTTERANCES, 7)
    ]
    assert [row["tools"] for row in read(tmp_path / "out.jsonl")] == expected


def test_an_index_alone_is_enough(tmp_path: Path, rows: Path, index: Path) -> None:
    summary = do(rows, tmp_path / "out.trec", BatchConfig(index=str(index), retriever="bm25", k=3))
    run_file = read_run(tmp_path / "out.trec")
    found = ToolSearch(Index(index, plain_context()), "bm25").search(UTTERANCES, 3)
    assert [run_file[f"q{n}"].ids for n in range(36)] == [ranking.ids for ranking in found]
    assert summary.parsed is None


def test_candidates_reach_the_prompt(
    tmp_path: Path, rows: Path, index: Path, scripted: type[ScriptedBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = tmp_path / "shown.yaml"
    shown.write_text("name: shown\nversion: 1\nsystem: x\nuser: '{utterance} | {candidates}'\ncandidates: 2\n")
    monkeypatch.setattr(RewriterSettings, "__post_init__", lambda self: None)  # rules read `needs` alone, a script any
    config = BatchConfig(rewriter=RewriterSettings(template=str(shown), backend=RulesSettings()))
    with pytest.raises(BadInput, match="shows retrieved tools; name the `index`"):
        do(rows, tmp_path / "out.jsonl", config)
    do(rows, tmp_path / "out.jsonl", replace(config, index=str(index), retriever="bm25"))
    assert len(scripted.asked) == 24
    assert all(said.partition(" | ")[2].count("- ") == 2 for said in scripted.asked)


def test_every_output_format_holds_the_same_outcomes(tmp_path: Path, rows: Path, index: Path) -> None:
    config = replace(CONFIG, index=str(index), retriever="bm25", k=4)
    for name in ("out.jsonl", "out.jsonl.gz", "out.jsonl.zst", "out.csv", "out.parquet", "out.trec"):
        do(rows, tmp_path / name, config)
    plain = read(tmp_path / "out.jsonl")
    assert gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()) == (tmp_path / "out.jsonl").read_bytes()
    with pyarrow.input_stream(tmp_path / "out.jsonl.zst", compression="zstd") as stream:
        assert stream.read() == (tmp_path / "out.jsonl").read_bytes()
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist() == plain
    with (tmp_path / "out.csv").open(newline="") as file:
        cells = [
            {
                **row,
                "queries": json.loads(row["queries"]),
                "tools": json.loads(row["tools"]),
                "tokens": int(row["tokens"]),
            }
            for row in csv.DictReader(file)
        ]
    assert cells == plain
    runs = read_run(tmp_path / "out.trec")
    assert [list(runs[row["id"]].ids) for row in plain] == [[tool["id"] for tool in row["tools"]] for row in plain]


def test_a_batch_of_openais_is_answered_as_openai_does(tmp_path: Path) -> None:
    requests = [
        {
            "custom_id": f"r{n}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "m", "messages": [{"role": "user", "content": text}]},
        }
        for n, text in enumerate(UTTERANCES[:4])
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(each) + "\n" for each in [*requests, {"custom_id": "bad"}]))
    do(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    answers = read(tmp_path / "out.jsonl")
    assert [each["custom_id"] for each in answers] == ["r0", "r1", "r2", "r3"]
    body = answers[0]["response"]["body"]
    assert answers[0]["response"]["status_code"] == 200
    assert body["choices"][0]["message"]["content"].splitlines() == body["queries"] != []
    (error,) = read(tmp_path / "out.jsonl.errors.jsonl")
    assert (error["custom_id"], error["response"], error["line"]) == ("bad", None, 5)
    assert "no body with messages" in error["error"]["message"]


def test_the_same_command_again_does_nothing_and_another_is_refused_by_name(tmp_path: Path, rows: Path) -> None:
    out = tmp_path / "out.jsonl"
    do(rows, out)
    before = out.read_bytes()
    assert do(rows, out).already_finished
    for change, name in (
        (
            replace(CONFIG, rewriter=replace(RULES, sampling=Sampling(seed=3))),
            "rewriter.sampling.seed: it was 0 and is 3",
        ),
        (replace(CONFIG, chunk_size=6), "chunk_size: it was 5 and is 6"),
        (replace(CONFIG, order="any"), "order"),
    ):
        with pytest.raises(BadInput, match=name):
            do(rows, out, change)
    rows.write_text(rows.read_text() + '"one more"\n')
    with pytest.raises(BadInput, match="another input"):
        do(rows, out)
    assert out.read_bytes() == before
    assert do(rows, out, fresh=True).rows == 37
    assert do(rows, out, replace(CONFIG, max_bad_share=0.5, cache=str(tmp_path / "cache"))).already_finished


def test_another_model_and_another_state_of_the_index_are_refused_by_name(
    tmp_path: Path, rows: Path, scripted: type[ScriptedBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(base.BACKENDS, "transformers", "doubles:ScriptedBackend")
    build(tmp_path / "index", varied_tools(20), BM25_ONLY, plain_context())
    model = tiny_model(tmp_path / "model")
    rewriter = RewriterSettings(base=str(model), template="needs")
    config = BatchConfig(rewriter=rewriter, index=str(tmp_path / "index"), retriever="bm25")
    monkeypatch.setattr(scripted, "script", staticmethod(lambda text: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        do(rows, tmp_path / "out.jsonl", config)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(BadInput, match=r"another model \(rewriter.fingerprint\)"):
        do(rows, tmp_path / "out.jsonl", config)
    tiny_model(tmp_path / "model")
    add(tmp_path / "index", varied_tools(1, start=50), plain_context())
    with pytest.raises(BadInput, match="another state of the index"):
        do(rows, tmp_path / "out.jsonl", config)
    monkeypatch.setattr(scripted, "script", staticmethod(lambda text: "NONE"))
    assert do(rows, tmp_path / "out.jsonl", config, fresh=True).statuses == {"none": 36}


def test_a_share_that_was_chosen_in_front_of_another_retriever_is_told(
    tmp_path: Path,
    rows: Path,
    index: Path,
    scripted: type[ScriptedBackend],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(base.BACKENDS, "transformers", "doubles:ScriptedBackend")
    folder = tiny_model(tmp_path / "rewriter")
    (folder / "template.yaml").write_text(load_template("needs").dump())
    made = RewriterSettings(path=str(folder))
    config = BatchConfig(rewriter=made, index=str(index), retriever="bm25")
    told = "the rewriter's share of the raw query, 0.6, was chosen in front of dense, and this is bm25"
    for number, (kind, fusion, expected) in enumerate(
        (("dense", None, True), ("bm25", None, False), ("dense", RewriteFusion(raw=0.9), False))
    ):
        card = RewriterCard("base", "0123", "full", fusion={"raw": 0.6}, data=[{"dataset": "any", "searches": kind}])
        (folder / "rewriter.json").write_text(json.dumps(asdict(card)))
        caplog.clear()
        do(rows, tmp_path / f"out-{number}.jsonl", replace(config, rewriter=replace(made, fusion=fusion)))
        assert (told in caplog.text) == expected


def test_what_changed_since_is_noticed(tmp_path: Path, rows: Path, index: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("precious")
    with pytest.raises(BadInput, match="is there already"):
        do(rows, out)
    assert out.read_text() == "precious"
    do(rows, out, fresh=True)
    out.write_text("changed")
    with pytest.raises(BadInput, match="was changed since"):
        do(rows, out)
    out.unlink()
    assert not do(rows, out).already_finished
    with pytest.raises(BadInput, match="both input and output"):
        do(rows, rows)
    with pytest.raises(BadInput, match="is a folder"):
        do(rows, tmp_path)


def test_bad_rows_go_aside_with_their_lines(tmp_path: Path, rows: Path) -> None:
    lines = rows.read_bytes().splitlines()
    lines[3:3] = [b"{broken", b"", b'{"text": "\xff"}', json.dumps({"text": "x" * 9000}).encode()]
    rows.write_bytes(b"\n".join(lines) + b"\n")
    summary = do(rows, tmp_path / "out.jsonl")
    assert (summary.rows, summary.bad) == (40, 4)
    errors = read(tmp_path / "out.jsonl.errors.jsonl")
    assert [error["line"] for error in errors] == [4, 5, 6, 7]
    assert [row["text"] for row in read(tmp_path / "out.jsonl")] == UTTERANCES


def test_mended_rows_are_tried_again_and_take_their_place(
    tmp_path: Path, rows: Path, scripted: type[ScriptedBackend]
) -> None:
    lines = rows.read_bytes().splitlines()
    good = b"\n".join([*lines[:7], b'{"_id": "new", "text": "mended"}', *lines[7:], b'"still bad"']) + b"\n"
    rows.write_bytes(good.replace(b'{"_id": "new", "text": "mended"}', b"{broken").replace(b'"still bad"', b'"still'))
    out = tmp_path / "out.jsonl"
    do(rows, out)
    scripted.asked.clear()
    rows.write_bytes(good.replace(b'"still bad"', b'"still'))
    with pytest.raises(BadInput, match="another input"):
        do(rows, out)
    summary = do(rows, out, retry=True)
    assert scripted.asked == ["mended"]
    assert (summary.rows, summary.bad) == (38, 1)
    assert [row["text"] for row in read(out)] == [*UTTERANCES[:7], "mended", *UTTERANCES[7:]]
    assert [error["line"] for error in read(tmp_path / "out.jsonl.errors.jsonl")] == [38]
    rows.write_bytes(good.replace(lines[0], b'"changed"'))
    with pytest.raises(BadInput, match="line 1 was good before and reads otherwise now"):
        do(rows, out, retry=True)
    rows.write_bytes(good)
    assert do(rows, out, retry=True).bad == 0
    direct = tmp_path / "direct.jsonl"
    do(rows, direct)
    assert out.read_bytes() == direct.read_bytes()
    assert not (tmp_path / "out.jsonl.work").exists()
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()


def test_a_wider_limit_is_a_reason_to_try_again(tmp_path: Path, rows: Path) -> None:
    rows.write_text(rows.read_text() + json.dumps("word " * 2000) + "\n")
    out = tmp_path / "out.jsonl"
    assert do(rows, out).bad == 1
    wider = replace(CONFIG, input=InputSettings(max_characters=20_000))
    assert do(rows, out, wider, retry=True).bad == 0


def test_there_must_be_something_to_try_again(tmp_path: Path, rows: Path) -> None:
    with pytest.raises(BadInput, match="no job of"):
        do(rows, tmp_path / "out.jsonl", retry=True)
    do(rows, tmp_path / "out.jsonl")
    assert do(rows, tmp_path / "out.jsonl", retry=True).already_finished
    with pytest.raises(BadInput, match="choose one of them"):
        do(rows, tmp_path / "out.jsonl", retry=True, fresh=True)


def test_too_many_bad_rows_stop_the_job_and_a_higher_limit_goes_on(
    tmp_path: Path, scripted: type[ScriptedBackend]
) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(f'"fine {n}"\n{{broken\n' for n in range(150)))
    with pytest.raises(TooManyBadRows, match=r"of 100 rows are bad, such as line \d+ \(not JSON"):
        do(path, out)
    assert not out.exists()
    assert len(scripted.asked) == 50
    summary = do(path, out, replace(CONFIG, max_bad_share=0.6))
    assert (summary.rows, summary.bad, summary.resumed) == (300, 150, 100)
    assert len(scripted.asked) == 150  # none of them twice
    path.write_text("{broken\n" * 3)
    with pytest.raises(TooManyBadRows, match="3 of 3 rows are bad"):
        do(path, tmp_path / "other.jsonl")
    path.write_text("")
    with pytest.raises(BadInput, match="holds no rows"):
        do(path, tmp_path / "none.jsonl")


def test_answers_that_cannot_be_read_or_asked_are_counted(
    tmp_path: Path, rows: Path, scripted: type[ScriptedBackend], monkeypatch: pytest.MonkeyPatch, index: Path
) -> None:
    script = {"book": "no list at all", "find": None, "cancel": "NONE"}
    answer = lambda text: next((script[verb] for verb in script if verb in text), "- a query")  # noqa: E731
    monkeypatch.setattr(scripted, "script", staticmethod(answer))
    summary = do(rows, tmp_path / "out.jsonl", replace(CONFIG, index=str(index), retriever="bm25"))
    assert summary.statuses == {"rewritten": 9, "unparseable": 9, "too-long": 9, "none": 9}
    assert (summary.fallbacks, summary.parsed) == (18, 0.5)
    raw = ToolSearch(Index(index, plain_context()), "bm25").search(UTTERANCES, 10)
    for row, ranking in zip(read(tmp_path / "out.jsonl"), raw, strict=True):
        assert row["status"] == "rewritten" or [tool["id"] for tool in row["tools"]] == list(ranking.ids)


def test_a_cache_serves_other_jobs_of_the_same_rewriter(
    tmp_path: Path, rows: Path, scripted: type[ScriptedBackend]
) -> None:
    config = replace(CONFIG, cache=str(tmp_path / "cache" / "answers.sqlite"))
    do(rows, tmp_path / "one.jsonl", config)
    assert len(scripted.asked) == 24
    assert do(rows, tmp_path / "two.jsonl", replace(config, chunk_size=7)).answered == 0
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    other = replace(config, rewriter=replace(RULES, sampling=Sampling(max_tokens=5)))
    assert do(rows, tmp_path / "three.jsonl", other).answered == 24


def test_rows_may_stand_as_they_were_finished(tmp_path: Path, rows: Path) -> None:
    do(rows, tmp_path / "in-order.jsonl")
    do(rows, tmp_path / "any.jsonl", replace(CONFIG, order="any"))
    assert sorted((tmp_path / "any.jsonl").read_bytes().splitlines()) == sorted(
        (tmp_path / "in-order.jsonl").read_bytes().splitlines()
    )


def test_two_processes_do_not_do_the_same_job(tmp_path: Path, rows: Path) -> None:
    with writer_lock(tmp_path / "out.jsonl.work", 0), pytest.raises(IndexBusy, match="another process"):
        do(rows, tmp_path / "out.jsonl")


def test_a_backend_that_dies_loses_nothing(
    tmp_path: Path, rows: Path, scripted: type[ScriptedBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(text: str) -> str:
        if "hotel" in text:
            raise ConnectionError("gone")
        return f"- {text[:20]}"

    whole = scripted.script
    monkeypatch.setattr(scripted, "script", staticmethod(dies))
    with pytest.raises(ConnectionError):
        do(rows, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
    monkeypatch.setattr(scripted, "script", staticmethod(whole))
    summary = do(rows, tmp_path / "out.jsonl")
    assert 0 < summary.resumed < summary.rows == 36


def test_the_command_reads_and_writes_pipes(tmp_path: Path, rows: Path) -> None:
    command = [sys.executable, "-c", "from pipelines.cli.main import batch; raise SystemExit(batch())", "-", "-"]
    config = tmp_path / "rules.yaml"
    config.write_text("rewriter: {template: needs, backend: {kind: rules}}\n")
    content = rows.read_bytes() + b"{broken\n"
    done = subprocess.run([*command, "--config", str(config)], input=content, capture_output=True)
    assert done.returncode == 0, done.stderr
    do(rows, tmp_path / "out.jsonl")
    assert done.stdout == (tmp_path / "out.jsonl").read_bytes()
    told = done.stderr.decode().splitlines()
    assert json.loads(told[0])["line"] == 37
    assert told[1].startswith("37 rows, 1 bad")
    command[3:] = ["-", str(tmp_path / "piped.csv"), "--config", str(config)]
    for expected in ("37 rows, 1 bad", "was finished before"):
        done = subprocess.run(command, input=content, capture_output=True)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout.decode()
    assert len(list(csv.DictReader(io.StringIO((tmp_path / "piped.csv").read_text())))) == 36


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["gone.jsonl", "out.jsonl"], "no input file"),
        (["in.jsonl", "out.what"], "does not tell its format by its name"),
        (["in.jsonl", "out.trec"], "a TREC run holds tools"),
        (["in.jsonl", "out.parquet.gz"], "compresses itself"),
        (["in.jsonl", "out.jsonl", "--set", "chunks=3"], "did you mean chunk_size?"),
        (["in.jsonl", "out.jsonl", "--set", "index=nowhere"], "nowhere"),
        (["in.jsonl", "-", "--retry-errors"], "standard output"),
        (["in.jsonl", "no/such/folder/out.jsonl"], None),
    ],
)
def test_a_wrong_request_is_one_sentence(
    tmp_path: Path,
    rows: Path,
    arguments: list[str],
    complaint: str | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("rewriter: {template: needs, backend: {kind: rules}}\n")
    code = cli.batch([*arguments, "--config", "config.yaml"])
    told = capsys.readouterr().err
    if complaint is None:
        assert code == 0  # the folder is made
        return
    assert code == 2
    assert complaint in told
    assert told.count("\n") == 1


def test_a_notebook_gives_and_gets_a_data_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    given = datasets.Dataset.from_dict({"id": ["a", "b"], "text": UTTERANCES[:2]})
    found = rewrite_batch(given, config=CONFIG)
    assert isinstance(found, datasets.Dataset)
    assert found["id"][:] == ["a", "b"]
    assert rewrite_batch(UTTERANCES[:2], config=CONFIG) == [{**row, "id": str(n + 1)} for n, row in enumerate(found)]
    summary = rewrite_batch(given, tmp_path / "out.jsonl", CONFIG)
    assert isinstance(summary, BatchSummary)
    assert [row["queries"] for row in read(tmp_path / "out.jsonl")] == found["queries"][:]
    given.to_parquet(str(tmp_path / "in.parquet"))
    for name in ("in.parquet", "in.jsonl.gz"):  # a file without an output comes back as a list, whatever its form
        with gzip.open(tmp_path / "in.jsonl.gz", "wt") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in given)
        assert rewrite_batch(tmp_path / name, config=replace(CONFIG, output_format="csv")) == list(found)
    with pytest.raises(TypeError, match="needs a config"):
        rewrite_batch(given)
