"""vLLM as a child process: start it on the loopback, watch its health, restart it with growing pauses, keep its logs.

One that was never healthy and would fail again in the same way is not restarted; memory may be short for a while.
It is started as a Python module, because the `vllm` command of the CPU build does not start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path

import httpx

from pipelines.serve.rewriter import child_guard
from pipelines.serve.rewriter.settings import ManagedVllm, is_option
from pipelines.serve.rewriter.vllm_failure import Failure, read_failure
from rewrite.backends.vllm_memory import memory_options
from rewrite.errors import RewriteError

KEY_VARIABLE = "TOOLREWRITE_VLLM_KEY"
"""Environment variable with the key that only the gateway and its child know."""
MEMORY_OPTIONS = (
    "--gpu-memory-utilization", "--device-memory-utilization", "--kv-cache-memory-bytes", "--num-gpu-blocks-override",
    "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--decode-context-parallel-size",
    "--prefill-context-parallel-size", "--enable-expert-parallel", "--max-model-len", "--dtype", "--kv-cache-dtype",
    "--quantization", "--quantization-config", "--cpu-offload-gb", "--hf-overrides", "--speculative-config", "--config",
)  # fmt: skip
"""Options of a user that decide about memory, divide the model between GPUs, or change its size."""
SHORT_MEMORY_OPTIONS = ("-tp", "-pp", "-dp", "-dcp", "-pcp", "-ep", "-q", "-sc")
MODEL_NAME = "rewriter"
"""vLLM's name for the base model, or for the full model."""
MAX_LOGS = 5
MAX_PAUSE = 60.0
MEMORY_PAUSE = child_guard.GRACE_SECONDS + 5.0
"""Seconds before a start that was short of memory is repeated: an earlier vLLM, whose gateway was killed, has ended."""
START_SECONDS = 600.0
"""Seconds to become healthy before vLLM is restarted."""
STEADY_SECONDS = 60.0
"""Seconds of health after which earlier failures do not count."""
MAX_MISSED_CHECKS = 5
"""Failed health checks in a row after which vLLM is restarted."""
MAX_SAME_FAILURES = 3
"""Starts in a row with the same error after which a vLLM that was never healthy is not started again."""
log = logging.getLogger("rewrite-serve")


def installed() -> bool:
    """True if vLLM can be imported here."""
    return find_spec("vllm") is not None


def command_line(settings: ManagedVllm, model: Path, lora_rank: int, port: int) -> list[str]:
    """vLLM's options. `lora_rank`: the highest rank of adapters, 0 for none."""
    import torch

    on_cpu = not torch.cuda.is_available()
    options = ["--model", str(model), "--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port)]
    dtype = "float32" if on_cpu and settings.dtype == "auto" else settings.dtype
    options += ["--dtype", dtype, "--enable-prefix-caching", "--disable-uvicorn-access-log"]
    if settings.context:
        options += ["--max-model-len", str(settings.context)]
    if settings.eager:
        options += ["--enforce-eager"]
    if settings.gpu_memory is not None:
        options += ["--gpu-memory-utilization", f"{settings.gpu_memory:g}"]
    elif not any(map(_decides_memory, settings.options)):
        for name, value in memory_options(model, "cpu" if on_cpu else "cuda", dtype, settings.context).items():
            options += [f"--{name.replace('_', '-')}", str(value)]
    if lora_rank:  # two adapters, so that a new one can take over from the old one
        options += ["--enable-lora", "--max-lora-rank", str(lora_rank), "--max-loras", "2", "--max-cpu-loras", "4"]
    return [*options, *settings.options]


def _decides_memory(option: str) -> bool:
    return is_option(option, MEMORY_OPTIONS) or option.startswith(SHORT_MEMORY_OPTIONS)


class VllmProcess:
    """One vLLM at a time. Calls `on_up` with its URL once it is healthy, `on_down` when it ends."""

    def __init__(
        self,
        settings: ManagedVllm,
        model: Path,
        lora_rank: int,
        on_up: Callable[[str], Awaitable[None]],
        on_down: Callable[[], None],
        on_give_up: Callable[[str], None],
    ) -> None:
        """`on_give_up` gets the reason why vLLM cannot start and is not tried again."""
        self._settings, self._model, self._lora_rank = settings, model, lora_rank
        self._on_up, self._on_down, self._on_give_up = on_up, on_down, on_give_up
        self.starts = 0
        self.command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        self._process: asyncio.subprocess.Process | None = None
        self._healthy_since: float | None = None
        self._key = os.environ.setdefault(KEY_VARIABLE, secrets.token_urlsafe(32))

    async def run(self) -> None:
        """Keep vLLM running until cancelled, then end it; returns if it cannot start."""
        pause, was_healthy, causes = 1.0, False, list[str]()
        try:
            while True:
                self.starts += 1
                self._healthy_since = None
                failure = await self._run_safely()
                was_healthy = was_healthy or self._healthy_since is not None
                steady = self._healthy_since is not None and time.monotonic() - self._healthy_since > STEADY_SECONDS
                self._on_down()
                await self._end()
                cause = "memory" if failure.memory else re.sub(r"\d+", "0", failure.cause)
                causes = [*causes, cause][-MAX_SAME_FAILURES:]
                repeated = len(causes) == MAX_SAME_FAILURES and len(set(causes)) == 1
                if not was_healthy and (failure.permanent or repeated):
                    log.error(
                        "vLLM cannot start, and is not tried again: %s; rankings stay raw, vLLM's log is in %s",
                        failure.cause,
                        self._logs,
                    )
                    self._on_give_up(failure.cause)
                    return
                min_pause = MEMORY_PAUSE if failure.memory else 0.0
                pause = 1.0 if steady else min(MAX_PAUSE, max(min_pause, pause * 2))
                log.warning(
                    "vLLM is down: %s; starting it again in %g s, its log is in %s", failure.cause, pause, self._logs
                )
                await asyncio.sleep(pause)
        finally:
            self._on_down()
            await asyncio.shield(self._end())

    async def _run_safely(self) -> Failure:
        """Run vLLM until it ends, and turn errors of starting and watching it into failures."""
        try:
            return await self._run_once()
        except RewriteError as error:  # too little memory
            return Failure(str(error), memory=True)
        except OSError as error:
            permanent = isinstance(error, (PermissionError, FileNotFoundError, NotADirectoryError))
            return Failure(f"it cannot be started ({error})", permanent)
        except Exception as error:  # restart it after any error
            log.exception("watching vLLM failed")
            return Failure(f"it cannot be watched ({type(error).__name__})")

    @property
    def _logs(self) -> Path:
        return Path(self._settings.logs)

    async def _run_once(self) -> Failure:
        """Start vLLM and wait for its end."""
        port = _free_port()
        command = [*self.command, *command_line(self._settings, self._model, self._lora_rank, port)]
        log_file = self._new_log()
        with log_file.open("wb") as output:
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
                return Failure(watching.result())
            return read_failure(log_file, ended.result())
        finally:
            watching.cancel()
            ended.cancel()

    async def _watch(self, root: str) -> str:
        """Check its health until it has to be restarted; returns the reason."""
        deadline, up, missed = time.monotonic() + START_SECONDS, False, 0
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
                if up and missed >= MAX_MISSED_CHECKS:
                    return f"it missed {MAX_MISSED_CHECKS} health checks in a row"
                if not up and time.monotonic() > deadline:
                    return f"it was not healthy within {START_SECONDS:g} s"
                await asyncio.sleep(1.0 if up else 0.25)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()  # then child_guard ends all its children
        try:
            await asyncio.wait_for(process.wait(), child_guard.GRACE_SECONDS + 5.0)
        except TimeoutError:
            process.kill()

    def _environment(self) -> dict[str, str]:
        defaults = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        return {**defaults, **os.environ, "VLLM_API_KEY": self._key}

    def _new_log(self) -> Path:
        self._logs.mkdir(parents=True, exist_ok=True)
        old = sorted(self._logs.glob("vllm-*.log"), key=lambda path: path.stat().st_mtime)
        for path in old[: 1 - MAX_LOGS]:
            path.unlink(missing_ok=True)
        return self._logs / f"vllm-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{self.starts}.log"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
