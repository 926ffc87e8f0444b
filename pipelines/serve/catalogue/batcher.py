"""Retrieval in few threads: what is asked while they are busy is searched together next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pipelines.search import ToolSearch
from pipelines.serve.errors import overloaded
from retrievers.types import Ranking


@dataclass(slots=True, eq=False)
class _Job:
    search: ToolSearch
    texts: Sequence[str]
    depth: int
    done: asyncio.Future[list[Ranking]]


class Batcher:
    """Nobody waits for company: a batch is whatever has come together while the threads were at work."""

    def __init__(self, workers: int, batch: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="search")
        self._idle, self._batch, self._most = workers, batch, waiting
        self._jobs: deque[_Job] = deque()
        self.waiting = 0

    async def ask(self, search: ToolSearch, texts: Sequence[str], depth: int) -> list[Ranking]:
        """One ranking a text, `depth` places each. Refused where too many texts wait already."""
        if not texts:
            return []
        if self.waiting + len(texts) > self._most:
            raise overloaded("too many searches wait already")
        loop = asyncio.get_running_loop()
        job = _Job(search, texts, depth, loop.create_future())
        self._jobs.append(job)
        self.waiting += len(texts)
        self._start(loop)
        return await job.done

    def close(self) -> None:
        """Lets the threads go."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._idle and (jobs := self._next()):
            self._idle -= 1
            texts = [text for job in jobs for text in job.texts]
            running = loop.run_in_executor(self._pool, jobs[0].search.retrieve, texts, jobs[0].depth)
            running.add_done_callback(lambda ended, jobs=jobs: self._finish(loop, jobs, ended))  # type: ignore[misc]

    def _next(self) -> list[_Job]:
        """The oldest job, and those behind it that can be searched with it."""
        chosen: list[_Job] = []
        count = 0
        while self._jobs:
            job = self._jobs[0]
            fits = not chosen or (
                job.search is chosen[0].search
                and job.depth == chosen[0].depth
                and count + len(job.texts) <= self._batch
            )
            if not fits:
                break
            self._jobs.popleft()
            self.waiting -= len(job.texts)
            if not job.done.done():  # nobody waits for a cancelled one
                chosen.append(job)
                count += len(job.texts)
        return chosen

    def _finish(self, loop: asyncio.AbstractEventLoop, jobs: list[_Job], ended: asyncio.Future[list[Ranking]]) -> None:
        self._idle += 1
        error = None if ended.cancelled() else ended.exception()
        rankings = iter([] if ended.cancelled() or error else ended.result())
        for job in jobs:
            share = [next(rankings) for _ in job.texts] if not error and not ended.cancelled() else []
            if job.done.done():
                continue
            if error is not None:
                job.done.set_exception(error)
            elif ended.cancelled():
                job.done.cancel()
            else:
                job.done.set_result(share)
        self._start(loop)
