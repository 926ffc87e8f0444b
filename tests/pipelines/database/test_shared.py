"""Several gateways in front of one database see each other's changes, and survive its failures."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from doubles import counting_context, plain_context, tiny_model, varied_tools
from postgres import SECRET, Postgres
from processes import served
from serving import Running, running
from waiting import PATIENCE, until

from pipelines.cli import main as cli
from pipelines.database.errors import DatabaseDown
from pipelines.database.replica import Replica
from pipelines.database.session import Database
from pipelines.database.settings import DatabaseSettings
from pipelines.database.transfer import pull_feedback, push
from pipelines.serve.catalogue import shared_catalogue as following
from retrievers.errors import StoreDown
from retrievers.index import Index, build
from retrievers.index.in_memory import MemoryIndex
from retrievers.settings import MilvusSettings

Gateways = Callable[..., Running]
COAT = {"name": "coatFinder", "description": "Finds a coat for any weather.", "provider": "Wardrobe"}


@pytest.fixture
def gateway(index: Path, shared: DatabaseSettings) -> Iterator[Gateways]:
    """Starts gateways before a database with sixty tools. They hear of changes by the feed alone."""
    push(Index(index, plain_context()), Database(shared))
    with ExitStack() as stack:
        common = {"database": asdict(shared), "retriever": "bm25", "watch_seconds": 0.0}
        yield lambda **config: stack.enter_context(running({**common, **config}))


def has(server: Running, tool: str) -> bool:
    return server.client.get(f"/v1/tools/{tool}").status_code == 200


def fingerprint(server: Running) -> str:
    return str(server.search("weather")["fingerprints"]["index"])


def test_two_gateways_see_each_others_changes_as_they_are_made(gateway: Gateways) -> None:
    one, two = gateway(), gateway()
    assert fingerprint(one) == fingerprint(two)
    assert one.client.put("/v1/tools/coat", json=COAT).json()["added"] == 1
    assert has(one, "coat")  # at once: who has written reads what he wrote
    took = [until(lambda: has(two, "coat"))]
    found = two.search("coatFinder", k=1, rewrite="off")["results"][0]["tools"]
    assert [tool["id"] for tool in found] == ["coat"]
    assert fingerprint(one) == fingerprint(two)
    changed = two.client.put("/v1/tools/coat", json={**COAT, "description": "Sells umbrellas."}).json()
    assert (changed["updated"], changed["fingerprint"]) == (1, fingerprint(two))
    took.append(until(lambda: one.client.get("/v1/tools/coat").json()["description"] == "Sells umbrellas."))
    assert two.client.delete("/v1/tools/coat").json()["removed"] == 1
    took.append(until(lambda: not has(one, "coat")))
    assert min(took) < following.CHECK_SECONDS / 2  # by notification; a busy machine delays some
    assert fingerprint(one) == fingerprint(two)
    three = gateway()  # one that starts now has the same
    assert fingerprint(three) == fingerprint(one)


def test_the_database_is_killed_and_nothing_is_lost(
    gateway: Gateways, postgres: Postgres, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(following, "MAX_PAUSE", 1.0)
    one, two = gateway(watch_seconds=0.2), gateway()
    taken = [f"new-{number}" for number in range(20)]
    for number, tool in enumerate(taken):
        assert (one, two)[number % 2].client.put(f"/v1/tools/{tool}", json=COAT).status_code == 200
    postgres.kill()
    refused = [
        one.client.put("/v1/tools/lost", json=COAT),
        two.client.delete("/v1/tools/new-0"),
        one.post("/v1/feedback", utterance="hi", tools=["tool-001"]),
    ]
    for each in refused:
        assert (each.status_code, each.json()["error"]["code"]) == (503, "unavailable")
        assert "searches go on" in each.json()["error"]["message"]
        assert "Retry-After" in each.headers
    for server in (one, two):
        assert len(server.search("weather order", k=5)["results"][0]["tools"]) == 5
        until(lambda server=server: server.client.get("/readyz").json()["stale"])  # type: ignore[misc]
        assert server.client.get("/readyz").status_code == 200
        assert "toolrewrite_catalogue_stale 1.0" in server.client.get("/metrics").text
        assert not has(server, "lost")
    postgres.start()
    until(lambda: one.client.put("/v1/tools/after", json=COAT).status_code == 200)
    until(lambda: has(two, "after") and not two.client.get("/readyz").json()["stale"])
    for server in (one, two):
        assert all(has(server, tool) for tool in taken)
        assert not has(server, "lost")
    everything = caplog.text + "".join(each.text for each in refused)
    assert "does not answer" in everything
    assert SECRET not in everything


def test_what_was_said_while_nobody_listened_is_caught_up_with(
    gateway: Gateways, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen, may_listen = Database.listen, threading.Event()
    may_listen.set()

    async def when_it_may(database: Database) -> Any:
        while not may_listen.is_set():
            await asyncio.sleep(0.02)
        return await listen(database)

    monkeypatch.setattr(Database, "listen", when_it_may)
    one, two = gateway(), gateway()
    until(lambda: len(postgres.query("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'")) == 2)
    may_listen.clear()
    postgres.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'")
    until(lambda: not postgres.query("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'"))
    assert one.client.put("/v1/tools/unheard", json=COAT).status_code == 200
    assert one.client.delete("/v1/tools/tool-007").status_code == 200
    assert not has(two, "unheard")
    may_listen.set()
    until(lambda: has(two, "unheard") and not has(two, "tool-007"))
    assert fingerprint(one) == fingerprint(two)


def test_what_could_not_be_read_is_read_again_soon(gateway: Gateways, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = gateway(), gateway()
    read, failures = Replica.refresh, [1, 1]

    def refresh(replica: Replica) -> MemoryIndex:
        if failures:
            failures.pop()
            raise DatabaseDown("it does not answer")
        return read(replica)

    monkeypatch.setattr(Replica, "refresh", refresh)
    one.client.put("/v1/tools/coat", json=COAT)
    assert until(lambda: has(two, "coat") and not failures) < following.CHECK_SECONDS / 2
    until(lambda: not two.client.get("/readyz").json()["stale"])


def test_one_pool_for_what_callers_confirm(gateway: Gateways, shared: DatabaseSettings, tmp_path: Path) -> None:
    for number, server in enumerate((gateway(), gateway())):
        said = {"utterance": f"is it\nraining {number}? 🌧 \x00", "tools": ["tool-001", "tool-002"]}
        assert server.post("/v1/feedback", **said).json() == {"kept": True}
    assert pull_feedback(Database(shared), tmp_path / "pool.jsonl") == 2
    first, second = [json.loads(line) for line in (tmp_path / "pool.jsonl").read_text().splitlines()]
    assert (first["utterance"], second["tools"]) == ("is it\nraining 0? 🌧 \x00", ["tool-001", "tool-002"])


def test_feedback_at_one_gateway_proves_a_newcomer_at_another(gateway: Gateways) -> None:
    trust = {"default": "new", "hold": [], "vetted": sorted({tool.provider for tool in varied_tools(60)})}
    one, two = gateway(trust=trust), gateway(trust=trust)
    assert one.client.put("/v1/tools/coat", json=COAT).status_code == 200
    until(lambda: has(two, "coat"))

    def ranks_first() -> bool:
        return str(two.search("coatFinder weather", k=3)["results"][0]["tools"][0]["id"]) == "coat"

    assert not ranks_first()
    for number in range(3):
        assert one.post("/v1/feedback", utterance=f"a coat {number}", tools=["coat"]).status_code == 200
    until(ranks_first)


def test_refusals_are_those_of_a_folder(gateway: Gateways) -> None:
    one = gateway()
    assert one.client.delete("/v1/tools/nobody").status_code == 404
    codes = [one.client.delete(f"/v1/tools/{tool.id}").status_code for tool in varied_tools(60)]
    assert codes == [200] * 59 + [422]
    page = one.client.get("/v1/tools").json()
    assert (page["total"], len(page["tools"])) == (1, 1)


def test_a_gateway_is_killed_while_it_writes_and_nothing_is_lost(
    gateway: Gateways, shared: DatabaseSettings, tmp_path: Path
) -> None:
    survivor, taken = gateway(), list[str]()
    config = {"database": asdict(shared), "anonymous": ["search", "write"]}

    def write(url: str) -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
            for number in range(10_000):
                try:
                    if client.put(f"/v1/tools/new-{number}", json=COAT).status_code == 200:
                        taken.append(f"new-{number}")
                except httpx.HTTPError:
                    return

    with served(tmp_path, config) as (process, url):
        writer = threading.Thread(target=write, args=(url,))
        writer.start()
        until(lambda: len(taken) > 20)
        process.send_signal(signal.SIGKILL)
        writer.join()
        assert process.wait() == -9
    until(lambda: all(has(survivor, tool) for tool in taken))
    whole = survivor.client.get("/v1/tools").json()["total"]
    assert whole - 60 - len(taken) in (0, 1)  # at most the one that was saved and not yet answered
    with served(tmp_path, config) as (again, url):
        assert httpx.get(f"{url}/v1/tools", timeout=PATIENCE, trust_env=False).json()["total"] == whole
        again.terminate()
        assert again.wait(PATIENCE) == 0


def test_mistakes_are_one_sentence(
    shared: DatabaseSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "serve.yaml"
    good = {"database": asdict(shared), "retriever": "bm25", "anonymous": ["search"], "port": 0}

    def complaint(**change: object) -> str:
        path.write_text(yaml.safe_dump({**good, **change}))
        assert cli.serve([str(path)]) in (1, 2)
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert SECRET not in told
        return told

    assert "rewrite-index push" in complaint()
    assert "folder of an index, or a database" in complaint(index="runs/sample/index")
    assert "did you mean schema?" in complaint(database={"schemas": "x"})
    assert "small letters" in complaint(database={"schema": 'x"; DROP'})
    path.write_text(yaml.safe_dump(good))
    assert cli.serve([str(path), "--dry-run"]) == 0
    assert SECRET not in capsys.readouterr().out
    monkeypatch.setenv("TOOLREWRITE_DATABASE", f"postgresql://u:{SECRET}@127.0.0.1:1/x")
    assert "does not answer" in complaint(database={"start_seconds": 0.1})


def test_a_store_of_vectors_that_is_away_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("milvus_lite")
    model = tiny_model(tmp_path / "model")
    context, _ = counting_context(model)
    settings = {"milvus": MilvusSettings(str(tmp_path / "vectors.db"), model="any")}
    build(tmp_path / "milvus", varied_tools(20), settings, context)
    monkeypatch.setattr("pipelines.serve.gateway.make_context", lambda device, **_: context)
    with running({"index": str(tmp_path / "milvus"), "retriever": "milvus"}) as server:
        assert len(server.search("weather", k=5)["results"][0]["tools"]) == 5
        assert server.client.put("/v1/tools/coat", json=COAT).status_code == 200
        assert has(server, "coat")

        def away(*_: object) -> None:
            raise StoreDown("Milvus at http://milvus:19530 does not answer (timeout)")

        monkeypatch.setattr("retrievers.dense.milvus._Store.search", away)
        told = server.post("/v1/search", utterance="hotel")
        assert (told.status_code, told.json()["error"]["code"]) == (503, "unavailable")
        assert "19530" not in told.text
