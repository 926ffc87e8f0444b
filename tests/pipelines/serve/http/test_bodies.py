"""Reading large bodies, a few of a caller at once, and waiting for callers that are paused."""

from __future__ import annotations

import asyncio
import time

import pytest
from waiting import PATIENCE

from pipelines.serve.http.asgi import Message, Receive
from pipelines.serve.http.bodies import BYTES_PER_SLOT, LARGE_BODIES, BodyReader
from pipelines.serve.http.guard import wait_for_end
from pipelines.serve.keys import Caller
from pipelines.serve.settings import RequestLimits

LARGE = {"headers": [(b"content-length", str(2 * BYTES_PER_SLOT).encode())]}
SMALL = {"headers": [(b"content-length", b"10")]}
UNKNOWN = {"headers": [(b"transfer-encoding", b"chunked")]}


async def read_while_others_are_active(scope: Message, count: int) -> int:
    """How many of `count` bodies of one caller are being read when none has come to its end."""
    reader, reading, go = BodyReader(RequestLimits()), set[int](), asyncio.Event()

    async def receive_at_once() -> Message:
        return {"body": b"{}", "more_body": False, "type": "http.request"}

    async def read(number: int) -> bytes:
        async def receive() -> Message:
            reading.add(number)
            await go.wait()
            return await receive_at_once()

        return await reader.read(Caller("flood", frozenset({"search"})), scope, receive)

    await reader.read(Caller("polite", frozenset({"search"})), LARGE, receive_at_once)
    bodies = [asyncio.create_task(read(number)) for number in range(count)]
    for _ in range(10):
        await asyncio.sleep(0)
    at_once = len(reading)
    polite = await reader.read(Caller("polite", frozenset({"search"})), LARGE, receive_at_once)
    assert polite == b"{}"  # the flood does not hold it up
    go.set()
    assert await asyncio.gather(*bodies) == [b"{}"] * count
    return at_once


def test_a_caller_gets_two_of_the_large_bodies_read_at_once() -> None:
    assert asyncio.run(read_while_others_are_active(LARGE, 20)) == LARGE_BODIES // 4


def test_small_bodies_do_not_wait() -> None:
    assert asyncio.run(read_while_others_are_active(SMALL, 20)) == 20
    assert asyncio.run(read_while_others_are_active(UNKNOWN, 20)) == 20  # until they turn out to be large


@pytest.mark.parametrize("stalled", [LARGE, UNKNOWN])
def test_callers_that_stop_sending_hold_up_no_other(stalled: Message) -> None:
    async def attack() -> None:
        reader, go = BodyReader(RequestLimits()), asyncio.Event()

        def stalling() -> Receive:
            parts = iter([b"x" * (BYTES_PER_SLOT + 1), b"y" * BYTES_PER_SLOT])

            async def receive() -> Message:
                part = next(parts)
                if part.startswith(b"y"):
                    await go.wait()
                return {"type": "http.request", "body": part, "more_body": part.startswith(b"x")}

            return receive

        async def at_once() -> Message:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        callers = [Caller(f"key-{number}", frozenset({"search"})) for number in range(2 * LARGE_BODIES)]
        bodies = [asyncio.create_task(reader.read(caller, stalled, stalling())) for caller in callers]
        await asyncio.sleep(0.1)
        assert await reader.read(Caller("polite", frozenset({"search"})), LARGE, at_once) == b"{}"
        go.set()
        assert {len(body) for body in await asyncio.gather(*bodies)} == {2 * BYTES_PER_SLOT + 1}

    asyncio.run(attack())


def test_the_pause_of_a_caller_ends_when_it_leaves() -> None:
    """Else thousands of paused requests stay, and every garbage collection, which stops all threads, looks at them."""
    parts = list[int]()

    async def left() -> Message:
        return {"type": "http.disconnect"}

    async def sends_on() -> Message:
        parts.append(1)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def stays() -> Message:
        await asyncio.sleep(PATIENCE)
        return {"type": "http.request"}

    async def seconds(receive: Receive, pause: float) -> float:
        began = time.monotonic()
        await wait_for_end(receive, pause)
        return time.monotonic() - began

    assert asyncio.run(seconds(left, PATIENCE)) < PATIENCE / 2
    assert 0.1 <= asyncio.run(seconds(stays, 0.1)) < PATIENCE / 2
    assert 0.1 <= asyncio.run(seconds(sends_on, 0.1)) < PATIENCE / 2
    assert len(parts) == 1  # what it sends while it is paused is not read
