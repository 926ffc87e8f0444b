"""Clients that attack a server, in a process of their own; each kind is one way to take more than a share.

    python benchmarks/hostile_clients.py KIND PORT KEY CLIENTS

Runs until its standard input closes, then prints JSON: answers by status, bytes, the largest answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from http_load import utterances

READ_BYTES = 1 << 16
ACCEPT = "Accept: application/json, text/event-stream\r\n"
"""What MCP wants."""
PAUSE = 0.5
"""Seconds between two bytes of a slow client."""


@dataclass
class HostileFigures:
    """Outcome of an attack."""

    statuses: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    largest: int = 0
    longest: float = 0.0
    """Seconds of the slowest answer."""

    def add(self, status: str, size: int = 0, seconds: float = 0.0) -> None:
        """Count an answer, or the end of a connection."""
        self.statuses[status] += 1
        self.bytes += size
        self.largest, self.longest = max(self.largest, size), max(self.longest, seconds)


@dataclass(frozen=True)
class Target:
    """The attacked server, and the key of the attacker."""

    port: int
    key: str
    figures: HostileFigures


def make_request(key: str, body: object = None, path: str = "/v1/search", method: str = "") -> bytes:
    """The bytes of a request; a POST if it has a body and nothing else is asked for. `key`: empty for none."""
    data = b"" if body is None else json.dumps(body).encode()
    kind = f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n" if data else ""
    method = method or ("POST" if data else "GET")
    secret = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{ACCEPT}{secret}{kind}\r\n"
    return head.encode() + data


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, int]:
    """Read an answer without keeping it: its status and its size."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    if "content-length:" not in lines:  # a stream
        size = 0
        while length := int(await reader.readuntil(b"\r\n"), 16):
            size += len(await reader.readexactly(length + 2))
        await reader.readuntil(b"\r\n")
        return int(lines.split()[1]), size
    size = left = int(lines.split("content-length:")[1].split("\r\n")[0])
    while left:
        data = await reader.read(min(READ_BYTES, left))
        if not data:
            raise ConnectionError
        left -= len(data)
    return int(lines.split()[1]), size


def repeat(
    make_body: Callable[[], object],
    path: str = "/v1/search",
    method: str = "",
    has_key: bool = True,
    per: int = 1 << 60,
) -> Callable[[Target], Awaitable[None]]:
    """A client that sends the next request as soon as it has an answer; `per`: requests per connection."""

    async def client(target: Target) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        try:
            for _ in range(per):
                began = time.monotonic()
                writer.write(make_request(target.key if has_key else "", make_body(), path, method))
                status, size = await read_answer(reader)
                target.figures.add(str(status), size, time.monotonic() - began)
        finally:
            writer.close()

    return client


async def half_headers(target: Target) -> None:
    """Send a header byte by byte and never end it, without a key."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    began = time.monotonic()
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: ")
        ended = asyncio.ensure_future(reader.read(READ_BYTES))
        while not ended.done():
            writer.write(b"a")
            await writer.drain()
            await asyncio.wait([ended], timeout=PAUSE)
    finally:
        writer.close()
        target.figures.add("closed", seconds=time.monotonic() - began)


async def slow_body(target: Target) -> None:
    """Send a body byte by byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    began = time.monotonic()
    try:
        writer.write(make_request(target.key, {"utterance": "x" * 5000})[:-5000])
        answer = asyncio.ensure_future(read_answer(reader))
        while not answer.done():
            writer.write(b"a")
            await writer.drain()
            await asyncio.wait([answer], timeout=PAUSE)
        target.figures.add(str((await answer)[0]), seconds=time.monotonic() - began)
    finally:
        writer.close()


async def slow_reader(target: Target) -> None:
    """Ask for a large answer and do not read it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port, limit=1024)
    try:
        writer.write(make_request(target.key, {"utterance": next(utterances()), "k": 200, "format": "openai"}))
        await writer.drain()
        while not reader.at_eof():
            await reader.read(1)
            await asyncio.sleep(PAUSE)
    finally:
        writer.close()
        target.figures.add("closed")


def many(**options: object) -> dict[str, object]:
    """A search of 64 utterances."""
    texts = utterances()
    return {"utterance": [next(texts) for _ in range(64)], **options}


def new_tool(description: str = "Mends umbrellas.") -> dict[str, object]:
    """A change of the catalogue: one tool, with another description every time."""
    return {"tools": [{"id": "hostile/tool", "name": "tool", "description": f"{description} {next(utterances())}"}]}


def catalogue() -> dict[str, object]:
    """A catalogue of 25,000 tools in half a megabyte, to be read."""
    return {"document": json.dumps([{"name": f"tool {number}"} for number in range(25_000)])}


def tool_call() -> dict[str, object]:
    """A search over MCP."""
    call = {"name": "search_tools", "arguments": {"query": next(utterances()), "k": 200}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}


SPACES = " " * 19_000
FIELDS, LISTS = dict.fromkeys(map(str, range(70_000)), 1), [[]] * 250_000
MARKS = "a" + "\u0315" * 3_900 + "\u0316" * 3_900
KINDS: dict[str, Callable[[Target], Awaitable[None]]] = {
    "amplification": repeat(lambda: many(k=200, format="openai")),
    "wide": repeat(lambda: many(k=200)),
    "definitions": repeat(lambda: {"utterance": next(utterances()), "k": 200, "format": "openai"}),
    "many": repeat(lambda: many(k=10)),
    "flood": repeat(lambda: {"utterance": next(utterances()), "k": 10}),
    "listing": repeat(lambda: None, "/v1/tools?limit=200"),
    "half-headers": half_headers,
    "slow-body": slow_body,
    "slow-reader": slow_reader,
    "marks": repeat(lambda: {"utterance": [MARKS] * 16, "k": 10}),
    "fields": repeat(lambda: {"utterance": "a", "filters": FIELDS}),
    "lists": repeat(lambda: {"utterance": LISTS}),
    "filters": repeat(lambda: many(k=10, filters={"provider": ["no such provider"]})),
    "long": repeat(lambda: {"utterance": [" ".join(map(str, range(n, n + 1_500))) for n in range(64)], "k": 10}),
    "mcp": repeat(tool_call, "/mcp"),
    "open": repeat(lambda: None, "/", has_key=False),
    "connect": repeat(lambda: None, "/healthz", has_key=False, per=1),
    "write": repeat(new_tool, "/v1/tools", "PUT"),
    "orders": repeat(lambda: new_tool(f"Do not{SPACES}! others"), "/v1/tools", "PUT"),
    "read": repeat(catalogue, "/v1/catalogue/read"),
}
WRITES = {"write", "orders", "read"}
"""Kinds for which the key needs the scope `write`."""


async def attack(kind: str, port: int, key: str, clients: int) -> HostileFigures:
    """Attack until standard input closes; a client whose connection ends starts again."""
    figures, target_ended = HostileFigures(), asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, target_ended.set)

    async def client() -> None:
        while True:
            try:
                await KINDS[kind](Target(port, key, figures))
            except (OSError, EOFError, asyncio.LimitOverrunError):
                figures.add("lost")
                await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(client()) for _ in range(clients)]
    print("ready", flush=True)
    await target_ended.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return figures


def main() -> None:
    """Attack as the arguments say."""
    kind, port, key, clients = sys.argv[1:]
    print(json.dumps(vars(asyncio.run(attack(kind, int(port), key, int(clients))))))


if __name__ == "__main__":
    main()
