"""ASGI guard in front of all routes: checks host, key, size and load before anything is parsed, and logs requests."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from pipelines.serve.bounds.addresses import network
from pipelines.serve.bounds.fairness import FairSlots, grow_turn
from pipelines.serve.bounds.places import FairPlaces
from pipelines.serve.errors import Refusal, overloaded
from pipelines.serve.http.asgi import App, Message, Receive, Send
from pipelines.serve.http.bodies import BYTES_PER_SLOT, BodyReader, too_large
from pipelines.serve.keys import Caller, Gate
from pipelines.serve.metrics import Metrics
from pipelines.serve.settings import RequestLimits
from pipelines.serve.tracing import span

HEALTH_PATHS = {"/healthz", "/readyz"}
"""Health checks, which are logged only when they fail."""
OPEN_PATHS = HEALTH_PATHS | {"/", "/report"}
"""Health checks and the page, which hold no private data: no key is needed."""
OPEN_FOLDER = "/page/"
PROBE = Caller("probe", frozenset())
"""The caller of an open path."""
MAX_HEADER_BYTES = 16_384
RUNNING_PARTS = 16
"""While others are active, a key has this fraction of the running requests: two of 32 keep a thread busy."""
REPEATED = {400, 401, 403, 413, 415, 422, 429}
"""Refusals that a caller can repeat without end."""
FREE_ERRORS, FREE_PER_SECOND, PAUSE_SECONDS = 100.0, 5.0, (0.5, 2.5)
"""Such refusals at once, and per second, that have no consequence; after more of them a connection takes its next
request only after a pause, so that callers who repeat them cost little. Pauses differ, or all would return at once."""
FREE_OPEN, OPEN_PER_SECOND = 200.0, 50.0
"""The same for requests of an address that need no key: health checks and the page."""
MAX_REMEMBERED = 10_000
"""Callers whose budgets are remembered."""
SINGLE_HEADERS = {
    name.encode() for name in "host authorization x-api-key content-length transfer-encoding content-type".split()
}
"""Headers that are read here, and could mean two things if they were sent twice."""
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
log = logging.getLogger("rewrite-serve.access")


class ErrorBudget:
    """Errors that each caller may still cause without a pause; or other requests that cost it nothing."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        free: float = FREE_ERRORS,
        per_second: float = FREE_PER_SECOND,
    ) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._clock, self._free, self._per_second = clock, free, per_second

    def is_spent(self, caller: str) -> bool:
        """Count an error; True if the caller causes too many."""
        now = self._clock()
        left, seen = self._left.pop(caller, (self._free, now))
        left = min(self._free, left + self._per_second * (now - seen))
        self._left[caller] = max(0.0, left - 1), now
        if len(self._left) > MAX_REMEMBERED:
            self._left.popitem(last=False)
        return left < 1


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: App, gate: Gate, limits: RequestLimits, hosts: frozenset[str], metrics: Metrics) -> None:
        """`hosts`: host names that callers may use; empty: any."""
        self._app, self._gate, self._limits, self._hosts, self._metrics = app, gate, limits, hosts, metrics
        self._slots = FairSlots(limits.running, RUNNING_PARTS, first_at_once=True)
        self._bodies = BodyReader(limits)
        self._places, self._errors = FairPlaces(limits.in_flight), ErrorBudget()
        self._open = ErrorBudget(free=FREE_OPEN, per_second=OPEN_PER_SECOND)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, request_id = time.monotonic(), 500, f"{random.getrandbits(64):016x}"
        caller: Caller | None = None
        is_paused = False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, is_paused
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {header for header, _ in message["headers"]}
                missing = [header for header in SECURITY_HEADERS if header[0] not in given]
                message["headers"] = [*message["headers"], *missing, (b"x-request-id", request_id.encode())]
            elif (status in REPEATED or caller is PROBE) and not message.get("more_body"):
                is_probe, name = caller is PROBE, caller.name if caller else ""
                is_paused = self._open.is_spent(client_network(scope)) if is_probe else self._errors.is_spent(name)
                message = {**message, "more_body": is_paused}
            await send(message)

        try:
            with span("request", method=scope["method"]):
                caller = self._admit(scope)
                await self._handle(caller, scope, receive, send_with_headers)
        except Refusal as refusal:
            self._metrics.refused.labels(refusal.code).inc()
            await send_refusal(send_with_headers, refusal)
        except ConnectionError:
            status = 499  # the caller has disconnected
        finally:
            route, seconds = getattr(scope.get("route"), "path", "other"), time.monotonic() - started
            self._metrics.requests.labels(route, status).inc()
            self._metrics.latency.labels(route).observe(seconds)
            name = caller.name if caller else "-"
            level = logging.DEBUG if status == 200 and route in HEALTH_PATHS else logging.INFO
            log.log(level, "%s %s %d %.1f ms %s %s", scope["method"], route, status, 1000 * seconds, name, request_id)
        if is_paused:  # the caller has the whole answer, but the connection takes its next request later
            await wait_for_end(receive, random.uniform(*PAUSE_SECONDS))
            await send({"type": "http.response.body", "body": b""})

    def _admit(self, scope: Message) -> Caller:
        """Check everything that is known before the body, and return the caller."""
        pairs = scope["headers"]
        if sum(len(name) + len(value) for name, value in pairs) > MAX_HEADER_BYTES:
            raise Refusal(431, "headers_too_large", f"the headers are larger than {MAX_HEADER_BYTES} bytes")

        given: dict[bytes, bytes] = {}
        for name, value in pairs:
            key = name.lower()
            if key in given and key in SINGLE_HEADERS:
                raise Refusal(400, "bad_request", f"the header {key.decode()} is sent twice")
            given[key] = value

        def header(name: str) -> str | None:
            value = given.get(name.encode())
            return None if value is None else value.decode("latin-1")

        if self._hosts and host_name(header("host") or "") not in self._hosts:
            raise Refusal(421, "wrong_host", "this server does not answer by that name")
        if scope["path"] in OPEN_PATHS or scope["path"].startswith(OPEN_FOLDER):
            return PROBE
        caller = self._gate.admit(header("authorization"), header("x-api-key"), client_network(scope))
        length = header("content-length") or "0"
        if length != "0" or header("transfer-encoding"):  # web pages can send other types without a preflight
            media_type = (header("content-type") or "").partition(";")[0].strip().lower()
            if media_type != "application/json":
                raise Refusal(415, "unsupported_media_type", "send the body as application/json")
        is_number = length.isascii() and length.isdigit() and len(length) <= 20
        if not is_number or int(length) > self._limits.bytes:
            raise too_large(self._limits)
        return caller

    async def _handle(self, caller: Caller, scope: Message, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["caller"] = caller
        if caller is PROBE:  # counts against no limit, and its body is not read
            await self._app(scope, _replay(b"", receive), send)
            return
        caller.enter()
        if not self._places.take(caller.turn):
            caller.leave()
            raise overloaded("too many requests are running")
        self._metrics.in_flight.set(self._places.taken)
        try:
            body = await self._bodies.read(caller, scope, receive)
            async with self._slots.turn(caller.turn, self._limits.queue_seconds) as turn:
                grow_turn(1 + len(body) // BYTES_PER_SLOT)

                async def send_after_turn(message: Message) -> None:
                    turn.end()  # a caller that reads slowly keeps no other waiting
                    await send(message)

                turn.spend_tokens = caller.spend_tokens
                await self._app(scope, _replay(body, receive), send_after_turn)
        finally:
            caller.leave()
            self._places.leave(caller.turn)
            self._metrics.in_flight.set(self._places.taken)


async def wait_for_end(receive: Receive, seconds: float) -> None:
    """Wait until the connection ends, for some seconds at most: nothing of a request stays for a caller that left."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while (message := await receive())["type"] != "http.disconnect":
                if message.get("more_body"):
                    await asyncio.sleep(seconds)  # the rest of a body is not read


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body, then what follows it."""
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        return next(parts, None) or await receive()

    return replay


def client_network(scope: Message) -> str:
    """The address that a request comes from."""
    client = scope.get("client")
    return network(client[0]) if client else ""


def host_name(header: str) -> str:
    """The name in a Host header, without the port."""
    name = header.rpartition("]")[0] + "]" if header.startswith("[") else header.partition(":")[0]
    return name.lower()


async def send_refusal(send: Send, refusal: Refusal) -> None:
    """Send a refusal as an ASGI response."""
    body = error_body(refusal.code, refusal.message)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in refusal_headers(refusal).items()]
    if refusal.status in (408, 413, 431):  # the rest of the body is not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def error_body(code: str, message: str) -> bytes:
    """The body of every error."""
    return json.dumps({"error": {"code": code, "message": message}}).encode()


def refusal_headers(refusal: Refusal) -> dict[str, str]:
    """Headers of a refusal."""
    headers = {}
    if refusal.retry_after is not None:
        headers["Retry-After"] = str(max(1, -(-int(1000 * refusal.retry_after) // 1000)))
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers
