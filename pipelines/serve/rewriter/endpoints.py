"""Endpoints that answer prompts, each with a circuit breaker: HTTP servers, or a model in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import aiohttp
import httpx

from pipelines.serve.batcher import Batcher
from pipelines.serve.errors import RewriteFailure
from pipelines.serve.rewriter.breaker import Breaker
from rewrite.backends.base import Backend
from rewrite.backends.server import TOO_LONG, ServerBackend
from rewrite.settings import Sampling
from rewrite.types import Answer, Prompt

log = logging.getLogger("rewrite-serve")
MAX_BYTES = 1_000_000
"""Size of a server's response; a larger one cannot be an answer."""
UNLOAD_SECONDS = 10.0
"""Seconds for a server to unload an adapter."""
MAX_PROMPTS = 10_000
"""Prompts that may wait for a model in this process; the dispatcher sends far fewer."""


class HttpClients(NamedTuple):
    """HTTP sessions for model servers; aiohttp needs a third of httpx's time per request.

    No redirects, cookies or environment proxies: prompts go only where the config says.
    """

    pooled: aiohttp.ClientSession
    """Keeps connections open."""
    fresh: aiohttp.ClientSession
    """Opens a new connection for every request."""

    async def close(self) -> None:
        await self.pooled.close()
        await self.fresh.close()


def open_clients(tls: bool) -> HttpClients:
    """Open sessions in the running loop. `tls`: some url is https."""
    ssl = httpx.create_ssl_context(trust_env=False) if tls else True
    # Close idle connections before the server does: uvicorn, and so vLLM, waits five seconds.
    pooled = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0, ssl=ssl)
    fresh = aiohttp.TCPConnector(limit=0, force_close=True, ssl=ssl)
    return HttpClients(*(_session(connector) for connector in (pooled, fresh)))


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=2.0),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
    )


class Endpoint(Protocol):
    """Answers prompts."""

    name: str
    breaker: Breaker

    def serves(self, model: str) -> bool:
        """True if it has that model now."""
        ...

    async def answer(self, model: str, prompt: Prompt, sampling: Sampling) -> list[Answer]:
        """As many answers as `sampling` asks for; raises RewriteFailure."""
        ...


class ServerEndpoint:
    """An OpenAI-compatible server."""

    def __init__(
        self, name: str, clients: HttpClients, breaker: Breaker, key_variable: str, loads_adapter: bool = False
    ) -> None:
        """`loads_adapter`: the gateway loaded its adapter, which is lost when the server restarts."""
        self.name, self.breaker, self.url, self._loads_adapter = name, breaker, "", loads_adapter
        self.backends: dict[str, ServerBackend] = {}
        """The models it serves, with their token counters."""
        self._clients, self._key_variable = clients, key_variable

    def serves(self, model: str) -> bool:
        return model in self.backends

    async def unload(self, model: str) -> None:
        """RewriteRequest vLLM to unload an adapter; a failure does no harm."""
        with contextlib.suppress(aiohttp.ClientError, OSError, RewriteFailure):  # OSError includes a timeout
            async with asyncio.timeout(UNLOAD_SECONDS):
                await self._post(f"{self.url}/unload_lora_adapter", {"lora_name": model})

    async def answer(self, model: str, prompt: Prompt, sampling: Sampling) -> list[Answer]:
        """POST /chat/completions; a server that ignores `n` is asked for the missing answers in parallel."""
        answers = await self._complete(model, prompt, sampling, 0, sampling.answers)
        missing = range(len(answers), sampling.answers)
        more = await asyncio.gather(*(self._complete(model, prompt, sampling, index, 1) for index in missing))
        return [*answers, *(extra[0] for extra in more)][: sampling.answers]

    async def _complete(self, model: str, prompt: Prompt, sampling: Sampling, index: int, count: int) -> list[Answer]:
        body = {
            "model": model,
            "messages": prompt,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed + index,
            **({"top_p": sampling.top_p} if sampling.temperature > 0 else {}),
            **({"n": count} if count > 1 else {}),
        }
        try:
            status, data = await self._post(f"{self.url}/chat/completions", body)
        except (aiohttp.ClientError, OSError) as error:
            raise RewriteFailure("unavailable", type(error).__name__) from error
        if status >= 500 or status in (408, 429):
            raise RewriteFailure("unavailable", f"status {status}")
        if status in (400, 413, 422) and TOO_LONG.search(data.decode("utf-8", "replace")):
            raise RewriteFailure("too_long", blame_model=False)
        if status == 404 and self._loads_adapter:
            self.backends.pop(model, None)
        if status != 200:
            raise RewriteFailure("refused", f"status {status}")
        return read_completion(data, model)

    async def _post(self, url: str, body: Any) -> tuple[int, bytes]:
        """Status and body. The caller sets the timeout."""
        try:
            return await self._send(self._clients.pooled, url, body)
        except aiohttp.ServerDisconnectedError:  # the server closed an idle connection just now
            return await self._send(self._clients.fresh, url, body)

    async def _send(self, client: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, bytes]:
        key = os.environ.get(self._key_variable, "").strip()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with client.post(url, json=body, headers=headers, allow_redirects=False) as response:
            data = bytearray()
            async for chunk in response.content.iter_any():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise RewriteFailure("garbage", f"more than {MAX_BYTES} bytes")
            return response.status, bytes(data)


def read_completion(data: bytes, model: str) -> list[Answer]:
    """The answers in a response's body, at least one, each with an equal share of the tokens; else RewriteFailure."""
    try:
        facts = json.loads(data)
        choices = [(item["message"].get("content") or "", item.get("finish_reason")) for item in facts["choices"]]
        tokens = max(0, int((facts.get("usage") or {}).get("completion_tokens") or 0))
        share, over = divmod(tokens, len(choices))
        answered = facts.get("model")
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RewriteFailure("garbage", type(error).__name__) from error
    if not all(isinstance(text, str) for text, _ in choices):
        raise RewriteFailure("garbage", "the answer is not text")
    if isinstance(answered, str) and not answered.startswith(model):  # providers add a date to the name
        raise RewriteFailure("wrong_model")
    return [Answer(text, share + (index < over), ended != "length") for index, (text, ended) in enumerate(choices)]


class LocalEndpoint:
    """A model or rules in this process."""

    def __init__(self, name: str, backend: Backend, model: str, breaker: Breaker, batch_size: int) -> None:
        self.name, self.breaker, self._model = name, breaker, model

        def generate(sampling: Sampling, prompts: Sequence[Prompt]) -> list[list[Answer]]:
            return backend.generate(prompts, sampling)

        self._batcher = Batcher(generate, threads=1, batch_size=batch_size, max_waiting=MAX_PROMPTS)

    def serves(self, model: str) -> bool:
        return model == self._model

    async def answer(self, model: str, prompt: Prompt, sampling: Sampling) -> list[Answer]:
        try:
            [answers] = await self._batcher.run(sampling, [prompt])
        except Exception as error:
            log.exception("the model in this process failed")
            raise RewriteFailure("unavailable", "the model in this process failed") from error
        return answers

    def close(self) -> None:
        self._batcher.close()
