"""From clicks to a better index: whole rounds before a real server, killed in between, promoted and taken back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from serving import Running, running
from tiny_runs import TEMPLATE, TRAINING, make_data, write
from waiting import until

from pipelines.cli import main as cli
from pipelines.data.dataset import load_dataset
from pipelines.data.dataset_writer import write_dataset
from pipelines.database.feedback import FeedbackPool
from pipelines.database.schema import migrate
from pipelines.database.session import Database, Session
from pipelines.database.settings import DatabaseSettings
from pipelines.renew.promote import promote, restore_previous
from pipelines.renew.rounds import CANDIDATE, LIVE
from pipelines.renew.settings import LiveSystem, RenewConfig
from pipelines.renew.verdict import make_systems, make_verdict
from pipelines.rewriters import RewriterSettings
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.settings import BM25Settings, RewriteFusion

DENSE = {
    "kind": "dense",
    "train": {"data": [{"path": "collected"}], "epochs": 1, "batch_size": 32, "max_length": 48, "blends": [0, 0.5]},
}


def written(folder: Path, **changes: Any) -> str:
    """The config of a round that makes a lexical index dense."""
    config = {
        "output": f"{folder}/renewals",
        "live": {"index": f"{folder}/live", "retriever": "main"},
        "sources": {"feedback": f"{folder}/feedback", "traces": f"{folder}/traces.jsonl", "min_utterances": 30},
        "retrain": {"kind": "index", "retrievers": {"main": DENSE}},
        "fixed_sets": [{"data": f"{folder}/fixed", "group_by": "language"}],
        "metrics": ["recall@5", "ndcg@5"],
    }
    path = folder / "renew.yaml"
    path.write_text(yaml.safe_dump(config | changes))
    return str(path)


@pytest.fixture
def place(tmp_path: Path, context: Context) -> Path:
    """A lexical index of some of the sample, in the name of `main`; fixed queries; a log of a tool nobody has."""
    data = load_dataset("bundled:sample")
    asked = Counter(tool for gold in data.gold["test"].values() for tool in gold)
    chosen = {tool for tool, _ in asked.most_common(24)}
    tools = [replace(tool, parameters=()) for tool in data.tools if tool.id in chosen]
    gold = {query: needed for query, needed in sorted(data.gold["test"].items()) if needed <= chosen}
    gold = dict(list(gold.items())[:80])
    write_dataset(tmp_path / "fixed", tools, [data.queries[query] for query in gold], {"test": gold})
    build(tmp_path / "live", tools, {"main": BM25Settings()}, context)
    call = {"id": "c", "type": "function", "function": {"name": "no_such_tool", "arguments": "{}"}}
    log = {"messages": [{"role": "user", "content": "beam me up"}, {"role": "assistant", "tool_calls": [call]}]}
    (tmp_path / "traces.jsonl").write_text(json.dumps(log) + "\n")
    (tmp_path / "feedback").mkdir()
    return tmp_path


def lessons(place: Path, count: int) -> list[tuple[str, list[str]]]:
    data, tools = load_dataset("bundled:sample"), {tool.id for tool in load_dataset(str(place / "fixed")).tools}
    chosen = [(query, gold) for query, gold in sorted(data.gold["train"].items()) if gold <= tools][:count]
    assert len(chosen) == count
    return [(data.queries[query].text, sorted(gold)) for query, gold in chosen]


def confirm(place: Path, count: int) -> None:
    rows = [{"utterance": text, "tools": tools, "key": "agent"} for text, tools in lessons(place, count)]
    path = place / "feedback" / "feedback-2026-01-01.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def answered_by(server: Running) -> str:
    return str(server.search("will I need a coat")["fingerprints"]["index"])


def test_clicks_become_a_better_index_that_the_server_takes_up(
    place: Path, context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(place)
    serving = {"index": f"{place}/live", "retriever": "main", "feedback": f"{place}/feedback", "watch_seconds": 0.1}
    with running(serving) as server:
        for text, tools in lessons(place, 40):
            assert server.post("/v1/feedback", utterance=text, tools=tools).status_code == 200
        before = answered_by(server)
        assert cli.train(["renew", config, "--device", "cpu", "--set", "promote=false"]) == 0
        output = capsys.readouterr().out
        assert "records: 40 of feedback, 1 of trace; 40 utterances" in output
        assert "not in the catalogue: no_such_tool (1)" in output
        assert "retrained main: dev recall@5 " in output
        assert "The candidate is better, and nowhere worse" in output
        assert "better, not promoted: " in output
        assert Index(place / "live", context).fingerprint == before
        assert cli.train(["renew", config, "--device", "cpu"]) == 0
        assert "round-0001 was better before, and is promoted now" in capsys.readouterr().out
        until(lambda: answered_by(server) != before)
        put = server.client.put("/v1/tools/kettle", json={"name": "kettle", "description": "Boils water."})
        assert put.status_code == 200
        promoted = answered_by(server)

        assert cli.train(["renew", config, "--rollback", "--device", "cpu"]) == 0
        until(lambda: answered_by(server) != promoted)
        assert server.search("kettle")["results"][0]["tools"][0]["id"] == "kettle"  # what came since is not lost
    assert {part.settings["kind"] for part in Index(place / "live", context).manifest.retrievers.values()} == {"bm25"}
    folder = place / "renewals" / "round-0001"
    facts = json.loads((folder / "verdict.json").read_text())
    assert facts["outcome"] == "rolled back"
    assert {row["group"] for row in facts["comparisons"]} >= {"all queries", "en", "de"}
    page = (folder / "report.html").read_text()
    assert "no_such_tool" in page
    assert "<bdi>rolled back</bdi>" in page
    assert "eval-fixed/report.html" in page
    assert (folder / "eval-fixed" / "report.html").is_file()

    capsys.readouterr()
    assert cli.train(["renew", config, "--device", "cpu"]) == 0
    assert "no round was made: there is no new feedback since round-0001 (rolled back)" in capsys.readouterr().out
    assert cli.train(["renew", config, "--rollback"]) == 2
    assert "nothing to roll back" in capsys.readouterr().err


def _killed(config: str) -> None:
    """Runs in a driver, which has loaded everything once: a child a stage, which dies when the stage is done."""
    import datasets  # noqa: F401
    import sentence_transformers  # noqa: F401

    from pipelines.renew import loop

    for stage in ("collect", "compare_on_fixed_sets", "promote"):
        child = os.fork()
        if not child:
            real = getattr(loop, stage)

            def last(*words: Any, real: Any = real, **named: Any) -> None:
                real(*words, **named)
                os.kill(os.getpid(), signal.SIGKILL)

            setattr(loop, stage, last)
            cli.train(["renew", config, "--device", "cpu"])
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        if stage == "compare_on_fixed_sets":
            confirm(Path(config).parent, 45)  # what is said meanwhile is for the next round
    raise SystemExit(cli.train(["renew", config, "--device", "cpu"]))


def test_a_round_that_is_killed_goes_on_with_what_it_had_collected(place: Path, context: Context) -> None:
    config = written(place)
    confirm(place, 40)
    world = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, __file__, config], env=world, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("40 utterances") == 1
    assert "promoted:" in done.stdout
    assert [path.name for path in (place / "renewals").glob("round-*")] == ["round-0001"]
    live = Index(place / "live", context)
    assert live.manifest.retrievers["main"].settings["kind"] == "dense"
    assert not list(place.glob("**/.part-*"))


def test_dry_run_tells_what_would_be_learned_and_writes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    confirm(place, 10)
    assert cli.train(["renew", written(place), "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert yaml.safe_load(output)["live"]["retriever"] == "main"
    assert "# records: 10 of feedback, 1 of trace; 10 utterances" in output
    assert not (place / "renewals").exists()
    assert cli.train(["renew", written(place)]) == 0
    assert "no round was made: 10 utterances of the 30" in capsys.readouterr().out


def test_mistakes_are_one_sentence(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def complaint(**changes: Any) -> str:
        assert cli.train(["renew", written(place, **changes)]) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        return message

    assert "nothing to learn from" in complaint(sources={})
    assert "no regular expression" in complaint(sources={"traces": "x", "drop": ["("]})
    assert "is not among the retrievers" in complaint(live={"index": f"{place}/live", "retriever": "dense"})
    assert "set `train:" in complaint(retrain={"kind": "index", "retrievers": {"main": {"kind": "bm25"}}})
    assert "must name the path of the trained rewriter" in complaint(retrain={"kind": "rewriter"})
    assert "no finished index" in complaint(live={"index": f"{place}/none", "retriever": "main"})
    assert "no file or folder" in complaint(sources={"feedback": f"{place}/nowhere"})


def _evaluation(live: list[float], candidate: list[float], groups: dict[str, list[bool]]) -> Any:
    values = {"live": {"recall@5": np.array(live)}, "candidate": {"recall@5": np.array(candidate)}}
    return SimpleNamespace(values=values, groups={name: np.array(mask) for name, mask in groups.items()})


def test_harm_in_one_group_or_one_data_set_stops_a_better_candidate() -> None:
    harmed = _evaluation([0.0] * 60 + [1.0] * 12, [1.0] * 60 + [0.0] * 12, {"a": [True] * 60 + [False] * 12})
    fine = _evaluation([0.0] * 40, [1.0] * 40, {})
    small = _evaluation([1.0] * 4, [0.0] * 4, {})
    mask = {"a": [True] * 60 + [False] * 12, "b": [False] * 60 + [True] * 12}
    grouped = _evaluation([0.0] * 60 + [1.0] * 12, [1.0] * 60 + [0.0] * 12, mask)

    def judge(**evaluations: Any) -> tuple[bool, bool, list[tuple[str, str]]]:
        verdict = make_verdict(evaluations, ("recall@5",), 0.05, 0)
        return verdict.better, verdict.passed, [(row.data, row.group) for row in verdict.worse]

    assert judge(fine=fine) == (True, True, [])
    assert judge(harmed=harmed) == (True, True, [])  # without groups, the twelve are not judged apart
    assert judge(grouped=grouped) == (True, False, [("grouped", "b")])
    assert judge(fine=fine, small=small) == (True, True, [])  # four queries prove nothing
    lost = _evaluation([1.0] * 12, [0.0] * 12, {})
    assert judge(fine=fine, lost=lost) == (True, False, [("lost", "all queries")])
    assert judge(same=_evaluation([1.0] * 50, [1.0] * 50, {})) == (False, False, [])


def test_a_rewriter_is_promoted_by_a_link_and_taken_back(tmp_path: Path, context: Context) -> None:
    for name in ("round-0001/candidate/rewriter", "round-0002/candidate/rewriter", "live"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "rewriter.json").write_text(name)
    config = _rewriting(tmp_path / "live")
    card = tmp_path / "live" / "rewriter.json"
    promote(config, tmp_path / "round-0001", context)
    promote(config, tmp_path / "round-0001", context)  # a kill came before it was noted
    assert card.read_text() == "round-0001/candidate/rewriter"
    promote(config, tmp_path / "round-0002", context)
    assert card.read_text() == "round-0002/candidate/rewriter"
    restore_previous(config, tmp_path / "round-0002", context)
    assert card.read_text() == "round-0001/candidate/rewriter"
    restore_previous(config, tmp_path / "round-0001", context)
    assert card.read_text() == "live"
    fresh = _rewriting(tmp_path / "new")
    promote(fresh, tmp_path / "round-0002", context)
    assert (tmp_path / "new" / "rewriter.json").read_text() == "round-0002/candidate/rewriter"
    (tmp_path / "round-0002" / "rewriter-before").unlink()  # of the first promotion above
    restore_previous(fresh, tmp_path / "round-0002", context)
    assert not (tmp_path / "new").exists()


def test_live_and_candidate_are_compared_with_one_fusion(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    config, fusion = _rewriting(tmp_path / "live"), RewriteFusion(raw=0.25)
    assert config.live.rewriter is not None
    fused = replace(config.live, rewriter=replace(config.live.rewriter, fusion=fusion))
    systems, rewriters = make_systems(replace(config, live=fused), tmp_path)
    assert {name: rewriters[str(system.rewriter)].fusion for name, system in systems.items()} == {
        LIVE: fusion,
        CANDIDATE: fusion,
    }
    assert rewriters[CANDIDATE] == replace(rewriters[LIVE], path=str(tmp_path / CANDIDATE))


def _rewriting(path: Path) -> RenewConfig:
    from pipelines.renew.settings import FixedSet, RetrainRewriter, Sources

    live = LiveSystem("index", rewriter=RewriterSettings(path=str(path)))
    return RenewConfig("out", live, Sources(traces=("x",)), RetrainRewriter(), (FixedSet("bundled:sample"),))


def test_the_pool_of_several_gateways_is_read(
    place: Path, shared: DatabaseSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(Database(shared))
    session.run(lambda connection: migrate(connection, shared.schema))
    pool = FeedbackPool(session)
    for text, tools in lessons(place, 3):
        pool.append({"utterance": text, "tools": tools, "key": "agent"})
    pool.close()
    config = written(place, sources={"database": {"schema": shared.schema}})
    assert cli.train(["renew", config, "--dry-run"]) == 0
    assert "# records: 3 of feedback; 3 utterances" in capsys.readouterr().out


def test_a_rewriter_is_trained_for_the_live_retriever_and_kept_out_where_it_gains_nothing(
    tmp_path: Path, tiny_lm: Path, capsys: pytest.CaptureFixture[str], context: Context
) -> None:
    data = load_dataset(str(make_data(tmp_path / "small")))
    build(tmp_path / "live", data.tools, {"main": BM25Settings()}, context)
    rows = [{"utterance": f"{tool.id} in town", "tools": [tool.id]} for tool in data.tools]
    (tmp_path / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = written(
        tmp_path,
        live={"index": f"{tmp_path}/live", "retriever": "main", "rewriter": {"path": f"{tmp_path}/rewriter"}},
        sources={"feedback": f"{tmp_path}/said.jsonl", "min_utterances": 5},
        retrain={
            "kind": "rewriter",
            "base": str(tiny_lm),
            "template": write(tmp_path / "short.yaml", TEMPLATE),
            "training": TRAINING | {"epochs": 1, "evaluations": 1},
            "evaluation": {"max_tokens": 6},
        },
        fixed_sets=[{"data": str(tmp_path / "small"), "split": "dev"}],
        metrics=["recall@5"],
    )
    assert cli.train(["renew", config, "--device", "cpu"]) == 0
    assert "live kept" in capsys.readouterr().out
    assert (tmp_path / "renewals/round-0001/candidate/rewriter/rewriter.json").is_file()
    assert not (tmp_path / "rewriter").exists()


if __name__ == "__main__":
    _killed(sys.argv[1])
