"""One utterance to the model and back, in time: cache, room, queue, breakers, the next server where one fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pipelines.serve.errors import Reason, Trouble
from pipelines.serve.metrics import Metrics
from pipelines.serve.rewriter.cache import RewriteCache
from pipelines.serve.rewriter.endpoints import Endpoint
from pipelines.serve.rewriter.prompt_budget import QuickRoom
from retrievers.settings import RewriteFusion
from rewrite.rewriter import fit_prompts
from rewrite.settings import Sampling
from rewrite.template import Template
from rewrite.types import Answer, Prompt, Rewrite, RewriteRequest
from rewrite.votes import merge_answers

log = logging.getLogger("rewrite-serve")
_LOUD = {"closed": logging.DEBUG, "open": logging.WARNING, "half-open": logging.WARNING}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A rewriter as it is asked now; a newer one takes its place whole."""

    model: str
    """The name by which endpoints know it; it tells an adapter's weights, and nothing of a whole model's."""
    template: Template
    room: QuickRoom
    sampling: Sampling
    phrasing: str
    fusion: RewriteFusion
    facts: dict[str, object] = field(default_factory=dict)
    """What it is made of, for those who want to know."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What came back."""

    rewrite: Rewrite
    cached: bool
    seconds: float


class Rewriting:
    """Asks whichever endpoint has the rewriter."""

    def __init__(self, concurrency: int, cache: int, metrics: Metrics) -> None:
        self.loaded: Loaded | None = None
        self.endpoints: Sequence[Endpoint] = ()
        self.in_use: Counter[str] = Counter()
        """Models that somebody waits for, so that none is taken away under him."""
        self._cache, self._metrics = RewriteCache(cache), metrics
        self._turns, self._most_waiting, self._waiting = asyncio.Semaphore(concurrency), concurrency, 0
        self._next = 0

    async def rewrite(self, loaded: Loaded, ask: RewriteRequest, seconds: float, hurried: bool = False) -> Rewritten:
        """The rewrite of one utterance, or Trouble with the reason; never later than `seconds` from now.

        `hurried`: the caller gives less time than is usual here, so that its end says nothing about the model.
        """
        started = time.monotonic()
        self.in_use[loaded.model] += 1
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                found, cached = await self._in_time(loaded, ask, hurried)
        except TimeoutError:
            raise Trouble("deadline") from None
        finally:
            self.in_use[loaded.model] -= 1
        return Rewritten(found, cached, time.monotonic() - started)

    async def _in_time(self, loaded: Loaded, ask: RewriteRequest, hurried: bool) -> tuple[Rewrite, bool]:
        prompt, cut = await self._fitted(loaded, ask)
        weights = f"{loaded.model} {loaded.facts.get('fingerprint')}"
        key = RewriteCache.key(weights, f"{loaded.template}", loaded.sampling, prompt)
        known = self._cache.get(key)
        self._metrics.cache.labels("hit" if known else "miss").inc()
        if known is not None:
            return replace(known, cut=cut), True
        if self._waiting >= self._most_waiting:
            raise Trouble("busy")
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            answer = await self._answer(loaded, prompt, hurried)
        finally:
            self._turns.release()
        found = replace(loaded.template.parse(answer), cut=cut)
        self._cache.put(key, found)
        return found, False

    async def _fitted(self, loaded: Loaded, ask: RewriteRequest) -> tuple[Prompt, int]:
        """The prompt, with as many candidates cut as it takes."""
        prompt: Prompt | None = loaded.template.render(ask)
        cut = 0
        if prompt is not None and not loaded.room.surely(prompt):
            try:
                [(prompt, cut)] = await asyncio.to_thread(
                    fit_prompts, loaded.template, loaded.room, [ask], loaded.sampling.max_tokens
                )
            except ConnectionError as error:
                raise Trouble("unavailable", "nobody counts tokens") from error
        if prompt is None:
            raise Trouble("too_long", blame=False)
        return prompt, cut

    async def _answer(self, loaded: Loaded, prompt: Prompt, hurried: bool) -> Answer:
        """What the first endpoint answers that does; each is asked once."""
        able = [each for each in self.endpoints if each.serves(loaded.model)]
        if not able:
            raise Trouble("starting")
        self._next += 1
        first = self._next % len(able)
        reason: Reason = "circuit_open"
        for endpoint in able[first:] + able[:first]:
            ticket = endpoint.breaker.enter()
            if not ticket:
                continue
            decided = False
            try:
                answers = await endpoint.answers(loaded.model, prompt, loaded.sampling)
                endpoint.breaker.succeeded()
                decided = True
                return merge_answers(loaded.template, answers, loaded.sampling)
            except Trouble as trouble:
                if not trouble.blame:
                    raise
                endpoint.breaker.failed(ticket)
                decided, reason = True, trouble.reason
                log.log(
                    _LOUD[endpoint.breaker.state], "%s: %s; circuit %s", endpoint.name, trouble, endpoint.breaker.state
                )
            except asyncio.CancelledError:
                if not hurried:  # its time is over
                    endpoint.breaker.failed(ticket)
                    decided = True
                raise
            finally:
                if not decided:
                    endpoint.breaker.undecided(ticket)
                self._metrics.breaker.labels(endpoint.name).set(endpoint.breaker.state != "closed")
        raise Trouble(reason)
