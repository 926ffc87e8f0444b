"""Clients that ask over keep-alive sockets, one request at a time each, and how long each answer took."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Request = tuple[str, str, object]
"""Method, path and JSON body."""
After = Callable[[object, bytes], Awaitable[None]]
"""What a client has still to do with the answer to a body; its time counts."""


class Asked(NamedTuple):
    """One request, from its first byte out to whatever the client had to do with the answer."""

    began: float
    ended: float
    body: Any
    answer: bytes


@dataclass
class Figures:
    """What a round of load showed."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    rates: list[float] = field(default_factory=list)
    """Of every round."""
    asked: list[Asked] = field(default_factory=list)
    """In this round."""

    def add(self, other: Figures) -> None:
        """One more round."""
        self.rates.append(other.rate())
        self.seconds += other.seconds
        self.latencies += other.latencies
        self.statuses += other.statuses
        self.fallbacks += other.fallbacks

    def rate(self) -> float:
        """Requests a second that got what they asked for: a raw ranking in a rewrite's place is none."""
        return (len(self.latencies) - self.fell_back()) / self.seconds if self.seconds else 0.0

    def fell_back(self) -> int:
        """Requests that asked for a rewrite, and got none."""
        return sum(self.fallbacks.values())

    def percentile(self, share: float) -> float:
        """Milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")

    def summary(self) -> dict[str, object]:
        """For the JSON."""
        return {
            "requests": len(self.latencies),
            "per_second": round(self.rate(), 2),
            "per_second_by_round": [round(rate, 2) for rate in self.rates],
            **{f"p{round(100 * share)}_ms": round(self.percentile(share), 2) for share in (0.5, 0.95, 0.99)},
            "statuses": dict(self.statuses),
            "fell_back": self.fell_back(),
            "fallbacks": dict(self.fallbacks),
        }


def load(
    port: int,
    clients: int,
    seconds: float,
    requests: Iterator[Request],
    key: str = "",
    most: int = 0,
    after: After | None = None,
) -> Figures:
    """So many clients for so long, or for `most` requests."""
    return asyncio.run(_load(port, clients, seconds, requests, key, most, after))


async def _load(
    port: int, clients: int, seconds: float, requests: Iterator[Request], key: str, most: int, after: After | None
) -> Figures:
    found, started = Figures(), time.monotonic()
    left = [most or 1 << 60]

    def go_on() -> bool:
        left[0] -= 1
        return time.monotonic() - started < seconds and left[0] >= 0

    await asyncio.gather(*(_client(port, requests, go_on, found, key, after) for _ in range(clients)))
    found.seconds = time.monotonic() - started
    return found


async def _client(
    port: int, requests: Iterator[Request], go_on: Callable[[], bool], found: Figures, key: str, after: After | None
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    sent = f"Authorization: Bearer {key}\r\n" if key else ""
    while go_on():
        method, path, body = next(requests)
        data = b"" if body is None else json.dumps(body).encode()
        kind = "Content-Type: application/json\r\n" if data else ""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{sent}{kind}Content-Length: {len(data)}\r\n\r\n"
        began = time.monotonic()
        writer.write(head.encode() + data)
        status, answer = await _answer(reader)
        if after is not None:
            await after(body, answer)
        ended = time.monotonic()
        found.latencies.append(ended - began)
        found.asked.append(Asked(began, ended, body, answer))
        found.statuses[status] += 1
        if b'"fallback":{' in answer:
            found.fallbacks[answer.split(b'"fallback":{"reason":"')[1].split(b'"')[0].decode()] += 1
    writer.close()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.split("content-length:")[1].split("\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)
