"""Batch searches: texts that arrive while the search threads are busy form the next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pipelines.search import ToolSearch
from pipelines.serve.errors import overloaded
from retrievers.types import Ranking

BATCH_SIZE = 16
"""Texts per batch; larger batches need more padding than they save."""
MAX_WAITING = 1_024
"""Texts that may wait; further ones get 429."""


@dataclass(slots=True, eq=False)
class _SearchJob:
    search: ToolSearch
    texts: Sequence[str]
    depth: int
    future: asyncio.Future[list[Ranking]]


class Batcher:
    """Runs searches in a few threads. A search never waits for others to join its batch."""

    def __init__(self, workers: int, batch_size: int = BATCH_SIZE, max_waiting: int = MAX_WAITING) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="search")
        self._idle, self._batch_size, self._max_waiting = workers, batch_size, max_waiting
        self._jobs: deque[_SearchJob] = deque()
        self.waiting = 0

    async def search(self, search: ToolSearch, texts: Sequence[str], depth: int) -> list[Ranking]:
        """One ranking of `depth` tools per text; 429 if too many texts wait."""
        if not texts:
            return []
        if self.waiting + len(texts) > self._max_waiting:
            raise overloaded("too many searches are waiting")
        job = _SearchJob(search, texts, depth, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self.waiting += len(texts)
        self._start_batches()
        return await job.future

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_batches(self) -> None:
        while self._idle and (jobs := self._next_batch()):
            self._idle -= 1
            texts = [text for job in jobs for text in job.texts]
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._pool, jobs[0].search.retrieve, texts, jobs[0].depth)
            running.add_done_callback(lambda done, jobs=jobs: self._finish_batch(jobs, done))  # type: ignore[misc]

    def _next_batch(self) -> list[_SearchJob]:
        """The oldest job, and the next ones that can be searched together with it."""
        batch: list[_SearchJob] = []
        count = 0
        while self._jobs:
            job = self._jobs[0]
            if batch and (
                job.search is not batch[0].search
                or job.depth != batch[0].depth
                or count + len(job.texts) > self._batch_size
            ):
                break
            self._jobs.popleft()
            self.waiting -= len(job.texts)
            if not job.future.done():  # done: cancelled
                batch.append(job)
                count += len(job.texts)
        return batch

    def _finish_batch(self, jobs: list[_SearchJob], done: asyncio.Future[list[Ranking]]) -> None:
        self._idle += 1
        error = None if done.cancelled() else done.exception()
        rankings = iter([] if done.cancelled() or error else done.result())
        for job in jobs:
            share = [ranking for _, ranking in zip(job.texts, rankings, strict=False)]
            if job.future.done():
                continue
            if error is not None:
                job.future.set_exception(error)
            elif done.cancelled():
                job.future.cancel()
            else:
                job.future.set_result(share)
        self._start_batches()
