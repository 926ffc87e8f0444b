"""Restarts of the vLLM process, with a small HTTP server in its place."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pipelines.serve.rewriter import child_guard, vllm_process
from pipelines.serve.rewriter.settings import ManagedVllm
from pipelines.serve.rewriter.vllm_failure import Failure
from pipelines.serve.rewriter.vllm_process import KEY_VARIABLE, VllmProcess, command_line
from retrievers.errors import BadInput
from rewrite.backends import vllm_memory
from rewrite.backends.vllm_memory import GIB, DeviceMemory

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


def supervised(
    folder: Path,
    up: Callable[[str], Awaitable[None]],
    code: str = CHILD,
    give_up: Callable[[str], None] = lambda _: None,
) -> VllmProcess:
    """A supervisor whose child does as the file `times` says: seconds to load, and to live from then on."""
    made = VllmProcess(ManagedVllm(logs=str(folder / "logs")), folder / "times", 0, up, lambda: None, give_up)
    made.command = [sys.executable, "-c", code]
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
    pauses = [text.split("again in ")[1].split()[0] for text in caplog.messages if "again in " in text]
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


async def never_up(url: str) -> None:
    raise AssertionError("it never answers")


@pytest.mark.parametrize(
    ("code", "starts", "cause"),
    [
        ("raise ValueError('Available memory on node 0 is less than desired')", 3, "ValueError: Available memory on"),
        ("import sys; print('api_server.py: error: unrecognized arguments: --x'); sys.exit(2)", 1, "unrecognized arg"),
        ("import os; raise RuntimeError(f'driver {os.getpid()}')", 3, "RuntimeError: driver"),
        ("raise ValueError('no such architecture')", 1, "ValueError: no such architecture"),
        ("import sys; sys.exit(7)", 3, "it ended with code 7"),
    ],
)
def test_one_that_would_fail_again_is_not_started_for_ever(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: str,
    starts: int,
    cause: str,
) -> None:
    monkeypatch.setattr(vllm_process, "MAX_PAUSE", 0.01)
    causes: list[str] = []
    process = supervised(tmp_path, never_up, code, causes.append)
    asyncio.run(asyncio.wait_for(process.run(), 90))
    assert process.starts == starts
    assert [text.startswith(cause) for text in causes] == [True]
    [last] = [message for message in caplog.messages if "is not tried again" in message]
    assert cause in last


def test_too_little_memory_is_known_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language_model: Path
) -> None:
    memory = DeviceMemory("cpu", 2 * GIB, GIB)
    monkeypatch.setattr(vllm_memory, "read_memory", lambda _: memory)
    monkeypatch.setattr(vllm_process, "MAX_PAUSE", 0.01)
    causes: list[str] = []
    settings = ManagedVllm(logs=str(tmp_path / "logs"))
    process = VllmProcess(settings, language_model, 0, never_up, lambda: None, causes.append)
    asyncio.run(process.run())
    assert "and 1.0 GiB are free; set a smaller `context`" in causes[0]
    assert process.starts == 3
    assert not (tmp_path / "logs").exists()


def test_short_of_memory_for_a_while_then_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, language_model: Path
) -> None:
    """The vLLM of a killed gateway still has its memory at the first start, and some of it at the second."""
    monkeypatch.setattr(vllm_process, "MEMORY_PAUSE", 0.2)
    monkeypatch.setattr(vllm_process, "MAX_PAUSE", 0.3)
    free = iter([GIB])
    monkeypatch.setattr(vllm_memory, "read_memory", lambda _: DeviceMemory("cpu", 24 * GIB, next(free, 20 * GIB)))
    marker = tmp_path / "started"
    code = f"""
from pathlib import Path
marker = Path({str(marker)!r})
if not marker.exists():
    marker.touch()
    raise MemoryError
{CHILD.replace('Path(sys.argv[at("--model") + 1]).read_text().split()', "(0, 60)")}"""
    causes: list[str] = []

    async def run() -> int:
        enough = asyncio.Event()

        async def up(url: str) -> None:
            enough.set()

        settings = ManagedVllm(logs=str(tmp_path / "logs"))
        process = VllmProcess(settings, language_model, 0, up, lambda: None, causes.append)
        process.command = [sys.executable, "-c", code]
        await watched(process, enough)
        return process.starts

    with caplog.at_level(logging.WARNING, "rewrite-serve"):
        assert asyncio.run(run()) == 3
    assert causes == []
    assert "vLLM is down: vLLM needs" in caplog.text
    assert "vLLM is down: MemoryError" in caplog.text


def test_the_pause_outlasts_a_vllm_that_is_being_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(vllm_process.asyncio, "sleep", sleep)
    monkeypatch.setattr(VllmProcess, "_run_once", _short_of_memory)
    asyncio.run(supervised(tmp_path, never_up).run())
    assert pauses == [child_guard.GRACE_SECONDS + 5, 2 * (child_guard.GRACE_SECONDS + 5)]


async def _short_of_memory(_: VllmProcess) -> Failure:
    return Failure("it was killed", memory=True)


def test_an_error_without_a_number_or_a_file_names_its_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: VllmProcess) -> Failure:
        raise PermissionError("no right to start processes")

    monkeypatch.setattr(VllmProcess, "_run_once", fail)
    causes: list[str] = []
    asyncio.run(supervised(tmp_path, never_up, give_up=causes.append).run())
    assert causes == ["it cannot be started (no right to start processes)"]


def test_memory_options_of_the_user_come_first(language_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_memory, "read_memory", lambda _: DeviceMemory("cpu", 24 * GIB, 20 * GIB))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    def options(settings: ManagedVllm) -> str:
        return f"{' '.join(command_line(settings, language_model, 0, 80))} "

    assert "--kv-cache-memory-bytes 754974720 " in options(ManagedVllm(context=1024))
    assert "--gpu-memory-utilization 0.5" in options(ManagedVllm(gpu_memory=0.5))
    assert "kv-cache" not in options(ManagedVllm(gpu_memory=0.5))
    assert "kv-cache" not in options(ManagedVllm(options=("--gpu-memory-utilization=0.3",)))
    for option in (
        "--max-model-len=2048", "--max_model_len=2048", "--max-model=2048", "--quantization=awq", "-q=awq", "-tp=2",
        "--dtype=bfloat16", "--hf_overrides.max_position_embeddings=512", "--gpu_memory_utilization=0.3",
    ):  # fmt: skip
        assert "kv-cache" not in options(ManagedVllm(options=(option,))), option
        assert "kv-cache" not in options(ManagedVllm(options=tuple(option.split("=")))), option
    for option in ("--max-num-seqs=8", "--seed=1", "--enable-log-requests"):
        assert "kv-cache" in options(ManagedVllm(options=(option,))), option
    half = options(ManagedVllm(context=1024, dtype="bfloat16"))
    assert "--kv-cache-memory-bytes 377487360 " in half


def test_one_that_was_up_is_started_again_whatever_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM that ran before fits; memory that its predecessor still holds is freed soon."""
    monkeypatch.setattr(vllm_process, "MAX_PAUSE", 0.05)
    (tmp_path / "times").write_text("0 0.01")
    code = f"""
from pathlib import Path
import sys
times = Path(sys.argv[sys.argv.index("--model") + 1])
if times.read_text() == "broken":
    raise ValueError("not enough memory")
{CHILD}"""

    async def run() -> int:
        enough = asyncio.Event()

        async def up(url: str) -> None:
            (tmp_path / "times").write_text("broken")
            if process.starts > 1:
                enough.set()

        process = supervised(tmp_path, up, code)

        async def mend() -> None:
            while process.starts < 5:
                await asyncio.sleep(0.02)
            (tmp_path / "times").write_text("0 60")

        mending = asyncio.create_task(mend())
        await watched(process, enough)
        await mending
        return process.starts

    assert asyncio.run(run()) >= 5


@pytest.mark.parametrize("option", ["--port=1", "--trust-remote-code", "--trust_remote_code", "--trust", "--api_key=x"])
def test_options_that_the_server_sets_are_refused_in_any_spelling(option: str) -> None:
    with pytest.raises(BadInput, match="the server itself sets --"):
        ManagedVllm(options=(option,))
