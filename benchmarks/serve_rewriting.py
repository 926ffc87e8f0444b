"""The gateway with a rewriter against the same vLLM asked directly with the same prompts.

A rewrite's peer is vLLM alone. A search's is vLLM and then the retriever, called in this process with the utterance and
the lines that vLLM wrote: what somebody would do who has both and no gateway.

vLLM's own time differs from one answer to the next by more than a gateway may cost. So both ask it through a proxy that
notes when vLLM had which prompt, the retrievers' work is noted as well, and what is left of every request is told.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import serve_watch
from serve_clients import After, Figures, Request, load
from serve_load import NUMBERS, SAID, tell
from serve_own import Own
from serve_place import Place, started
from serve_watch import Span

from pipelines.context import make_context
from pipelines.rewriters import Parts
from retrievers.index import Index
from rewrite.backends.server import ServerBackend
from rewrite.settings import ServerSettings
from rewrite.types import Answer, Ask

Found = tuple[dict[str, dict[str, Figures]], dict[str, Any]]
"""Figures by what was measured, and what was the askers' own of them."""


def rewriting(arguments: argparse.Namespace, folder: Path) -> Found:
    """Rewrites alone, and searches with them, at 1 and at 8 clients."""
    with ExitStack() as stack:
        place = started(arguments, folder, stack)
        return _measured(arguments, place)


def _measured(arguments: argparse.Namespace, place: Place) -> Found:
    model = ServerBackend(
        ServerSettings(f"http://127.0.0.1:{place.proxy}/v1", "rewriter"), adapter=place.parts.adapter
    ).model
    searched_here: list[Span] = []
    after = _searching(arguments, place.parts, searched_here)

    def direct(texts: list[str]) -> Iterator[Request]:
        for text in texts:
            messages = place.parts.template.render(Ask(text))
            body = {"model": model, "messages": messages, "max_tokens": arguments.answer_tokens}
            yield "POST", "/v1/chat/completions", {**body, "temperature": 0.0, "seed": 0}

    found: dict[str, dict[str, Figures]] = {}
    own: dict[str, dict[str, Own]] = {}
    before = _own_latency(place.vllm)
    for clients, path in itertools.product(arguments.rewriting_clients, ("/v1/rewrite", "/v1/search")):
        name = f"{path}, {clients} clients"
        peers = {"gateway": Figures(), "vLLM": Figures()}
        left = {"gateway": Own(), "vLLM": Own()}
        most = max(4, arguments.rewrites // (4 if clients == 1 else 1))
        for round_ in range(arguments.rounds):
            # The same words for both, so that answers are as long, behind numbers of their own: no prefix is known.
            said = random.sample(SAID, most)
            asked = [("POST", path, {"utterance": text}) for text in numbered(said)]
            turns = [("gateway", place.gateway, iter(asked)), ("vLLM", place.proxy, direct(numbered(said)))]
            for peer, where, requests in turns if round_ % 2 else turns[::-1]:
                then = after if peer == "vLLM" and path == "/v1/search" else None
                figures = load(where, clients, 600, requests, most=most, after=then)
                peers[peer].add(figures)
                retrieved = serve_watch.read(place.at_retriever) if peer == "gateway" else searched_here
                left[peer].add(figures.asked, serve_watch.read(place.at_vllm), retrieved)
        found[name], own[name] = peers, left
        tell(name, peers)
        _tell_own(left)
        if clients == 1:  # one after the other, so that places belong together
            both = zip(peers["gateway"].latencies, peers["vLLM"].latencies, strict=True)
            more = statistics.median(ours - theirs for ours, theirs in both)
            print(f"{'':24} text by text {1000 * more:+8.1f} ms p50", flush=True)
    summary: dict[str, Any] = {
        name: {peer: each.summary() for peer, each in left.items()} for name, left in own.items()
    }
    return found, summary | {"check": _checked(place, before)}


def _searching(arguments: argparse.Namespace, parts: Parts, spans: list[Span]) -> After:
    """What the asker of bare vLLM does for a search: the retriever in this process, its work noted."""
    retriever = Index(Path(arguments.index), make_context("cpu")).retriever(arguments.retriever)
    retriever.search(["weather"], 10)

    def search(texts: list[str]) -> None:
        began = time.monotonic()
        retriever.search(texts, 10)
        spans.append(Span(began, time.monotonic(), texts))

    async def searched(body: Any, answer: bytes) -> None:
        choice = json.loads(answer)["choices"][0]
        said = Answer(choice["message"]["content"] or "", 0, choice["finish_reason"] == "stop")
        await asyncio.to_thread(search, [body["messages"][-1]["content"], *parts.template.parse(said).lines])

    return searched


def _tell_own(left: dict[str, Own]) -> None:
    for peer, own in left.items():
        shares = "  ".join(f"{own.percentile(share):8.2f}" for share in (0.5, 0.95))
        where = f"  rewrite stage less vLLM {statistics.median(own.in_rewrite):.2f} ms" if own.in_rewrite else ""
        missing = f"  {own.not_answered} not answered" if own.not_answered else ""
        print(f"{'':24} {peer:10} its own  {shares} ms p50, p95 of {len(own.total)}{where}{missing}", flush=True)


def _own_latency(port: int) -> tuple[float, int]:
    """Seconds that vLLM says its requests took, and how many there were."""
    lines = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text.splitlines()
    total, count = (
        sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:e2e_request_latency_seconds_{kind}"))
        for kind in ("sum", "count")
    )
    return total, int(count)


def _checked(place: Place, before: tuple[float, int]) -> dict[str, float]:
    """What the proxy saw of vLLM against what vLLM says itself, so that nothing of ours is called vLLM's."""
    spans = serve_watch.read(place.at_vllm)
    total, count = (now - then for now, then in zip(_own_latency(place.vllm), before, strict=True))
    seen, told = 1000 * sum(span.ended - span.began for span in spans) / len(spans), 1000 * total / count
    print(f"{'':24} vLLM a request: {seen:.1f} ms at the proxy ({len(spans)}), {told:.1f} ms as it says ({count})")
    return {"at_proxy_ms": round(seen, 2), "by_vllm_ms": round(told, 2), "requests": len(spans)}


def numbered(texts: list[str]) -> list[str]:
    """Texts that nobody has seen."""
    return [f"{next(NUMBERS):08} {text}" for text in texts]
