"""Fair turns: callers that want the same thing get it in turn, and none takes all of it while others are active."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from pipelines.serve.errors import overloaded

ACTIVE_SECONDS = 10.0
"""A caller counts as active for this time after a request."""
SHARE = 4
"""While others are active, a caller gets at most one part of this number."""
PATIENCE = 0.5, 1.0
"""The part of its time that a request waits for a slot at most; sixty that came together are not refused together."""
MAX_HOLD = 0.02
"""Seconds that a part of a large request waits for small requests of other callers, at most."""
MAX_REST = 0.25
"""Seconds that a slot of a caller with more requests than its share rests after one of them, at most."""
_caller: ContextVar[str] = ContextVar("caller", default="")


def current_caller() -> str:
    """The name of the caller whose request is running; empty outside of requests."""
    return _caller.get()


def current_turn() -> Turn | None:
    """The turn of the request that is running; None outside of requests."""
    return _turn.get()


class ActiveCallers:
    """Recent callers, the latest last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._seen: dict[str, float] = {}
        self._clock = clock

    def note(self, caller: str) -> None:
        """Remember that a caller is active."""
        now = self._clock()
        self._seen.pop(caller, None)
        self._seen[caller] = now
        while now - next(iter(self._seen.values())) > ACTIVE_SECONDS:
            del self._seen[next(iter(self._seen))]

    def is_alone(self, caller: str) -> bool:
        """True if no other caller is active."""
        latest = next((name for name in reversed(self._seen) if name != caller), None)
        return latest is None or self._clock() - self._seen[latest] > ACTIVE_SECONDS

    def share(self, caller: str, total: int, parts: int = SHARE) -> int:
        """The part of `total` that the caller may take now: everything while it is alone."""
        return total if self.is_alone(caller) else -(-total // parts)


class Turn:
    """The slot of one request, which it can lend while it waits for something outside."""

    def __init__(self, slots: FairSlots, caller: str) -> None:
        self._slots, self._caller, self._size, self._outside, self._held = slots, caller, 1, 0, True
        self._since = time.monotonic()
        self.spend_tokens: Callable[[int], bool] = lambda tokens: True
        """Charges tokens of the rewriter to the caller; False if it has too few left."""
        self.callbacks: list[Callable[[], None]] = []
        """For the end of the request, which may come long after that of its turn."""

    def end(self) -> None:
        """Give the slot back; nothing happens the second time."""
        if self._held and not self._outside:
            self._slots.leave_after_rest(self._caller, self._size, time.monotonic() - self._since)
        self._held = False

    def grow(self, size: int) -> None:
        """Count as several requests. It never waits, so more requests than slots may run for a moment."""
        size = max(size, self._size)
        if self._held and not self._outside:
            self._slots.take(self._caller, size - self._size)
        self._size = size

    def gives_way(self) -> bool:
        """True if this is one of many requests of its caller, or a large one, and a small one of another runs."""
        return self._slots.gives_way(self._caller)

    def at_next_end(self, callback: Callable[[], None]) -> None:
        """Call this when a request of any caller leaves its slot, once."""
        self._slots.at_next_leave.add(callback)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Lend the slot; coming back never waits."""
        self._outside += 1
        if self._held and self._outside == 1:
            self._slots.leave(self._caller, self._size)
        try:
            yield
        finally:
            self._outside -= 1
            if self._held and not self._outside:
                self._slots.take(self._caller, self._size)
                self._since = time.monotonic()


_turn: ContextVar[Turn | None] = ContextVar("turn", default=None)


@contextmanager
def outside() -> Iterator[None]:
    """Let other requests run while this one waits for a model or another server."""
    turn = _turn.get()
    if turn is None:
        yield
        return
    with turn.outside():
        yield


def spend_tokens(tokens: int) -> bool:
    """Charge tokens of the rewriter to the caller of the current request; False if it has too few left."""
    turn = _turn.get()
    return turn is None or turn.spend_tokens(tokens)


def grow_turn(size: int) -> None:
    """Let the current request count as several."""
    if (turn := _turn.get()) is not None:
        turn.grow(size)


def at_end(callback: Callable[[], None]) -> None:
    """Call this when the current request has ended; at once outside of requests."""
    turn = _turn.get()
    callback() if turn is None else turn.callbacks.append(callback)


class FairSlots:
    """A number of slots; callers that wait for one get it in turn."""

    def __init__(self, capacity: int, parts: int = SHARE, first_at_once: bool = False) -> None:
        """`parts`: while others are active, a caller gets one of them. `first_at_once`: a caller that has no slot gets
        one beyond the capacity, unless as many callers have some; so it does not wait for the end of a flood that was
        alone before."""
        self._capacity, self._parts, self._first_at_once, self._size = capacity, parts, first_at_once, 0
        self._running: dict[str, int] = {}
        """Slots by caller; callers without any are left out."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Callers in the order of their turns; each with its requests, oldest first."""
        self.active = ActiveCallers()
        self.at_next_leave: set[Callable[[], None]] = set()
        """Called once, when slots are given back."""

    def gives_way(self, caller: str) -> bool:
        """True if the caller takes more than one slot, or wants to, and another is content with one."""
        return not self._is_modest(caller) and any(map(self._is_modest, self._running))

    def _is_modest(self, caller: str) -> bool:
        return self._running.get(caller, 0) <= 1 and caller not in self._waiting

    def num_waiting(self, caller: str) -> int:
        """Requests of the caller that wait."""
        return len(self._waiting.get(caller, ()))

    @asynccontextmanager
    async def turn(self, caller: str, seconds: float) -> AsyncIterator[Turn]:
        """Hold a slot inside this context; a request that waits for longer than `seconds` gets 429."""
        await self.enter(caller, seconds)
        turn = Turn(self, caller)
        token, name = _turn.set(turn), _caller.set(caller)
        try:
            yield turn
        finally:
            _turn.reset(token)
            _caller.reset(name)
            turn.end()
            for callback in turn.callbacks:
                callback()

    async def enter(self, caller: str, seconds: float | None) -> None:
        """Wait for a slot, for `seconds` at most; None: for as long as it takes."""
        self.active.note(caller)
        if caller not in self._waiting and self._has_room(caller):
            self.take(caller)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(granted)
        try:
            async with asyncio.timeout(None if seconds is None else seconds * random.uniform(*PATIENCE)):
                await granted
        except BaseException as error:
            if granted.done() and not granted.cancelled():
                self.leave(caller)
            else:
                self._forget(caller, granted)
            if isinstance(error, TimeoutError):
                running = self._running.get(caller, 0)
                message = f"{running} requests of {caller} are running and {self.num_waiting(caller)} wait"
                raise overloaded(message, seconds or 1.0) from None
            raise

    def take(self, caller: str, size: int = 1) -> None:
        """Take slots, also beyond the capacity."""
        self._size += size
        self._running[caller] = self._running.get(caller, 0) + size

    def leave_after_rest(self, caller: str, size: int, seconds: float) -> None:
        """Give slots back. A caller with more requests than its share rests first, for as long as this one ran: half of
        the time is left to others."""
        if self.num_waiting(caller) and not self.active.is_alone(caller):
            asyncio.get_running_loop().call_later(min(seconds, MAX_REST), self.leave, caller, size)
        else:
            self.leave(caller, size)

    def leave(self, caller: str, size: int = 1) -> None:
        """Give slots back, to the next callers in turn that may have one."""
        self.take(caller, -size)
        if not self._running[caller]:
            del self._running[caller]
        for name in list(self._waiting):
            queue = self._waiting[name]
            if not self._has_room(name):
                continue
            granted = queue.popleft()
            self._waiting.pop(name)
            if queue:
                self._waiting[name] = queue  # its next turn comes after all others
            if not granted.done():
                granted.set_result(None)
                self.take(name)
        if self.at_next_leave:
            callbacks, self.at_next_leave = self.at_next_leave, set()
            for callback in callbacks:
                asyncio.get_running_loop().call_soon(callback)

    def _has_room(self, caller: str) -> bool:
        if self._first_at_once and caller not in self._running:
            return len(self._running) < self._capacity
        share = self.active.share(caller, self._capacity, self._parts)
        return self._size < self._capacity and self._running.get(caller, 0) < share

    def _forget(self, caller: str, granted: asyncio.Future[None]) -> None:
        queue = self._waiting.get(caller)
        if queue is not None and granted in queue:
            queue.remove(granted)
            if not queue:
                del self._waiting[caller]
