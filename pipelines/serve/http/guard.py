"""Stands before every route: who is calling, how much of it, and whether there is room. Nothing is parsed before."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pipelines.serve.errors import Refusal, overloaded
from pipelines.serve.keys import Caller, Gate
from pipelines.serve.metrics import Metrics
from pipelines.serve.settings import Limits
from pipelines.serve.tracing import span

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = {"/healthz", "/readyz", "/", "/report"}
"""Routes for those who only want to know whether the server lives, and the page, which holds nothing of anybody's."""
OPEN_FOLDER = "/page/"
"""The page's files."""
PROBE = Caller("probe", frozenset())
"""Whoever calls those."""
MOST_HEADER_BYTES = 16_384
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
log = logging.getLogger("rewrite-serve.access")


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: App, gate: Gate, limits: Limits, hosts: frozenset[str], metrics: Metrics) -> None:
        """`hosts`: the names by which the server may be addressed; empty: any."""
        self._app, self._gate, self._limits, self._hosts, self._metrics = app, gate, limits, hosts, metrics
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, name = time.monotonic(), 500, secrets.token_hex(8)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {header for header, _ in message["headers"]}
                usual = [header for header in HEADERS if header[0] not in given]
                message["headers"] = [*message["headers"], *usual, (b"x-request-id", name.encode())]
            await send(message)

        caller: Caller | None = None
        try:
            with span("request", method=scope["method"]):
                caller = self._admitted(scope)
                await self._within(caller, scope, receive, answer)
        except Refusal as refusal:
            self._metrics.refused.labels(refusal.code).inc()
            await _refuse(answer, refusal)
        except ConnectionError:
            status = 499  # the caller has gone; there is nobody to answer
        finally:
            self._tell(scope, status, time.monotonic() - started, caller, name)

    def _admitted(self, scope: Scope) -> Caller:
        """The caller, if what can be told of the request without its body is in order."""
        headers = _Headers(scope["headers"])
        if headers.size > MOST_HEADER_BYTES:
            raise Refusal(431, "headers_too_large", f"the headers are larger than {MOST_HEADER_BYTES} bytes")
        if self._hosts and _host(headers.one("host") or "") not in self._hosts:
            raise Refusal(421, "wrong_host", "this server does not answer by that name")
        if scope["path"] in OPEN or scope["path"].startswith(OPEN_FOLDER):
            return PROBE
        caller = self._gate.admit(headers.one("authorization"), headers.one("x-api-key"))
        length = headers.one("content-length") or "0"
        if length != "0" or headers.one("transfer-encoding"):  # web pages can send other kinds unasked
            kind = (headers.one("content-type") or "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise Refusal(415, "unsupported_media_type", "send the body as application/json")
        if not (length.isascii() and length.isdigit()) or int(length[:20]) > self._limits.bytes:
            raise self._too_large()
        return caller

    async def _within(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["caller"] = caller
        if caller is PROBE:  # nobody in particular: he takes no place from others, and no body of his is waited for
            await self._app(scope, _replayed(b"", receive), send)
            return
        if self._in_flight >= self._limits.in_flight:
            raise overloaded("too many requests are under way")
        caller.enter()
        self._count(1)
        try:
            await self._app(scope, await self._whole(receive), send)
        finally:
            self._count(-1)
            caller.leave()

    def _count(self, more: int) -> None:
        self._in_flight += more
        self._metrics.in_flight.set(self._in_flight)

    async def _whole(self, receive: Receive) -> Receive:
        """The body, in time and not too much of it, to be read again by the route."""
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ConnectionError
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self._limits.bytes:
                        raise self._too_large()
        except TimeoutError:
            raise Refusal(408, "timeout", "the body did not arrive in time") from None
        return _replayed(bytes(body), receive)

    def _too_large(self) -> Refusal:
        return Refusal(413, "too_large", f"the body is larger than {self._limits.bytes} bytes")

    def _tell(self, scope: Scope, status: int, seconds: float, caller: Caller | None, name: str) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.requests.labels(route, status).inc()
        self._metrics.latency.labels(route).observe(seconds)
        who = caller.name if caller else "-"
        log.info("%s %s %d %.1f ms %s %s", scope["method"], route, status, 1000 * seconds, who, name)


class _Headers:
    """A request's headers; what must be there once at the most is refused twice."""

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs
        self.size = sum(len(name) + len(value) for name, value in pairs)

    def one(self, wanted: str) -> str | None:
        found = [value for name, value in self._pairs if name.lower() == wanted.encode()]
        if len(found) > 1:
            raise Refusal(400, "bad_request", f"the header {wanted} stands there twice")
        return found[0].decode("latin-1") if found else None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A body to be read again, and then whatever comes."""
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        return next(parts, None) or await receive()

    return replay


def _host(told: str) -> str:
    """The name in a Host header, without the port."""
    name = told.rpartition("]")[0] + "]" if told.startswith("[") else told.partition(":")[0]
    return name.lower()


async def _refuse(send: Send, refusal: Refusal) -> None:
    body = error_body(refusal.code, refusal.message)
    await send({"type": "http.response.start", "status": refusal.status, "headers": _error_headers(refusal, body)})
    await send({"type": "http.response.body", "body": body})


def error_body(code: str, message: str) -> bytes:
    """The one shape of every error."""
    return json.dumps({"error": {"code": code, "message": message}}).encode()


def _error_headers(refusal: Refusal, body: bytes) -> list[tuple[bytes, bytes]]:
    found = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    found += [(name.lower().encode(), value.encode()) for name, value in refusal_headers(refusal).items()]
    if refusal.status in (408, 413, 431):  # the rest of the body is not read
        found.append((b"connection", b"close"))
    return found


def refusal_headers(refusal: Refusal) -> dict[str, str]:
    """What a refusal says beside its body."""
    found = {}
    if refusal.retry_after is not None:
        found["Retry-After"] = str(max(1, -(-int(1000 * refusal.retry_after) // 1000)))
    if refusal.status == 401:
        found["WWW-Authenticate"] = "Bearer"
    return found
