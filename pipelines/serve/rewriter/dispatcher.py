"""Send one utterance to an endpoint that has the rewriter: cache, token budget, queue, circuit breakers, failover."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pipelines.serve.bounds.costs import rewrite_tokens
from pipelines.serve.bounds.fairness import FairSlots, current_caller, spend_tokens
from pipelines.serve.errors import Reason, RewriteFailure
from pipelines.serve.metrics import Metrics
from pipelines.serve.rewriter.cache import RewriteCache
from pipelines.serve.rewriter.prompt_budget import PromptBudget
from retrievers.settings import RewriteFusion
from rewrite.rewriter import fit_prompts
from rewrite.settings import Sampling
from rewrite.template import Template
from rewrite.types import Answer, Prompt, Rewrite, RewriteRequest
from rewrite.votes import merge_answers

if TYPE_CHECKING:
    from pipelines.serve.rewriter.endpoints import Endpoint

CACHE_SIZE = 10_000
log = logging.getLogger("rewrite-serve")


@dataclass(frozen=True, slots=True)
class LoadedRewriter:
    """The rewriter in use; a newer one replaces the whole object."""

    model: str
    """Its name at the endpoints; differs between adapters, but not between full models."""
    template: Template
    budget: PromptBudget
    sampling: Sampling
    phrasing: str
    fusion: RewriteFusion
    facts: dict[str, object] = field(default_factory=dict)
    """Its description, with the fingerprint."""


class RewriteDispatcher:
    """Asks an endpoint that has the rewriter."""

    def __init__(self, concurrency: int, metrics: Metrics, fusion: RewriteFusion) -> None:
        self.loaded: LoadedRewriter | None = None
        self.fusion = fusion
        """That of the newest rewriter, also before it is loaded."""
        self.endpoints: Sequence[Endpoint] = ()
        self.failure = ""
        """The reason why the model cannot start and is not tried again."""
        self.in_use: Counter[str] = Counter()
        """Models with pending requests; not unloaded yet."""
        self._cache, self._metrics = RewriteCache(CACHE_SIZE), metrics
        self._slots, self._max_waiting = FairSlots(concurrency), concurrency
        self._next = 0

    async def rewrite(
        self, loaded: LoadedRewriter, ask: RewriteRequest, seconds: float, hurried: bool = False
    ) -> tuple[Rewrite, bool]:
        """The rewrite of one utterance within `seconds`, and whether it is cached. Raises RewriteFailure.

        `hurried`: the caller allows less time than the server's default, so a timeout does not count against the model.
        """
        self.in_use[loaded.model] += 1
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                return await self._rewrite(loaded, ask, hurried)
        except TimeoutError:
            raise RewriteFailure("deadline") from None
        finally:
            self.in_use[loaded.model] -= 1

    async def _rewrite(self, loaded: LoadedRewriter, ask: RewriteRequest, hurried: bool) -> tuple[Rewrite, bool]:
        prompt, cut = await self._fit(loaded, ask)
        weights = f"{loaded.model} {loaded.facts.get('fingerprint')}"
        key = RewriteCache.key(weights, f"{loaded.template}", loaded.sampling, prompt)
        cached = self._cache.get(key)
        self._metrics.cache.labels("hit" if cached else "miss").inc()
        if cached is not None:
            return replace(cached, cut=cut), True
        caller, slots = current_caller(), self._slots
        if self.waiting(caller) >= slots.active.share(caller, self._max_waiting):
            raise RewriteFailure("busy")
        text = "".join(message["content"] for message in prompt)
        if not spend_tokens(rewrite_tokens([text], loaded.sampling.max_tokens * loaded.sampling.answers)):
            raise RewriteFailure("budget")
        await slots.enter(caller, None)
        try:
            answer = await self._answer(loaded, prompt, hurried)
        finally:
            slots.leave(caller)
        rewrite = replace(loaded.template.parse(answer), cut=cut)
        self._cache.put(key, rewrite)
        return rewrite, False

    def waiting(self, caller: str) -> int:
        """Utterances of a caller that wait for a place at the model."""
        return self._slots.num_waiting(caller)

    def not_running(self) -> RewriteFailure:
        """The failure of a request while no endpoint has the rewriter."""
        return RewriteFailure("cannot_start" if self.failure else "starting")

    async def _fit(self, loaded: LoadedRewriter, ask: RewriteRequest) -> tuple[Prompt, int]:
        """The prompt, and the number of candidates cut to make it fit."""
        prompt: Prompt | None = loaded.template.render(ask)
        cut = 0
        if prompt is not None and not loaded.budget.surely_fits(prompt):
            try:
                [(prompt, cut)] = await asyncio.to_thread(
                    fit_prompts, loaded.template, loaded.budget, [ask], loaded.sampling.max_tokens
                )
            except ConnectionError as error:
                raise RewriteFailure("unavailable", "tokens cannot be counted") from error
        if prompt is None:
            raise RewriteFailure("too_long", blame_model=False)
        return prompt, cut

    async def _answer(self, loaded: LoadedRewriter, prompt: Prompt, hurried: bool) -> Answer:
        """The answer of the first endpoint that gives one; each is asked at most once."""
        able = [endpoint for endpoint in self.endpoints if endpoint.serves(loaded.model)]
        if not able:
            raise self.not_running()
        self._next += 1
        first = self._next % len(able)
        reason: Reason = "circuit_open"
        for endpoint in able[first:] + able[:first]:
            breaker = endpoint.breaker
            ticket = breaker.enter()
            if not ticket:
                continue
            try:
                answers = await endpoint.answer(loaded.model, prompt, loaded.sampling)
                breaker.succeeded()
                return merge_answers(loaded.template, answers, loaded.sampling)
            except BaseException as error:
                failed = isinstance(error, RewriteFailure) and error.blame_model
                timed_out = isinstance(error, asyncio.CancelledError) and not hurried
                (breaker.failed if failed or timed_out else breaker.undecided)(ticket)
                if not isinstance(error, RewriteFailure) or not failed:
                    raise
                reason = error.reason
                level = logging.DEBUG if breaker.state == "closed" else logging.WARNING
                log.log(level, "%s: %s; circuit %s", endpoint.name, error, breaker.state)
            finally:
                self._metrics.breaker.labels(endpoint.name).set(breaker.state != "closed")
        raise RewriteFailure(reason)


def served_fusion(loaded: LoadedRewriter | None, forced: bool) -> RewriteFusion:
    """The fusion of the rewriter's card; a card that advises against rewriting gives way to the default."""
    fusion = loaded.fusion if loaded else RewriteFusion()
    fusion = replace(fusion, skip_rewrite_above=None) if forced else fusion
    return fusion if fusion.raw < 1 else RewriteFusion()
