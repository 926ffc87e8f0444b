"""The gateway with a rewriter against the same vLLM asked directly with the same prompts.

A rewrite's peer is vLLM alone. A search's is vLLM and then the retriever, called in this process with the utterance and
the lines that vLLM wrote: what somebody would do who has both and no gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from serve_clients import Figures, Request, load
from serve_load import NUMBERS, SAID, Child, Gateway, tell

from pipelines.index import make_context
from pipelines.rewriters import RewriterSettings, find_parts
from retrievers.index import Index
from rewrite.backends.server import ServerBackend
from rewrite.settings import ServerSettings, VllmSettings
from rewrite.types import Answer, Ask


def rewriting(arguments: argparse.Namespace, folder: Path) -> dict[str, dict[str, Figures]]:
    """Rewrites alone, and searches with them, at 1 and at 8 clients."""
    parts = find_parts(RewriterSettings(path=arguments.rewriter, backend=VllmSettings()))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    options = [
        "--model",
        str(parts.model),
        "--served-model-name",
        "rewriter",
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
    ]
    options += ["--max-model-len", "1024", "--enforce-eager", "--dtype", "float32" if not _cuda() else "auto"]
    if parts.adapter:
        options += ["--enable-lora", "--max-lora-rank", "64"]
    vllm = Child(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options],
        VLLM_ALLOW_RUNTIME_LORA_UPDATING="True",
        VLLM_CPU_KVCACHE_SPACE=os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        VLLM_LOGGING_LEVEL="ERROR",
        VLLM_NO_USAGE_STATS="1",
    )
    url = f"http://127.0.0.1:{port}/v1"
    _until(f"http://127.0.0.1:{port}/health")
    model = ServerBackend(ServerSettings(url, "rewriter"), adapter=parts.adapter).model
    engine = {"kind": "servers", "urls": [url], "model": "rewriter", "load_adapter": parts.adapter is not None}
    rewriter: dict[str, Any] = {
        "path": arguments.rewriter,
        "engine": engine,
        "sampling": {"most_tokens": arguments.answer_tokens},
    }
    rewriter["fusion"] = {"raw": 0.5}
    config = {"index": arguments.index, "retriever": arguments.retriever, "rewriter": rewriter}
    config |= {"deadline_ms": 60_000, "longest_deadline_ms": 60_000}
    gateway = Gateway(folder, config)
    _until(f"http://127.0.0.1:{gateway.port}/readyz", '"rewriter":"ready"')

    def direct(texts: list[str]) -> Iterator[Request]:
        for text in texts:
            body = {"model": model, "messages": parts.template.render(Ask(text)), "max_tokens": arguments.answer_tokens}
            yield "POST", "/v1/chat/completions", {**body, "temperature": 0.0, "seed": 0}

    retriever = Index(Path(arguments.index), make_context("cpu")).retriever(arguments.retriever)
    retriever.search(["weather"], 10)

    async def searched(body: Any, answer: bytes) -> None:
        choice = json.loads(answer)["choices"][0]
        said = Answer(choice["message"]["content"] or "", 0, choice["finish_reason"] == "stop")
        texts = [body["messages"][-1]["content"], *parts.template.parse(said).lines]
        await asyncio.to_thread(retriever.search, texts, 10)

    found: dict[str, dict[str, Figures]] = {}
    for clients, path in itertools.product((1, 8), ("/v1/rewrite", "/v1/search")):
        peers = {"gateway": Figures(), "vLLM": Figures()}
        most = max(4, arguments.rewrites // (4 if clients == 1 else 1))
        for round_ in range(arguments.rounds):
            # The same words for both, so that answers are as long, behind numbers of their own: no prefix is known.
            said = random.sample(SAID, most)
            asked = [("POST", path, {"utterance": text}) for text in numbered(said)]
            turns = [("gateway", gateway.port, iter(asked)), ("vLLM", port, direct(numbered(said)))]
            for peer, where, requests in turns if round_ % 2 else turns[::-1]:
                after = searched if peer == "vLLM" and path == "/v1/search" else None
                peers[peer].add(load(where, clients, 600, requests, most=most, after=after))
        found[f"{path}, {clients} clients"] = peers
        tell(f"{path}, {clients} clients", peers)
        if clients == 1:  # one after the other, so that places belong together
            both = zip(peers["gateway"].latencies, peers["vLLM"].latencies, strict=True)
            more = statistics.median(ours - theirs for ours, theirs in both)
            print(f"{'':24} text by text {1000 * more:+8.1f} ms p50", flush=True)
    gateway_figures = httpx.get(f"http://127.0.0.1:{gateway.port}/metrics", trust_env=False).text
    for stage in ("raw", "rewrite", "lists"):
        total, count = (
            float(line.split()[1])
            for kind in ("sum", "count")
            for line in gateway_figures.splitlines()
            if line.startswith(f'toolrewrite_stage_seconds_{kind}{{stage="{stage}"}}')
        )
        print(f"{'':24} {stage:10} {1000 * total / count:8.1f} ms a request")
    gateway.end()
    vllm.end()
    return found


def numbered(texts: list[str]) -> list[str]:
    """Texts that nobody has seen."""
    return [f"{next(NUMBERS):08} {text}" for text in texts]


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
