"""Connections: limits per address and in all, time for headers and answers, and a few kept for health checks."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pipelines.serve.bounds.addresses import network
from pipelines.serve.errors import Refusal
from pipelines.serve.http.asgi import App, Message, Receive, Send
from pipelines.serve.http.guard import HEALTH_PATHS, MAX_HEADER_BYTES, send_refusal
from pipelines.serve.metrics import Metrics
from pipelines.serve.settings import ConnectionLimits

HEALTH_CONNECTIONS = 16
"""Connections beyond the limits that may only ask for health."""
HEALTH_SECONDS = 2.0
"""Time for their headers."""
MAX_UNFINISHED = 4 * MAX_HEADER_BYTES
"""Bytes of headers without an end; the parser keeps all of them, and the guard sees only complete ones."""
OTHER_HANDLES = 64
"""File handles that are left for files, the database and the rewriter."""
LOG_SECONDS = 30.0
FULL = Refusal(503, "too_many_connections", "too many connections are open; try again later", 1.0)
log = logging.getLogger("rewrite-serve")


class ConnectionTable:
    """All connections of a server by address, oldest first."""

    def __init__(self, limits: ConnectionLimits, metrics: Metrics) -> None:
        self._limits, self._metrics, self._total = limits, metrics, affordable(limits.total)
        self._by_address: dict[str, dict[Connection, None]] = {}
        self._size = self._num_health = 0
        self._closed: Counter[str] = Counter()
        self._logged = 0.0

    def add(self, connection: Connection) -> None:
        """Admit a connection; at a limit, in place of one that waits, or else for health checks only."""
        peers = self._by_address.setdefault(connection.address, {})
        if len(peers) >= self._limits.per_address:
            admitted = self._replace_one(peers, "address")
        elif self._size - self._num_health >= self._total:
            admitted = self._replace_one(max(self._by_address.values(), key=len), "full")
        else:
            admitted = True
        if not admitted:
            self._count("refused")
            if self._num_health >= HEALTH_CONNECTIONS:
                connection.transport.abort()
                return
            connection.keep_for_health()
            self._num_health += 1
        peers[connection] = None
        self._resize(1)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        peers = self._by_address.get(connection.address, {})
        if connection in peers:
            del peers[connection]
            self._num_health -= connection.is_for_health
            self._resize(-1)
        if not peers:
            self._by_address.pop(connection.address, None)

    def sweep(self) -> None:
        """Close connections whose headers take too long, or that do not take their answer."""
        now = time.monotonic()
        for connection in list(self._all()):
            seconds = HEALTH_SECONDS if connection.is_for_health else self._limits.header_seconds
            if connection.headers_since is not None and now - connection.headers_since > seconds:
                self.abort(connection, "headers")
            elif connection.stalled_seconds(now) > self._limits.stall_seconds:
                self.abort(connection, "unread")
        if self._closed and now - self._logged > LOG_SECONDS:
            self._logged = now
            log.warning("connections closed: %s", ", ".join(f"{why} {count}" for why, count in self._closed.items()))
            self._closed.clear()

    def _all(self) -> Iterator[Connection]:
        return (connection for peers in self._by_address.values() for connection in peers)

    def _replace_one(self, peers: dict[Connection, None], reason: str) -> bool:
        """Close the oldest connection with unfinished headers, or else the oldest idle one; False if all are busy."""
        waiting = [
            connection for connection in peers if connection.is_waiting and not connection.transport.is_closing()
        ]
        if not waiting:
            return False
        self.abort(next((one for one in waiting if one.headers_since is not None), waiting[0]), reason)
        return True

    def abort(self, connection: Connection, reason: str) -> None:
        """Close a connection at once."""
        connection.headers_since = None
        connection.transport.abort()
        self.remove(connection)
        self._count(reason)

    def _count(self, reason: str) -> None:
        self._closed[reason] += 1
        self._metrics.connections_closed.labels(reason).inc()

    def _resize(self, change: int) -> None:
        self._size += change
        self._metrics.connections.set(self._size)


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP connection, in a table."""

    table: ConnectionTable
    address = ""
    is_for_health = False
    headers_since: float | None = None
    """Start of headers that are not complete; None: idle, or a request is running."""
    _unread, _unread_since = 0, 0.0
    _in_headers, _header_bytes = False, 0

    @property
    def is_waiting(self) -> bool:
        """True if no request is running."""
        return self.cycle is None or (self.cycle.response_complete and not self.pipeline)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time for headers, and enter the table."""
        super().connection_made(transport)
        self.headers_since, self.address = time.monotonic(), network(self.client[0] if self.client else "")
        self.table.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the table."""
        self.table.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Start or stop the time for headers; a body after its answer counts as headers."""
        if self.headers_since is None and self.is_waiting:
            self.headers_since = time.monotonic()
        super().data_received(data)
        if not self.is_waiting:
            self.headers_since = None
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_UNFINISHED:
                self.table.abort(self, "headers")

    def on_message_begin(self) -> None:
        """Begin to count the bytes of headers."""
        super().on_message_begin()
        self._in_headers, self._header_bytes = True, 0

    def on_headers_complete(self) -> None:
        """End the count."""
        self._in_headers = False
        super().on_headers_complete()

    def stalled_seconds(self, now: float) -> float:
        """Seconds in which the caller has taken nothing of its answer."""
        unread = self.transport.get_write_buffer_size()
        if not unread or unread < self._unread or not self._unread:
            self._unread_since = now
        self._unread = unread
        return now - self._unread_since

    def keep_for_health(self) -> None:
        """Refuse everything but health checks."""
        self.is_for_health, self.app = True, _only_health(self.app)


def make_protocol(table: ConnectionTable) -> type[Connection]:
    """The connections of one server, for uvicorn."""
    return type("ServerConnection", (Connection,), {"table": table})


def _only_health(app: Any) -> Any:
    async def refuse_others(scope: Message, receive: Receive, send: Send) -> None:
        inner: App = app
        if scope["path"] in HEALTH_PATHS:
            await inner(scope, receive, send)
        else:
            await send_refusal(send, FULL)

    return refuse_others


def affordable(total: int) -> int:
    """As many connections as the process has file handles for, at most `total`."""
    handles = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = OTHER_HANDLES
    room = max(1, handles - used - OTHER_HANDLES - HEALTH_CONNECTIONS)
    if handles != resource.RLIM_INFINITY and room < total:
        log.warning("%d connections at most: %d file handles; raise `ulimit -n` for more", room, handles)
        return room
    return total
