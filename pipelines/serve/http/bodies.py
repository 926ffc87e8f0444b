"""Reads the bodies of requests: in time, within their limits, and few large ones at once."""

from __future__ import annotations

import asyncio
import time

from pipelines.serve.bounds.fairness import FairSlots
from pipelines.serve.errors import Refusal
from pipelines.serve.http.asgi import Message, Receive
from pipelines.serve.keys import Caller
from pipelines.serve.settings import RequestLimits

BYTES_PER_SLOT = 65_536
"""Bytes of a body for which a request counts as one more: reading a large one stops all others."""
LARGE_BODIES = 8
"""Larger bodies that are read at once; two of a key while others are active."""
PATIENCE = 0.05
"""Seconds that a body may keep its slot in all while its parts do not come; then it waits for them without one."""
MAX_VALUES, MAX_WRITTEN_VALUES = 20_000, 100_000
"""Commas and brackets of a large body, and of one of a key that writes or calls: a megabyte of empty lists takes
0.1 s to read, during which all others wait."""


class BodyReader:
    """Bodies of all callers."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits, self._slots = limits, FairSlots(LARGE_BODIES, first_at_once=True)

    async def read(self, caller: Caller, scope: Message, receive: Receive) -> bytes:
        """The whole body of a request."""
        max_values = MAX_VALUES if caller.scopes <= {"search"} else MAX_WRITTEN_VALUES
        slot = _Slot(self._slots, caller.turn, self._limits.queue_seconds)
        given = {name.lower(): value for name, value in scope["headers"]}
        try:
            if int(given.get(b"content-length", 0)) > BYTES_PER_SLOT:
                await slot.take()
            return await self._read(slot, receive, max_values)
        finally:
            slot.give_back()

    async def _read(self, slot: _Slot, receive: Receive, max_values: int) -> bytes:
        """The whole body; one of more values than a request needs is refused before its end has arrived."""
        body, more, values = bytearray(), True, 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while more:
                    message = await slot.next_part(receive)
                    if message["type"] == "http.disconnect":
                        raise ConnectionError
                    is_large, part = len(body) > BYTES_PER_SLOT, message.get("body", b"")
                    body += part
                    if len(body) > BYTES_PER_SLOT:
                        await slot.take()
                        values += count_values(part if is_large else body)
                    if values > max_values:
                        why = f"the body has more than {max_values:,} commas and brackets; send several requests"
                        raise Refusal(422, "invalid", why)
                    more = message.get("more_body", False)
                    if len(body) > self._limits.bytes:
                        raise too_large(self._limits)
        except TimeoutError:
            raise Refusal(408, "timeout", "the body did not arrive in time") from None
        return bytes(body)


class _Slot:
    """The slot of one large body. Bodies that wait for theirs are not read on, so that sixty of one caller do not
    arrive in one turn of the event loop; and a body whose parts do not come keeps no other from being read."""

    def __init__(self, slots: FairSlots, turn: str, queue_seconds: float) -> None:
        self._slots, self._turn, self._queue_seconds = slots, turn, queue_seconds
        self._held, self._patience = False, PATIENCE

    async def take(self) -> None:
        if not self._held:
            await self._slots.enter(self._turn, self._queue_seconds)
            self._held = True

    def give_back(self) -> None:
        if self._held:
            self._slots.leave(self._turn)
            self._held = False

    async def next_part(self, receive: Receive) -> Message:
        """The next part of the body; where it does not come in time, the slot is given back meanwhile."""
        if not self._held:
            return await receive()
        part = asyncio.ensure_future(receive())
        began = time.monotonic()
        try:
            await asyncio.wait({part}, timeout=max(self._patience, 0))
            self._patience -= time.monotonic() - began
            if not part.done():
                self.give_back()
            return await part
        finally:
            part.cancel()


def too_large(limits: RequestLimits) -> Refusal:
    """The refusal of a body of too many bytes."""
    return Refusal(413, "too_large", f"the body is larger than {limits.bytes} bytes")


def count_values(body: bytes | bytearray) -> int:
    """Commas and brackets, about as many as there are values."""
    return sum(body.count(sign) for sign in (b",", b"[", b"{"))
