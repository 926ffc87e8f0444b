"""Models that answer one prompt at a time, each behind a breaker: servers, or a model in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import aiohttp
import httpx

from pipelines.serve.errors import Trouble
from pipelines.serve.rewriter.breaker import Breaker
from rewrite.backends.server import TOO_LONG, ServerBackend
from rewrite.rewriter import Rewriter
from rewrite.settings import Sampling
from rewrite.types import Answer, Prompt

log = logging.getLogger("rewrite-serve")
MOST_BYTES = 1_000_000
"""Of a server's answer; more is no answer to a prompt of ours."""
UNLOAD_SECONDS = 10.0
"""For a server to forget an adapter."""


class Clients(NamedTuple):
    """What asks servers, a third of httpx's time a request.

    No redirects, no cookies, no proxies of the environment: prompts go where the config says.
    """

    kept: aiohttp.ClientSession
    """Over connections that stay open."""
    fresh: aiohttp.ClientSession
    """Over a new one each time."""

    async def close(self) -> None:
        """Ends all connections."""
        await self.kept.close()
        await self.fresh.close()


def open_clients(tls: bool) -> Clients:
    """To be called in the loop that uses them. `tls`: some url is https."""
    ssl = httpx.create_ssl_context(trust_env=False) if tls else True
    # Closed before servers do it: uvicorn, and so vLLM, waits five seconds.
    kept = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0, ssl=ssl)
    fresh = aiohttp.TCPConnector(limit=0, force_close=True, ssl=ssl)
    return Clients(*(_session(connector) for connector in (kept, fresh)))


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=2.0),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
    )


class Endpoint(Protocol):
    """Somewhere a prompt can be answered."""

    name: str
    breaker: Breaker

    def serves(self, model: str) -> bool:
        """Whether it has that model now."""
        ...

    async def answers(self, model: str, prompt: Prompt, sampling: Sampling) -> list[Answer]:
        """As many answers as sampling asks for, or Trouble."""
        ...


class ServerEndpoint:
    """An OpenAI-compatible server."""

    def __init__(self, name: str, clients: Clients, breaker: Breaker, key_variable: str, forgets: bool = False) -> None:
        """`forgets`: it was made to load what it serves, and has it no more when somebody starts it again."""
        self.name, self.breaker, self.url, self._forgets = name, breaker, "", forgets
        self.backends: dict[str, ServerBackend] = {}
        """The models it serves, each with what counts its tokens."""
        self._clients, self._key_variable = clients, key_variable

    def serves(self, model: str) -> bool:
        """Whether it has that model now."""
        return model in self.backends

    async def unload(self, model: str) -> None:
        """Has a vLLM forget an adapter; one that will not is no worse for it."""
        with contextlib.suppress(aiohttp.ClientError, OSError, Trouble):  # OSError: also what takes too long
            async with asyncio.timeout(UNLOAD_SECONDS):
                await self._post(f"{self.url}/unload_lora_adapter", {"lora_name": model})

    async def answers(self, model: str, prompt: Prompt, sampling: Sampling) -> list[Answer]:
        """Answers by POST /chat/completions; a server that gives one however many are asked for is asked for the others
        side by side."""
        found = await self._some(model, prompt, sampling, 0, sampling.answers)
        missing = range(len(found), sampling.answers)
        more = await asyncio.gather(*(self._some(model, prompt, sampling, place, 1) for place in missing))
        return [*found, *(answers[0] for answers in more)][: sampling.answers]

    async def _some(self, model: str, prompt: Prompt, sampling: Sampling, place: int, count: int) -> list[Answer]:
        body = {
            "model": model,
            "messages": prompt,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed + place,
            **({"top_p": sampling.top_p} if sampling.temperature > 0 else {}),
            **({"n": count} if count > 1 else {}),
        }
        try:
            status, data = await self._post(f"{self.url}/chat/completions", body)
        except (aiohttp.ClientError, OSError) as error:
            raise Trouble("unavailable", type(error).__name__) from error
        if status >= 500 or status in (408, 429):
            raise Trouble("unavailable", f"status {status}")
        if status in (400, 413, 422) and TOO_LONG.search(data.decode("utf-8", "replace")):
            raise Trouble("too_long", blame=False)
        if status == 404 and self._forgets:
            self.backends.pop(model, None)
        if status != 200:
            raise Trouble("refused", f"status {status}")
        return read_completion(data, model)

    async def _post(self, url: str, body: Any) -> tuple[int, bytes]:
        """Status and body. Whoever calls sets the time for all of it."""
        try:
            return await self._sent(self._clients.kept, url, body)
        except aiohttp.ServerDisconnectedError:  # it let a connection go just when it was used again
            return await self._sent(self._clients.fresh, url, body)

    async def _sent(self, client: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, bytes]:
        key = os.environ.get(self._key_variable, "").strip()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with client.post(url, json=body, headers=headers, allow_redirects=False) as response:
            found = bytearray()
            async for some in response.content.iter_any():
                found += some
                if len(found) > MOST_BYTES:
                    raise Trouble("garbage", f"more than {MOST_BYTES} bytes")
            return response.status, bytes(found)


def read_completion(data: bytes, model: str) -> list[Answer]:
    """The answers in a response's body, one at least; each is taken to have an equal share of the tokens. Whatever is
    not one is Trouble."""
    try:
        facts = json.loads(data)
        choices = [(each["message"].get("content") or "", each.get("finish_reason")) for each in facts["choices"]]
        tokens = max(0, int((facts.get("usage") or {}).get("completion_tokens") or 0))
        share, over = divmod(tokens, len(choices))
        answered = facts.get("model")
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Trouble("garbage", type(error).__name__) from error
    if not all(isinstance(text, str) for text, _ in choices):
        raise Trouble("garbage", "the answer is no text")
    if isinstance(answered, str) and not answered.startswith(model):  # providers add a date to the name
        raise Trouble("wrong_model")
    return [Answer(text, share + (place < over), ended != "length") for place, (text, ended) in enumerate(choices)]


class LocalEndpoint:
    """A model, or rules, in this process: one batch at a time, made of what came together meanwhile."""

    def __init__(self, name: str, rewriter: Rewriter, model: str, breaker: Breaker, batch: int) -> None:
        self.name, self.breaker = name, breaker
        self._rewriter, self._model, self._batch = rewriter, model, batch
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rewrite")
        self._waiting: list[tuple[Prompt, asyncio.Future[list[Answer]]]] = []
        self._busy = False

    def serves(self, model: str) -> bool:
        """Whether it is that model."""
        return model == self._model

    async def answers(self, model: str, prompt: Prompt, sampling: Sampling) -> list[Answer]:
        """Answers in a batch with others'."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[Answer]] = loop.create_future()
        self._waiting.append((prompt, done))
        if not self._busy:
            self._start(loop, sampling)
        return await done

    def _start(self, loop: asyncio.AbstractEventLoop, sampling: Sampling) -> None:
        self._waiting = [each for each in self._waiting if not each[1].done()]
        count = max(1, self._batch // sampling.answers)
        some, self._waiting = self._waiting[:count], self._waiting[count:]
        self._busy = bool(some)
        if some:
            running = loop.run_in_executor(
                self._pool, self._rewriter.backend.generate, [prompt for prompt, _ in some], sampling
            )
            running.add_done_callback(lambda ended: self._finish(loop, sampling, [done for _, done in some], ended))

    def _finish(
        self,
        loop: asyncio.AbstractEventLoop,
        sampling: Sampling,
        waiting: Sequence[asyncio.Future[list[Answer]]],
        ended: asyncio.Future[list[list[Answer]]],
    ) -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is not None:
            log.error("the model in this process failed", exc_info=error)
        failed = ended.cancelled() or error is not None
        for place, done in enumerate(waiting):
            if done.done():
                continue
            if failed:
                done.set_exception(Trouble("unavailable", "the model in this process failed"))
            else:
                done.set_result(ended.result()[place])
        self._start(loop, sampling)

    def close(self) -> None:
        """Lets the thread go."""
        self._pool.shutdown(wait=False, cancel_futures=True)
