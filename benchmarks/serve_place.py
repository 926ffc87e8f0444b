"""vLLM, the proxy that notes what it has when, and the gateway before both."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import serve_watch
from serve_load import Child, Gateway

from pipelines.rewriters import Parts, RewriterSettings, find_parts
from rewrite.settings import VllmSettings


@dataclass(frozen=True)
class Place:
    """Everything that runs."""

    parts: Parts
    vllm: int
    """Its port, as those below are."""
    proxy: int
    gateway: int
    at_vllm: Path
    """Where the proxy notes its spans, and below the gateway's retriever."""
    at_retriever: Path


def started(arguments: argparse.Namespace, folder: Path, stack: ExitStack) -> Place:
    """vLLM, the proxy before it, and the gateway before that, all ready."""
    parts = find_parts(RewriterSettings(path=arguments.rewriter, backend=VllmSettings()))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    options = ["--model", str(parts.model), "--served-model-name", "rewriter", "--host", "127.0.0.1"]
    options += ["--port", str(port), "--max-model-len", "1024", "--enforce-eager"]
    options += ["--dtype", "float32" if not _cuda() else "auto"]
    if parts.adapter:
        options += ["--enable-lora", "--max-lora-rank", "64"]
    vllm = Child(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options],
        apart=True,
        VLLM_ALLOW_RUNTIME_LORA_UPDATING="True",
        VLLM_CPU_KVCACHE_SPACE=os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        VLLM_LOGGING_LEVEL="ERROR",
        VLLM_NO_USAGE_STATS="1",
    )
    stack.callback(vllm.end)
    _until(f"http://127.0.0.1:{port}/health")
    at_vllm, at_retriever = folder / "vllm.jsonl", folder / "retriever.jsonl"
    proxy = Child([sys.executable, serve_watch.__file__, "proxy", str(port), str(at_vllm)])
    stack.callback(proxy.end)
    middle = int(proxy.line())
    url = f"http://127.0.0.1:{middle}/v1"
    engine = {"kind": "servers", "urls": [url], "model": "rewriter", "load_adapter": parts.adapter is not None}
    sampling = {"most_tokens": arguments.answer_tokens}
    rewriter = {"path": arguments.rewriter, "engine": engine, "sampling": sampling, "fusion": {"raw": 0.5}}
    config = {"index": arguments.index, "retriever": arguments.retriever, "rewriter": rewriter}
    config |= {"deadline_ms": 600_000, "longest_deadline_ms": 600_000}
    gateway = Gateway(folder, config, at_retriever)
    stack.callback(gateway.end)
    _until(f"http://127.0.0.1:{gateway.port}/readyz", '"rewriter":"ready"')
    return Place(parts, port, middle, gateway.port, at_vllm, at_retriever)


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _until(url: str, text: str = "", seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            got = httpx.get(url, trust_env=False)
            if got.status_code == 200 and text in got.text:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    sys.exit(f"{url} does not come up")
