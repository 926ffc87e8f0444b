"""Batch work for a few threads: items that arrive while all threads are busy form the next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from pipelines.serve.errors import overloaded

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _BatchJob(Generic[Key, Item, Result]):
    key: Key
    items: Sequence[Item]
    future: asyncio.Future[list[Result]]


class Batcher(Generic[Key, Item, Result]):
    """Runs `work(key, items)`, which returns one result per item; items of the same key share a batch.

    A job never waits for others to join its batch.
    """

    def __init__(
        self, work: Callable[[Key, Sequence[Item]], list[Result]], threads: int, batch_size: int, max_waiting: int
    ) -> None:
        """`max_waiting`: items that may wait; further ones get 429."""
        self._work, self._idle = work, threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="batch")
        self._batch_size, self._max_waiting = batch_size, max_waiting
        self._jobs: deque[_BatchJob[Key, Item, Result]] = deque()
        self.waiting = 0

    async def run(self, key: Key, items: Sequence[Item]) -> list[Result]:
        """One result per item."""
        if not items:
            return []
        if self.waiting + len(items) > self._max_waiting:
            raise overloaded("too many searches are waiting")
        job = _BatchJob(key, items, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self.waiting += len(items)
        self._start_batches()
        return await job.future

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_batches(self) -> None:
        while self._idle and (jobs := self._next_batch()):
            self._idle -= 1
            items = [item for job in jobs for item in job.items]
            running = asyncio.get_running_loop().run_in_executor(self._pool, self._work, jobs[0].key, items)
            running.add_done_callback(lambda done, jobs=jobs: self._finish_batch(jobs, done))  # type: ignore[misc]

    def _next_batch(self) -> list[_BatchJob[Key, Item, Result]]:
        """The oldest job, and the next ones that fit into its batch."""
        batch: list[_BatchJob[Key, Item, Result]] = []
        count = 0
        while self._jobs:
            job = self._jobs[0]
            if batch and (job.key != batch[0].key or count + len(job.items) > self._batch_size):
                break
            self._jobs.popleft()
            self.waiting -= len(job.items)
            if not job.future.done():  # done: cancelled
                batch.append(job)
                count += len(job.items)
        return batch

    def _finish_batch(self, jobs: list[_BatchJob[Key, Item, Result]], done: asyncio.Future[list[Result]]) -> None:
        self._idle += 1
        error = None if done.cancelled() else done.exception()
        results = iter([] if done.cancelled() or error else done.result())
        for job in jobs:
            share = [result for _, result in zip(job.items, results, strict=False)]
            if job.future.done():
                continue
            if error is not None:
                job.future.set_exception(error)
            elif done.cancelled():
                job.future.cancel()
            else:
                job.future.set_result(share)
        self._start_batches()
