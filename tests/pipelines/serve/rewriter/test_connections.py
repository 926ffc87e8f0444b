"""Connections to servers: a stale one costs no rewrite, a silent server is not waited for."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from doubles import ModelServer, Reply
from serving import Running, rewriter

from pipelines.serve.rewriter import endpoints
from pipelines.serve.rewriter.breaker import Breaker
from pipelines.serve.rewriter.endpoints import ServerEndpoint, open_clients

Serve = Callable[..., Running]


def test_a_connection_that_the_server_let_go_is_no_lost_rewrite(serve: Serve, model: ModelServer) -> None:
    server = serve(rewriter=rewriter(model), deadline_ms=10_000)
    server.until_ready()
    used: list[BaseHTTPRequestHandler] = []
    stale: list[BaseHTTPRequestHandler] = []

    def once(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Reply | None:
        if handler in used:  # the same connection again
            stale.append(handler)
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
        used.append(handler)
        return None

    model.manners = once
    found = [server.search(f"a flight {number}")["results"][0]["fallback"] for number in range(6)]
    assert found == [None] * 6
    assert stale


def test_a_server_that_hangs_up_every_time_is_asked_twice_and_no_more(serve: Serve, model: ModelServer) -> None:
    server = serve(rewriter=rewriter(model, max_failures=100), deadline_ms=10_000)
    server.until_ready()

    def hangs_up(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Reply | None:
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True
        return None

    model.manners = hangs_up
    assert server.search("a flight")["results"][0]["fallback"] == {"reason": "unavailable"}
    assert len(model.asked) == 2


def test_forgetting_an_adapter_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "UNLOAD_SECONDS", 0.2)

    async def unload(port: int) -> None:
        clients = open_clients(tls=False)
        server = ServerEndpoint("silent", clients, Breaker(), "NO_SUCH_KEY")
        server.url = f"http://127.0.0.1:{port}/v1"
        async with asyncio.timeout(60):
            await server.unload("adapter")
        await clients.close()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        asyncio.run(unload(silent.getsockname()[1]))
    assert time.monotonic() - began >= 0.2
