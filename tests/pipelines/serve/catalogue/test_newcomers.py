"""An imitation in its own words takes ranks of established tools, until uses and words bound what it takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serving import Running
from waiting import until

from pipelines.serve.calls.uses import UseCounts

Serve = Callable[..., Running]
VERBS = ("find", "rent", "mend", "sell", "paint")
ASKED = "umbrella that I could borrow this afternoon in town"


def catalogue() -> list[dict[str, str]]:
    """Five established tools, and newcomers of providers of their own that paraphrase the query."""
    good = [
        {
            "id": f"good/{verb}",
            "name": f"{verb} umbrella",
            "description": f"Lets you {verb} an umbrella.",
            "provider": "Good",
        }
        for verb in VERBS
    ]
    texts = (
        "For people who would like an umbrella to borrow this afternoon.",
        "It serves people who want to borrow an umbrella this afternoon in town.",
        "Help with an umbrella in town for the afternoon, to borrow.",
    )
    bad = [
        {"id": f"studio/{number}", "name": "umbrella borrow", "description": text, "provider": f"Studio {number}"}
        for number, text in enumerate(texts)
    ]
    return [*good, *bad]


def shown(server: Running, asked: str) -> list[str]:
    tools: list[dict[str, Any]] = server.search(asked, k=5)["results"][0]["tools"]
    return [tool["id"] for tool in tools]


def test_paraphrases_take_little_of_tools_that_are_used(serve: Serve, tmp_path: Path) -> None:
    open_server = serve()
    assert open_server.client.put("/v1/tools", json={"tools": catalogue()}).status_code == 200
    attacked = shown(open_server, ASKED)
    assert attacked[0].startswith("studio/")
    assert sum(tool.startswith("studio/") for tool in attacked) == 3
    trust = {"default": "new", "vetted": ["Good"], "hold": [], "keys": ["anonymous"]}
    server = serve(trust=trust, feedback=str(tmp_path / "feedback"))
    bounded = shown(server, ASKED)
    assert bounded[0].startswith("good/")
    assert sum(tool.startswith("studio/") for tool in bounded) == 1  # one of those that read alike
    for verb in VERBS:
        answer = server.post("/v1/feedback", utterance=f"please {verb} it", tools=[f"good/{verb}"])
        assert answer.status_code == 200, answer.text
    # Now each established tool was used: newcomers get a rank in one search of five.
    texts = [f"{ASKED} {number}" for number in range(60)]
    until(lambda: sum(any(tool.startswith("studio/") for tool in shown(server, text)) for text in texts) < 30)
    assert any(any(tool.startswith("studio/") for tool in shown(server, text)) for text in texts)
    for number in range(3):  # an honest newcomer is used, and ranks like the others from then on
        server.post("/v1/feedback", utterance=f"borrow an umbrella {number}", tools=["studio/0"])
    until(lambda: all("studio/0" in shown(server, text) for text in texts[:10]))


def test_uses_are_counted_once_per_key_and_query(tmp_path: Path) -> None:
    calls, feedback = tmp_path / "calls-2026-11-18.jsonl", tmp_path / "feedback-2026-11-18.jsonl"
    call = {"kind": "call", "key": "agent", "tool": "a", "outcome": "ok", "search": "s1", "rank": 1}
    records = [call, call, {**call, "search": "s2"}, {**call, "outcome": "failed", "search": "s3"}]
    records.append({**call, "search": "s4", "rank": None})  # a search that the gateway does not know
    calls.write_text("".join(f"{json.dumps(record)}\n" for record in [*records, {**call, "key": "other"}]))
    feedback.write_text(json.dumps({"utterance": "x", "tools": ["a", "b"], "key": "agent"}) + "\n{torn")
    uses = UseCounts([tmp_path, tmp_path / "absent"], ["agent"])
    uses.read()
    assert uses.counts == {"a": 3, "b": 1}
    with feedback.open("a") as stream:
        stream.write("\n" + json.dumps({"utterance": "y", "tools": ["b"], "key": "agent"}) + "\n")
    uses.read()
    assert uses.counts == {"a": 3, "b": 2}
    everybody = UseCounts([tmp_path])
    everybody.read()
    assert everybody.counts == {"a": 4, "b": 2}
