"""Restarts of the vLLM process, with a small HTTP server in its place."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pipelines.serve.rewriter import vllm_process
from pipelines.serve.rewriter.settings import ManagedVllm
from pipelines.serve.rewriter.vllm_process import KEY_VARIABLE, VllmProcess

CHILD = """
import os, sys, threading, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
at = sys.argv.index
loads, lives = map(float, Path(sys.argv[at("--model") + 1]).read_text().split())
time.sleep(loads)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        threading.Timer(lives, os._exit, (3,)).start()
HTTPServer(("127.0.0.1", int(sys.argv[at("--port") + 1])), Handler).serve_forever()
"""


def supervised(folder: Path, up: Callable[[str], Awaitable[None]]) -> VllmProcess:
    """A supervisor whose child does as the file `times` says: seconds to load, and to live from then on."""
    made = VllmProcess(ManagedVllm(logs=str(folder / "logs")), folder / "times", 0, up, lambda: None)
    made.command = [sys.executable, "-c", CHILD]
    return made


async def watched(process: VllmProcess, enough: asyncio.Event) -> None:
    running = asyncio.create_task(process.run())
    waiting = asyncio.create_task(enough.wait())
    await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED, timeout=90)
    assert waiting.done(), "it was not started again"
    for task in (running, waiting):
        task.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "known to nobody else")


def test_loading_for_long_is_not_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(vllm_process, "STEADY_SECONDS", 1.2)
    monkeypatch.setattr(vllm_process, "MAX_PAUSE", 0.25)
    (tmp_path / "times").write_text("1.5 0.01")

    async def run() -> None:
        ups, enough = [0], asyncio.Event()

        async def up(url: str) -> None:
            ups[0] += 1
            if ups[0] == 2:  # the next is up at once, and lives
                (tmp_path / "times").write_text("0 1.8")
            if ups[0] == 4:
                enough.set()

        await watched(supervised(tmp_path, up), enough)

    with caplog.at_level(logging.WARNING, "rewrite-serve"):
        asyncio.run(run())
    pauses = [told.split("again in ")[1].split()[0] for told in caplog.messages if "again in " in told]
    assert pauses[:3] == ["0.25", "0.25", "1"]


def test_whatever_goes_wrong_when_it_is_up_it_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_process, "MAX_PAUSE", 0.1)
    (tmp_path / "times").write_text("0 60")

    async def run() -> int:
        enough = asyncio.Event()

        async def up(url: str) -> None:
            if process.starts == 1:
                raise KeyError("nobody thought of this")
            enough.set()

        process = supervised(tmp_path, up)
        await watched(process, enough)
        return process.starts

    assert asyncio.run(run()) == 2
