"""vLLM as a child process: started on the loopback, watched, started again with growing pauses, its output kept.

It is started as a Python module, since the `vllm` command of the CPU build does not start; with CUDA it is the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path

import httpx

from pipelines.serve.rewriter import child_guard
from pipelines.serve.rewriter.settings import ManagedVllm

KEY_VARIABLE = "TOOLREWRITE_VLLM_KEY"
"""Where the gateway keeps the key that only it and its child know."""
SERVED = "rewriter"
"""The name of the base model, or of the whole one."""
KEPT_LOGS = 5
LONGEST_PAUSE = 60.0
STEADY = 60.0
"""Seconds of health after which earlier failures are forgotten."""
MISSED = 5
"""Health checks missed in a row before a process that is up counts as hung."""
log = logging.getLogger("rewrite-serve")


def installed() -> bool:
    """Whether vLLM can be started here at all."""
    return find_spec("vllm") is not None


def arguments(settings: ManagedVllm, model: Path, rank: int, port: int, on_cpu: bool) -> list[str]:
    """vLLM's command line. `rank`: the room to make for adapters, 0 for none."""
    dtype = "float32" if settings.dtype == "auto" and on_cpu else settings.dtype
    found = ["--model", str(model), "--served-model-name", SERVED, "--host", "127.0.0.1", "--port", str(port)]
    found += ["--dtype", dtype, "--enable-prefix-caching", "--disable-uvicorn-access-log"]
    if settings.context:
        found += ["--max-model-len", str(settings.context)]
    if settings.eager:
        found += ["--enforce-eager"]
    if not on_cpu:
        found += ["--gpu-memory-utilization", f"{settings.memory:g}"]
    if rank:  # two at a time, so that one takes over from the other
        found += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "2", "--max-cpu-loras", "4"]
    return [*found, *settings.options]


class VllmProcess:
    """One vLLM at a time. `on_up` is called with its URL when it is healthy, `on_down` when it is not any more."""

    def __init__(
        self,
        settings: ManagedVllm,
        model: Path,
        rank: int,
        on_up: Callable[[str], Awaitable[None]],
        on_down: Callable[[], None],
        on_cpu: bool = False,
    ) -> None:
        self._settings, self._model, self._rank, self._on_cpu = settings, model, rank, on_cpu
        self._on_up, self._on_down = on_up, on_down
        self.starts = 0
        self.command: list[str] = []
        """What is run; a test may put something quicker here."""
        self._process: asyncio.subprocess.Process | None = None
        self._healthy_since: float | None = None
        self._key = os.environ.setdefault(KEY_VARIABLE, secrets.token_urlsafe(32))

    async def run(self) -> None:
        """Keeps it running until cancelled, and then ends it."""
        pause = 1.0
        try:
            while True:
                self.starts += 1
                self._healthy_since = None
                try:
                    told = await self._once()
                except OSError as error:
                    told = f"it cannot be started ({error.strerror})"
                except Exception as error:  # whatever it was, there will be a rewriter again
                    log.exception("watching vLLM failed")
                    told = f"it cannot be watched ({type(error).__name__})"
                steady = self._healthy_since is not None and time.monotonic() - self._healthy_since > STEADY
                self._on_down()
                await self._end()
                pause = 1.0 if steady else min(LONGEST_PAUSE, pause * 2)
                log.warning("vLLM is down: %s; starting it again in %g s, its log is in %s", told, pause, self._logs)
                await asyncio.sleep(pause)
        finally:
            self._on_down()
            await asyncio.shield(self._end())

    @property
    def _logs(self) -> Path:
        return Path(self._settings.logs)

    async def _once(self) -> str:
        """From start to end; says how it ended."""
        port = self._settings.port or _free_port()
        command = self.command or [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command = [*command, *arguments(self._settings, self._model, self._rank, port, self._on_cpu)]
        with self._new_log().open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                child_guard.__file__,
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self._environment(),
            )
        ended = asyncio.create_task(self._process.wait())
        watching = asyncio.create_task(self._watch(f"http://127.0.0.1:{port}"))
        try:
            await asyncio.wait((ended, watching), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                return watching.result()
            return f"it ended with code {ended.result()}"
        finally:
            watching.cancel()
            ended.cancel()

    async def _watch(self, root: str) -> str:
        """Returns, with the reason, when there is no hope left that it answers."""
        deadline, up, missed = time.monotonic() + self._settings.start_seconds, False, 0
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
            while True:
                try:
                    healthy = (await client.get(f"{root}/health")).status_code == 200
                except httpx.HTTPError:
                    healthy = False
                missed = 0 if healthy else missed + 1
                if healthy and not up:
                    await self._on_up(f"{root}/v1")
                    up, self._healthy_since = True, time.monotonic()
                if up and missed >= MISSED:
                    return f"it missed {MISSED} health checks in a row"
                if not up and time.monotonic() > deadline:
                    return f"it was not healthy within {self._settings.start_seconds:g} s"
                await asyncio.sleep(1.0 if up else 0.25)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()  # child_guard hears it, and ends everything
        try:
            await asyncio.wait_for(process.wait(), child_guard.PATIENCE + 5.0)
        except TimeoutError:
            process.kill()

    def _environment(self) -> dict[str, str]:
        named = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        return {**named, **os.environ, "VLLM_API_KEY": self._key}

    def _new_log(self) -> Path:
        self._logs.mkdir(parents=True, exist_ok=True)
        old = sorted(self._logs.glob("vllm-*.log"), key=lambda path: path.stat().st_mtime)
        for path in old[: 1 - KEPT_LOGS]:
            path.unlink(missing_ok=True)
        return self._logs / f"vllm-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{self.starts}.log"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
