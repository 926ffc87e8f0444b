"""Keys find and call the tools that their rules name, and every call is logged."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paths import SUPPORT
from serving import Running
from waiting import until

from pipelines.serve.calls import audit
from pipelines.serve.calls.audit import AuditLog, read_audit
from pipelines.serve.calls.settings import AccessRules, CallSettings
from pipelines.serve.keys import make_key

Serve = Callable[..., Running]


@pytest.mark.parametrize(
    ("rules", "tool", "provider", "allowed"),
    [
        (("*",), "files/read", "files", True),
        (("files",), "files/read", "files", True),
        (("files",), "files2/read", "files2", False),
        (("files/read_*",), "files/read_all", "files", True),
        (("files/read_*",), "files/write", "files", False),
        (("files/read",), "files/read", "files", True),
        (("files/read",), "files/read2", "files", False),
        ((), "files/read", "files", False),
        (("Pets",), "pets/getPet", "Pets", True),
    ],
)
def test_rules_name_providers_tools_and_patterns(
    rules: tuple[str, ...], tool: str, provider: str, allowed: bool
) -> None:
    assert AccessRules(search=rules).may_find(tool, provider) is allowed
    assert AccessRules(call=rules).may_call(tool, provider) is allowed
    assert AccessRules(destructive=rules).may_destroy(tool, provider) is allowed


def test_a_key_sees_and_calls_only_its_tools(serve: Serve, tmp_path: Path) -> None:
    names = ("searcher", "reader", "owner")
    made = {name: make_key() for name in names}
    rules: dict[str, dict[str, Any]] = {
        "searcher": {"scopes": ["search"]},
        "reader": {
            "scopes": ["search", "call"],
            "access": {"search": ["hostile"], "call": ["hostile/ec*", "hostile/wipe"]},
        },
        "owner": {"scopes": ["search", "call", "admin"], "access": {"destructive": ["hostile"]}},
    }
    keys = [{"name": name, "sha256": made[name][1], **rules[name]} for name in names]
    source = {"name": "hostile", "command": [sys.executable, str(SUPPORT / "hostile_mcp.py")]}
    calls = {"log": str(tmp_path / "log"), "log_queries": True}
    server = serve(keys=keys, anonymous=[], mcp=[source], calls=calls, admin=True)
    until(lambda: "hostile/wipe" in server.gateway.catalogue.current.index.tools)

    def ask(name: str, method: str, path: str, **body: Any) -> Any:
        headers = {"Authorization": f"Bearer {made[name][0]}"}
        return server.client.request(method, path, headers=headers, json=body or None)

    def outcome(name: str, tool: str, **arguments: Any) -> str:
        answer = ask(name, "POST", "/v1/call", tool=tool, arguments=arguments).json()
        return str(answer["error"]["code"]) if "error" in answer else answer["content"][0]["text"]

    found = ask("reader", "POST", "/v1/search", utterance="weather echo", k=20).json()["results"][0]["tools"]
    assert {tool["provider"] for tool in found} == {"hostile"}
    other = next(tool for tool in server.gateway.catalogue.current.index.tools if not tool.startswith("hostile/"))
    assert ask("reader", "GET", f"/v1/tools/{other}").status_code == 404
    assert ask("searcher", "GET", f"/v1/tools/{other}").status_code == 200
    assert ask("reader", "GET", "/v1/tools").json()["total"] == len(server.gateway.calls.upstreams["hostile"].tools)
    assert [label["label"] for label in ask("reader", "GET", "/v1/labels").json()["providers"]] == ["hostile"]
    assert outcome("searcher", "hostile/echo", text="x") == "forbidden"
    assert outcome("reader", "hostile/echo", text="x") == "x"
    assert outcome("reader", "hostile/hang") == "forbidden"
    assert outcome("reader", "hostile/wipe", text="x") == "forbidden"
    assert outcome("reader", other) == "unknown_tool"
    assert outcome("owner", "hostile/wipe", text="gone") == "gone"
    assert outcome("owner", other) == "not_callable"
    assert ask("searcher", "GET", "/v1/upstreams").status_code == 403
    [state] = ask("owner", "GET", "/v1/upstreams").json()["upstreams"]
    assert (state["state"], state["kind"], state["calls"]) == ("up", "command", {"forbidden": 2, "ok": 2})
    assert 'toolrewrite_upstream_up{upstream="hostile"} 1.0' in ask("owner", "GET", "/metrics").text
    recent = ask("owner", "GET", "/v1/admin/calls").json()["calls"]
    assert [one["outcome"] for one in recent[:2]] == ["not_callable", "ok"]
    records = list(read_audit(tmp_path / "log"))
    [search] = [record for record in records if record["kind"] == "search"]
    assert search["query"] == "weather echo"
    first = next(record for record in records if record["kind"] == "call" and record["outcome"] == "ok")
    ranks = [tool["id"] for tool in found]
    assert (first["key"], first["search"], first["rank"]) == (
        "reader",
        search["search"],
        ranks.index("hostile/echo") + 1,
    )
    assert not any("arguments" in record for record in records)


def test_a_call_belongs_to_the_search_that_listed_the_tool(tmp_path: Path) -> None:
    now = [1_763_467_200.0]
    log = AuditLog(CallSettings(log=str(tmp_path), log_arguments=True), clock=lambda: now[0])
    first = log.add_search("a", "read a file", ["x/read", "x/write"], "f")
    second = log.add_search("a", "write a file", ["x/write"], "f")
    log.add_search("b", "read", ["x/read"], "f")
    log.add_call("a", "x/read", {}, 0.1, "ok")
    log.add_call("a", "x/write", {"to": "y"}, 0.1, "ok")
    log.add_call("a", "x/write", {}, 0.1, "ok", first)
    log.add_call("c", "x/read", {}, 0.1, "ok", first)  # another key's search
    now[0] += 3_600
    log.add_call("a", "x/read", {}, 0.1, "ok")
    log.close()
    calls = [record for record in read_audit(tmp_path) if record["kind"] == "call"]
    assert [(call["search"], call["rank"]) for call in calls] == [
        (first, 1), (second, 1), (first, 2), (None, None), (None, None)
    ]  # fmt: skip
    assert calls[1]["arguments"] == {"to": "y"}
    unknown = "s0123456789ab"  # perhaps another replica's
    log.add_call("c", "x/read", {}, 0.1, "ok", unknown)
    log.add_call("c", "x/read", {}, 0.1, "ok", "no search at all")
    assert [(call["search"], call["rank"]) for call in list(log.recent)[-2:]] == [(unknown, None), (None, None)]
    assert "query" not in json.dumps(list(read_audit(tmp_path)))


def test_the_memory_of_searches_is_bounded_and_shared_fairly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_SEARCHES", 100)
    monkeypatch.setattr(audit, "MAX_LISTED", 2_000)
    log = AuditLog(CallSettings())
    few = [log.add_search("few", "q", [f"x/{number}"], "f") for number in range(5)]
    for number in range(1_000):  # one key searches much, and lists much
        log.add_search("many", "q", [f"y/{number}-{rank}" for rank in range(200)], "f")
        searches, listed = log.remembered
        assert (searches <= 100, listed <= 2_000) == (True, True)
    for number, search in enumerate(few):
        log.add_call("few", f"x/{number}", {}, 0.1, "ok", search)
    assert [call["rank"] for call in log.recent] == [1] * 5
    log.add_call("many", "y/0-0", {}, 0.1, "ok")
    log.add_call("many", "y/999-199", {}, 0.1, "ok")
    assert [call["rank"] for call in list(log.recent)[-2:]] == [None, 200]


def test_arguments_that_cannot_be_written_leave_the_call_in_the_log(tmp_path: Path) -> None:
    log, nested = AuditLog(CallSettings(log=str(tmp_path), log_arguments=True)), []
    for _ in range(100_000):
        nested = [nested]
    log.add_call("a", "x", {"deep": nested, "half": "\ud800"}, 0.1, "arguments")
    log.add_call("a", "x", {"half": "\ud800"}, 0.1, "arguments")
    assert [record["tool"] for record in read_audit(tmp_path)] == ["x", "x"]
