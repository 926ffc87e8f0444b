"""Compare the gateway with a rewriter with the same vLLM called directly with the same prompts.

A rewrite's peer is vLLM alone. A search's peer is vLLM and then the retriever, called in this process with the
utterance and the lines that vLLM wrote: what a caller does who has both and no gateway.

vLLM's own time varies by more than a gateway may cost. So both call it through a proxy that notes when vLLM had which
prompt, the retrievers' work is noted as well, and the rest of every request is the caller's own time.
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import serve_watch
from http_load import (
    NUMBERS,
    SAMPLE_QUERIES,
    After,
    ChildProcess,
    Exchange,
    GatewayProcess,
    LoadFigures,
    Request,
    load,
    percentile,
    print_peers,
)
from serve_watch import Span, remainder

from pipelines.context import make_context
from pipelines.rewriters import RewriterParts, RewriterSettings, find_parts
from retrievers.index import Index
from rewrite.backends.server import ServerBackend
from rewrite.settings import ServerSettings, VllmSettings
from rewrite.types import Answer, RewriteRequest


@dataclass
class OwnTime:
    """Milliseconds per request that neither vLLM nor the retriever had."""

    total: list[float] = field(default_factory=list)
    in_rewrite: list[float] = field(default_factory=list)
    """The gateway's stage `rewrite` less vLLM's time."""
    not_answered: int = 0

    def add(self, exchanges: Iterable[Exchange], vllm: Sequence[Span], retriever: Sequence[Span]) -> None:
        """Add a round. Spans belong to a request by its utterance, which no other request has."""
        for exchange in exchanges:
            utterance, lines, stages = _facts(exchange)
            answering = [span for span in vllm if any(utterance in text for text in span.texts)]
            if not answering:
                self.not_answered += 1
                continue
            texts = {utterance, *lines}
            searching = [span for span in retriever if not texts.isdisjoint(span.texts)]
            self.total.append(1000 * remainder(exchange.began, exchange.ended, [*answering, *searching]))
            if "rewrite" in stages:
                self.in_rewrite.append(stages["rewrite"] - 1000 * (answering[0].ended - answering[0].began))

    def summary(self) -> dict[str, float]:
        """For the JSON."""
        return {
            "requests": len(self.total),
            "not_answered": self.not_answered,
            "p50_ms": round(percentile(self.total, 0.5), 2),
            "p95_ms": round(percentile(self.total, 0.95), 2),
            **({"in_rewrite_p50_ms": round(statistics.median(self.in_rewrite), 2)} if self.in_rewrite else {}),
        }


def _facts(exchange: Exchange) -> tuple[str, list[str], dict[str, float]]:
    """Utterance, lines of the rewrite, and the gateway's stages; bare vLLM has no stages."""
    if "messages" in exchange.body:
        return exchange.body["messages"][-1]["content"], [], {}
    answer = json.loads(exchange.answer)
    [result] = answer.get("results", [{}])
    lines = (result.get("rewrite") or {}).get("lines", [])
    return exchange.body["utterance"], lines, answer.get("timings_ms", {})


@dataclass(frozen=True)
class Setup:
    """Running vLLM, proxy and gateway: their ports, and the files of spans."""

    parts: RewriterParts
    vllm: int
    proxy: int
    gateway: int
    vllm_spans: Path
    retriever_spans: Path


def start(options: argparse.Namespace, folder: Path, stack: ExitStack) -> Setup:
    """Start vLLM, the proxy in front of it, and the gateway in front of that."""
    import torch

    parts = find_parts(RewriterSettings(path=options.rewriter, backend=VllmSettings()))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    flags = ["--model", str(parts.model), "--served-model-name", "rewriter", "--host", "127.0.0.1", "--port", str(port)]
    flags += ["--max-model-len", "1024", "--enforce-eager"]
    flags += ["--dtype", "auto" if torch.cuda.is_available() else "float32"]
    if parts.adapter:
        flags += ["--enable-lora", "--max-lora-rank", "64"]
    vllm = ChildProcess(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags],
        new_session=True,
        VLLM_ALLOW_RUNTIME_LORA_UPDATING="True",
        VLLM_CPU_KVCACHE_SPACE=os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        VLLM_LOGGING_LEVEL="ERROR",
        VLLM_NO_USAGE_STATS="1",
    )
    stack.callback(vllm.end)
    wait_for(f"http://127.0.0.1:{port}/health")
    vllm_spans, retriever_spans = folder / "vllm.jsonl", folder / "retriever.jsonl"
    proxy = ChildProcess([sys.executable, serve_watch.__file__, "proxy", str(port), str(vllm_spans)])
    stack.callback(proxy.end)
    proxy_port = int(proxy.read_line())
    url = f"http://127.0.0.1:{proxy_port}/v1"
    engine = {"kind": "servers", "urls": [url], "model": "rewriter", "load_adapter": parts.adapter is not None}
    sampling = {"max_tokens": options.answer_tokens}
    rewriter = {"path": options.rewriter, "backend": engine, "sampling": sampling, "fusion": {"raw": 0.5}}
    config = {"index": options.index, "retriever": options.retriever, "rewriter": rewriter}
    config |= {"deadline_ms": 600_000, "max_deadline_ms": 600_000}
    gateway = GatewayProcess(folder, config, retriever_spans)
    stack.callback(gateway.end)
    wait_for(f"http://127.0.0.1:{gateway.port}/readyz", '"rewriter":"ready"')
    return Setup(parts, port, proxy_port, gateway.port, vllm_spans, retriever_spans)


def wait_for(url: str, text: str = "", seconds: float = 600) -> None:
    """Wait until a URL answers 200 with this text."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            response = httpx.get(url, trust_env=False)
            if response.status_code == 200 and text in response.text:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    sys.exit(f"{url} does not come up")


def measure_rewriting(
    options: argparse.Namespace, folder: Path
) -> tuple[dict[str, dict[str, LoadFigures]], dict[str, Any]]:
    """Measure rewrites alone, and searches with them; returns the figures and the callers' own times."""
    with ExitStack() as stack:
        setup = start(options, folder, stack)
        server = ServerSettings(f"http://127.0.0.1:{setup.proxy}/v1", "rewriter")
        model = ServerBackend(server, adapter=setup.parts.adapter).model
        spans: list[Span] = []
        after = _searching(options, setup.parts, spans)
        results: dict[str, dict[str, LoadFigures]] = {}
        own: dict[str, Any] = {}
        before = _vllm_latency(setup.vllm)
        for clients, path in itertools.product(options.rewriting_clients, ("/v1/rewrite", "/v1/search")):
            name, count = f"{path}, {clients} clients", max(4, options.rewrites // (4 if clients == 1 else 1))
            peers = {"gateway": LoadFigures(), "vLLM": LoadFigures()}
            times = {"gateway": OwnTime(), "vLLM": OwnTime()}
            for number in range(options.rounds):
                # The same words for both, so that answers are as long, after new numbers: no prefix is cached.
                texts = random.sample(SAMPLE_QUERIES, count)
                through = iter([("POST", path, {"utterance": text}) for text in _numbered(texts)])
                direct = _chat_requests(_numbered(texts), setup.parts, model, options.answer_tokens)
                turns = [("gateway", setup.gateway, through), ("vLLM", setup.proxy, direct)]
                for peer, port, requests in turns if number % 2 else turns[::-1]:
                    then = after if peer == "vLLM" and path == "/v1/search" else None
                    figures = load(port, clients, 600, requests, count, then)
                    peers[peer].add(figures)
                    retrieving = serve_watch.read(setup.retriever_spans) if peer == "gateway" else spans
                    times[peer].add(figures.exchanges, serve_watch.read(setup.vllm_spans), retrieving)
            results[name], own[name] = peers, {peer: time.summary() for peer, time in times.items()}
            print_peers(name, peers)
            print(f"{'':24} own time: {own[name]}", flush=True)
        own["check"] = _check_proxy(setup, before)
    return results, own


def _chat_requests(texts: list[str], parts: RewriterParts, model: str, max_tokens: int) -> Iterator[Request]:
    for text in texts:
        body = {"model": model, "messages": parts.template.render(RewriteRequest(text)), "max_tokens": max_tokens}
        yield "POST", "/v1/chat/completions", {**body, "temperature": 0.0, "seed": 0}


def _searching(options: argparse.Namespace, parts: RewriterParts, spans: list[Span]) -> After:
    """Search for vLLM's lines in this process, noting the working time."""
    retriever = Index(Path(options.index), make_context("cpu")).retriever(options.retriever)
    retriever.search(["weather"], 10)

    def search(texts: list[str]) -> None:
        began = time.monotonic()
        retriever.search(texts, 10)
        spans.append(Span(began, time.monotonic(), texts))

    async def after(body: Any, answer: bytes) -> None:
        choice = json.loads(answer)["choices"][0]
        written = Answer(choice["message"]["content"] or "", 0, choice["finish_reason"] == "stop")
        await asyncio.to_thread(search, [body["messages"][-1]["content"], *parts.template.parse(written).lines])

    return after


def _vllm_latency(port: int) -> tuple[float, int]:
    """Total seconds and number of requests by vLLM's own metrics."""
    lines = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text.splitlines()
    total, count = (
        sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:e2e_request_latency_seconds_{kind}"))
        for kind in ("sum", "count")
    )
    return total, int(count)


def _check_proxy(setup: Setup, before: tuple[float, int]) -> dict[str, float]:
    """Compare the proxy's times with vLLM's own, so that nothing of ours counts as vLLM's."""
    spans = serve_watch.read(setup.vllm_spans)
    total, count = (now - then for now, then in zip(_vllm_latency(setup.vllm), before, strict=True))
    at_proxy = 1000 * sum(span.ended - span.began for span in spans) / len(spans)
    facts = {"at_proxy_ms": round(at_proxy, 2), "by_vllm_ms": round(1000 * total / count, 2), "requests": len(spans)}
    print(f"{'':24} vLLM per request: {facts}")
    return facts


def _numbered(texts: list[str]) -> list[str]:
    return [f"{next(NUMBERS):08} {text}" for text in texts]
