"""Calls that follow a search teach renew, within bounds that one caller cannot exceed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pipelines.renew.settings import EvidenceWeights, Sources
from pipelines.renew.sources import read_records
from pipelines.serve.calls.audit import AuditLog
from pipelines.serve.calls.settings import CallSettings


def log_of(folder: Path, queries: bool = True) -> AuditLog:
    return AuditLog(CallSettings(log=str(folder), log_queries=queries))


def read(folder: Path, **settings: object) -> tuple[dict[str, set[str]], Counter[str]]:
    left_out: Counter[str] = Counter()
    sources = Sources(calls=(str(folder),), **settings)  # type: ignore[arg-type]
    records = {record.utterance: set(record.tools) for record in read_records(sources, left_out)}
    return records, +left_out


def test_successful_calls_after_a_search_are_learned(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    log.add_search("a", "Read my notes", ["files/read", "files/list"], "f")
    log.add_call("a", "files/list", {}, 0.1, "ok")
    log.add_call("a", "files/read", {}, 0.1, "tool_error")
    log.add_search("b", "read my  notes", ["files/read"], "f")
    log.add_call("b", "files/read", {}, 0.1, "ok")
    log.add_search("a", "what is the time", ["time/now"], "f")
    log.add_call("a", "time/now", {}, 0.1, "timeout")
    log.add_call("a", "never/searched", {}, 0.1, "ok")
    log.add_search("a", "tell me a joke", ["time/now"], "f")
    records, left_out = read(tmp_path)
    assert records == {"Read my notes": {"files/list"}}  # files/read failed as often as it succeeded
    assert left_out == {
        "failed calls": 1,
        "calls without a search": 1,
        "searches without a call": 1,
        "tools that more speaks against": 1,
    }


def test_a_second_search_teaches_the_first_query(tmp_path: Path) -> None:
    clock = iter(range(0, 100_000, 10))
    log = AuditLog(CallSettings(log=str(tmp_path), log_queries=True), clock=lambda: float(next(clock)))
    log.add_search("a", "put my notes away", ["mail/send"], "f")
    log.add_search("a", "archive my notes", ["files/move"], "f")
    log.add_call("a", "files/move", {}, 0.1, "ok")
    log.add_search("a", "remind me of lunch", ["mail/send"], "f")
    log.add_search("a", "weather in Rome", ["weather/now"], "f")  # another request, not the same in other words
    log.add_call("a", "weather/now", {}, 0.1, "ok")
    expected = {"archive my notes": {"files/move"}, "weather in Rome": {"weather/now"}}
    assert read(tmp_path, weights=EvidenceWeights(retried=0.5))[0] == {"put my notes away": {"files/move"}, **expected}
    assert read(tmp_path, weights=EvidenceWeights(retried=0.25))[0] == expected  # below `min_support`


def test_what_is_passed_over_and_what_few_agree_on_does_not_count(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    for key in ("a", "b", "c"):
        log.add_search(key, "read my notes", ["evil/read", "files/read"], "f")
        log.add_call(key, "files/read", {}, 0.1, "ok")
    log.add_search("hostile", "read my notes", ["evil/read", "files/read"], "f")
    log.add_call("hostile", "evil/read", {}, 0.1, "ok")
    records, left_out = read(tmp_path, weights=EvidenceWeights(ignored=0.0))
    assert (records, left_out) == ({"read my notes": {"files/read"}}, {"tools that fewer agree on": 1})
    records, left_out = read(tmp_path, weights=EvidenceWeights(ignored=0.25))
    assert (records, left_out) == ({"read my notes": {"files/read"}}, {"tools that more speaks against": 1})


def test_one_key_teaches_only_its_share_and_tools_need_several(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    for number in range(50):
        log.add_search("hostile", f"request {number}", ["evil/tool", "good/tool"], "f")
        log.add_call("hostile", "evil/tool", {}, 0.1, "ok")
    for key in ("a", "b"):
        log.add_search(key, f"honest request of {key}", ["good/tool"], "f")
        log.add_call(key, "good/tool", {}, 0.1, "ok")
    assert len(read(tmp_path)[0]) == 52
    assert read(tmp_path, min_callers=2)[0] == {
        "honest request of a": {"good/tool"},
        "honest request of b": {"good/tool"},
    }
    records, left_out = read(tmp_path, max_per_key=5)
    assert (len(records), left_out["beyond a key's share"]) == (7, 45)
    for number in range(50):  # the same queries from an honest key lend the hostile one no share
        log.add_search("c", f"request {number}", ["good/tool"], "f")
        log.add_call("c", "good/tool", {}, 0.1, "ok")
    assert sum("evil/tool" in tools for tools in read(tmp_path, max_per_key=5)[0].values()) == 5
    assert read(tmp_path, keys=("a",))[0] == {"honest request of a": {"good/tool"}}


def test_logs_of_several_replicas_are_read_together(tmp_path: Path) -> None:
    now = [0.0]
    first, second = (
        AuditLog(CallSettings(log=str(tmp_path / name), log_queries=True), clock=lambda: now[0]) for name in ("z", "a")
    )
    named = first.add_search("a", "read my notes", ["files/read"], "f")
    other = first.add_search("b", "what is the time", ["time/now"], "f")
    now[0] = 5.0
    second.add_call("a", "files/read", {}, 0.1, "ok", named)
    second.add_call("b", "time/now", {}, 0.1, "ok")  # names no search: the newest of its key
    second.add_call("c", "time/now", {}, 0.1, "ok", other)  # another key's search
    second.add_call("b", "files/read", {}, 0.1, "ok", other)  # a tool that it did not list
    second.add_call("c", "files/read", {}, 0.1, "ok", "s0123456789ab")  # no search at all
    first.add_search("d", "weather", ["weather/now"], "f")
    now[0] = 2_000.0
    second.add_call("d", "weather/now", {}, 0.1, "ok")  # too late
    left_out: Counter[str] = Counter()
    sources = Sources(calls=(str(tmp_path / "a"), str(tmp_path / "z")))
    records = {record.utterance: set(record.tools) for record in read_records(sources, left_out)}
    assert records == {"read my notes": {"files/read"}, "what is the time": {"time/now"}}
    assert left_out["calls without a search"] == 4


def test_tools_far_down_a_list_are_no_evidence(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    for key in ("a", "b", "c"):  # keys that act together, and list everything to call one tool for every request
        log.add_search(key, "read my notes", [*(f"files/{number}" for number in range(100)), "evil/tool"], "f")
        log.add_call(key, "evil/tool", {}, 0.1, "ok")
    records, left_out = read(tmp_path, min_callers=2)
    assert (records, left_out["calls of tools below `max_rank`"]) == ({}, 3)
    assert read(tmp_path, min_callers=2, max_rank=0)[0] == {"read my notes": {"evil/tool"}}


def test_without_queries_in_the_log_nothing_is_learned(tmp_path: Path) -> None:
    log = log_of(tmp_path, queries=False)
    log.add_search("a", "Read my notes", ["files/read"], "f")
    log.add_call("a", "files/read", {}, 0.1, "ok")
    records, left_out = read(tmp_path)
    assert (records, left_out["searches without a query (`calls.log_queries`)"]) == ({}, 1)
