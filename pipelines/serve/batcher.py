"""Batch work for a few threads: items that arrive while all threads are busy form the next batch.

Callers take turns. While several are active, a batch has as many items of each, and none uses the last free thread.
Parts of large requests wait while a small request of another caller runs: they would share Python's lock with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from pipelines.serve.bounds.fairness import MAX_HOLD, SHARE, ActiveCallers, Turn, current_caller, current_turn
from pipelines.serve.errors import overloaded

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _BatchJob(Generic[Key, Item, Result]):
    caller: str
    key: Key
    items: Sequence[Item]
    future: asyncio.Future[list[Result]]
    turn: Turn | None
    is_held: bool | None = None
    """True while it waits for small requests of others; None: not yet."""


class Batcher(Generic[Key, Item, Result]):
    """Runs `work(key, items)`, which returns one result per item; items of the same key share a batch.

    A job never waits for others to join its batch.
    """

    def __init__(
        self,
        work: Callable[[Key, Sequence[Item]], list[Result]],
        threads: int,
        batch_size: int,
        max_waiting: int,
        weigh: Callable[[Item], int] = lambda item: 1,
    ) -> None:
        """`max_waiting`: items of a caller that may wait, a quarter while others are active; further ones get 429.
        `weigh`: how many items of a batch a large one counts as."""
        self._work, self._threads, self._weigh = work, threads, weigh
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="batch")
        self._batch_size, self._max_waiting = batch_size, max_waiting
        self._jobs: dict[str, deque[_BatchJob[Key, Item, Result]]] = {}
        """By caller, in the order of their turns."""
        self._running: Counter[str] = Counter()
        """Running batches by caller."""
        self._num_running = 0
        self._active = ActiveCallers()
        self._waiting: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """Items that wait."""
        return self._waiting.total()

    async def run(self, key: Key, items: Sequence[Item]) -> list[Result]:
        """One result per item."""
        if not items:
            return []
        caller = current_caller()
        self._active.note(caller)
        if self._waiting[caller] + len(items) > self._active.share(caller, self._max_waiting):
            raise overloaded("too many searches are waiting")
        job = _BatchJob(caller, key, items, asyncio.get_running_loop().create_future(), current_turn())
        self._jobs.setdefault(caller, deque()).append(job)
        self._waiting[caller] += len(items)
        self._start_batches()
        return await job.future

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_batches(self) -> None:
        """Start as many batches as there are threads for."""
        while self._num_running < self._threads and (jobs := self._next_batch()):
            self._num_running += 1
            self._running.update({job.caller for job in jobs})
            self._pool.submit(self._run_batch, jobs, asyncio.get_running_loop())

    def _run_batch(self, jobs: list[_BatchJob[Key, Item, Result]], loop: asyncio.AbstractEventLoop) -> None:
        """Work in a thread; one callback on the loop hands out the results, where futures of it would need three."""
        results, error = list[Result](), None
        try:
            results = self._work(jobs[0].key, [item for job in jobs for item in job.items])
        except BaseException as failure:
            error = failure
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._finish_batch, jobs, results, error)

    def _next_batch(self) -> list[_BatchJob[Key, Item, Result]]:
        """One job of each caller in turn, with the key of the first; then another of each, while all have more."""
        ready = [caller for caller in list(self._jobs) if self._may_run(caller) and self._is_due(caller)]
        first = self._first(ready[0]) if ready else None
        if first is None:
            return []
        ready = [caller for caller in ready if (job := self._first(caller)) and job.key == first.key]
        is_shared = len(ready) > 1 or self._active.is_alone(first.caller)
        size = self._batch_size if is_shared else -(-self._batch_size // SHARE)
        batch: list[_BatchJob[Key, Item, Result]] = []
        count = 0
        while True:
            jobs = [job for caller in ready if (job := self._first(caller)) and job.key == first.key]
            if len(jobs) < len(ready):
                return batch  # a caller with few items does not wait for the many of another
            for job in jobs:
                weight = sum(map(self._weigh, job.items))
                if batch and count + weight > size:
                    return batch
                self._take(job)
                batch.append(job)
                count += weight

    def _may_run(self, caller: str) -> bool:
        """True if the caller may start a batch: while others are active, it leaves a thread to them."""
        is_free = self._threads == 1 or self._active.is_alone(caller)
        return self._running[caller] < (self._threads if is_free else self._threads - 1)

    def _is_due(self, caller: str) -> bool:
        """True if the caller has a job that need not wait for small requests of others."""
        job = self._first(caller)
        if job is None or job.turn is None or not job.turn.gives_way():
            return job is not None
        if job.is_held is None:
            job.is_held = True
            asyncio.get_running_loop().call_later(MAX_HOLD, self._end_hold, job)
        if job.is_held:
            job.turn.at_next_end(self._start_batches)
        return not job.is_held

    def _end_hold(self, job: _BatchJob[Key, Item, Result]) -> None:
        job.is_held = False
        self._start_batches()

    def _first(self, caller: str) -> _BatchJob[Key, Item, Result] | None:
        """The caller's oldest job; cancelled ones are dropped."""
        queue = self._jobs.get(caller, deque())
        while queue and queue[0].future.done():
            self._take(queue[0])
        return queue[0] if queue else None

    def _take(self, job: _BatchJob[Key, Item, Result]) -> None:
        """Remove a caller's oldest job, and let the next turn be that of the others."""
        queue = self._jobs.pop(job.caller)
        queue.popleft()
        self._waiting[job.caller] -= len(job.items)
        if queue:
            self._jobs[job.caller] = queue
        else:
            del self._waiting[job.caller]

    def _finish_batch(
        self, jobs: list[_BatchJob[Key, Item, Result]], results: Sequence[Result], error: BaseException | None
    ) -> None:
        self._num_running -= 1
        self._running.subtract(callers := {job.caller for job in jobs})
        for caller in callers:
            if not self._running[caller]:
                del self._running[caller]
        start = 0
        for job in jobs:
            end = start + len(job.items)
            if job.future.done():
                pass  # cancelled
            elif error is not None:
                job.future.set_exception(error)
            else:
                job.future.set_result(list(results[start:end]))
            start = end
        self._start_batches()
