"""Switch to a newer rewriter on several servers, some of which are down at that moment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from doubles import ModelServer, Reply
from serving import Running, rewriter
from waiting import until

from rewrite.folder import CARD_FILE, RewriterCard
from rewrite.template import TEMPLATE_FILE, load_template

Serve = Callable[..., Running]


class AdapterServer(ModelServer):
    """Loads adapters as vLLM does, and answers by those that it has."""

    def __init__(self, port: int = 0) -> None:
        self.adapters: set[str] = set()
        self.away = False
        super().__init__(port=port)

    def reply(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Reply | None:
        if self.away:  # also for those who were connected before
            handler.close_connection = True
            return 503, {}
        if handler.path == "/v1/load_lora_adapter":
            self.adapters.add(body["lora_name"])
            return 200, {}
        if handler.path == "/v1/unload_lora_adapter":
            self.adapters.discard(body["lora_name"])
            return 200, {}
        if handler.path == "/v1/chat/completions" and body["model"] not in self.adapters:
            return 404, {"error": {"message": "The model does not exist."}}
        return super().reply(handler, body)

    def stop(self) -> None:
        self.away = True
        super().stop()


class Place:
    """A gateway before servers that come and go, and the rewriter's folder."""

    def __init__(self, serve: Serve, versions: list[Path], folder: Path, servers: list[AdapterServer]) -> None:
        self.folder, self.servers, self._newer = shutil.copytree(versions[0], folder), servers, versions[1]
        engine = rewriter(*servers)["backend"] | {"load_adapter": True}
        self.gateway = serve(rewriter={"path": str(self.folder), "backend": engine}, watch_seconds=0.1)
        until(lambda: all(server.adapters for server in servers))
        self.gateway.until_ready()
        self.old = self.served

    @property
    def served(self) -> str:
        """The fingerprint of the rewriter that answers."""
        found: str = self.gateway.post("/v1/rewrite", utterance="hi").json()["fingerprints"]["rewriter"]
        return found

    def put_newer(self) -> None:
        shutil.copytree(self._newer, self.folder.with_name("newer"))
        shutil.rmtree(self.folder)
        self.folder.with_name("newer").rename(self.folder)

    def back(self, number: int) -> AdapterServer:
        """A server that was started again, and has forgotten everything."""
        self.servers[number] = AdapterServer(self.servers[number].server_address[1])
        return self.servers[number]


@pytest.fixture
def versions(tmp_path: Path) -> list[Path]:
    """Adapters that nobody here computes with: the servers in models' places know them by their names."""
    folders = [tmp_path / "version-1", tmp_path / "version-2"]
    for folder in folders:
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_text(folder.name)
        (folder / TEMPLATE_FILE).write_text(load_template("needs").dump())
        (folder / CARD_FILE).write_text(json.dumps(asdict(RewriterCard("base", "0", "lora"))))
    return folders


@pytest.fixture
def place(
    serve: Serve, versions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Place]:
    monkeypatch.setattr("pipelines.serve.gateway.RETRY_SECONDS", 0.1)
    monkeypatch.setattr("pipelines.serve.rewriter.manager.RETRY_SECONDS", 0.1)
    servers = [AdapterServer() for _ in range(request.param)]
    made = Place(serve, versions, tmp_path / "rewriter", servers)
    yield made
    for server in servers:
        if not server.away:
            server.stop()


@pytest.mark.parametrize("place", [2], indirect=True)
@pytest.mark.parametrize("away", [0, 1])
def test_a_server_that_comes_back_gets_the_newer_rewriter_and_brings_no_older_one(place: Place, away: int) -> None:
    place.servers[away].stop()
    place.put_newer()
    until(lambda: place.served != place.old)
    new = place.served
    back = place.back(away)
    until(lambda: back.adapters)
    other = place.servers[1 - away]
    until(lambda: back.asked or (place.gateway.post("/v1/rewrite", utterance=f"hi {len(other.asked)}") and None))
    assert place.served == new
    [adapter] = back.adapters
    assert adapter in other.adapters
    assert {body["model"] for body in back.asked} == {adapter}


@pytest.mark.parametrize("place", [1], indirect=True)
def test_what_nobody_could_take_up_is_tried_again(place: Place) -> None:
    place.servers[0].stop()
    place.put_newer()
    failed = 'toolrewrite_reloads_total{result="failed",what="rewriter"}'
    until(lambda: failed in place.gateway.client.get("/metrics").text)
    assert place.served == place.old
    back = place.back(0)
    until(lambda: place.served != place.old)
    [adapter] = back.adapters
    found = place.gateway.post("/v1/rewrite", utterance="hi again").json()["results"][0]
    assert found["fallback"] is None
    assert {body["model"] for body in back.asked} == {adapter}
