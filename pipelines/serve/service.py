"""Search and rewrite without HTTP: the usual path of a query, with a deadline for the rewriter."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from pipelines.index.defaults import default_threshold
from pipelines.search import DEPTH
from pipelines.serve.answers import SMALL, UNLIMITED, AnswerBuilder, SearchedQuery
from pipelines.serve.bounds.costs import AnswerSizes, Cost, check_size, rewrite_tokens
from pipelines.serve.bounds.fairness import outside
from pipelines.serve.calls.settings import ANY_TOOL, AccessRules
from pipelines.serve.calls.trusted_ranks import TrustedRanks
from pipelines.serve.catalogue.live_index import LiveCatalogue, Snapshot
from pipelines.serve.errors import NotAsked, Refusal, RewriteFailure
from pipelines.serve.metrics import Metrics
from pipelines.serve.reranking import ServedReranker, check_thresholds, fingerprints
from pipelines.serve.results import Timings, ToolFilter, describe_rewrite, keep_allowed, make_filter, run_together
from pipelines.serve.rewriter.dispatcher import LoadedRewriter, RewriteDispatcher, served_fusion
from pipelines.serve.schemas import search as schemas
from pipelines.serve.search_jobs import DEEPER, DetectionJob, RetrievalJob, make_batcher
from pipelines.serve.settings import ServeConfig
from pipelines.serve.tracing import span
from retrievers.types import Ranking
from rewrite.types import RewriteRequest

log = logging.getLogger("rewrite-serve")


@dataclass(frozen=True, slots=True)
class _RequestState:
    """Everything that the utterances of one request share."""

    snapshot: Snapshot
    loaded: LoadedRewriter | None
    timings: Timings
    deadline: float
    hurried: bool
    """The caller gives the rewriter less time than the server's default."""
    k: int = 1
    votes: bool = True
    is_allowed: ToolFilter | None = None


class SearchService:
    """Answers search and rewrite requests."""

    def __init__(
        self,
        config: ServeConfig,
        catalogue: LiveCatalogue,
        metrics: Metrics,
        dispatcher: RewriteDispatcher | None,
        reranker: ServedReranker | None = None,
    ) -> None:
        """`dispatcher`: None without a rewriter."""
        self._reranker = reranker
        self._config, self._catalogue, self._metrics = config, catalogue, metrics
        self.batcher = make_batcher(config.workers)
        self._dispatcher, self.trust = dispatcher, TrustedRanks(config, catalogue.current)
        self.answers = AnswerBuilder(self.trust, metrics, config.limits.answer_bytes)
        self._sizes = AnswerSizes()
        threshold = config.detection_threshold
        self._threshold = default_threshold(config.index) if threshold is None else threshold
        self._line_seconds = 0.02
        """Moving average of the time to search a rewrite's lines."""

    def estimate(self, texts: Sequence[str], k: int, format: str | None, rewrite: bool, rerank: bool = False) -> Cost:
        """Costs of a search; an answer above the limit is refused."""
        snapshot = self._catalogue.current
        mean = self._sizes.mean(snapshot, snapshot.index.tools, format)
        size = check_size(len(texts), min(k, len(snapshot.index.tools)), mean, self._config.limits.answer_bytes)
        loaded = self._dispatcher.loaded if self._dispatcher and rewrite else None
        tokens = rewrite_tokens(texts, loaded.sampling.max_tokens * loaded.sampling.answers) if loaded else 0
        if self._reranker and rerank:
            tokens += self._reranker.estimate_tokens(snapshot.search, texts, mean)
        return Cost(len(texts), size, tokens)

    def close(self) -> None:
        """Stop the threads."""
        self.batcher.close()
        self.answers.close()

    async def search(self, request: schemas.SearchRequest, access: AccessRules = ANY_TOOL) -> schemas.SearchResponse:
        """Rank tools for each utterance. If the rewriter fails, the ranking is the raw one."""
        utterances = [request.utterance] if isinstance(request.utterance, str) else request.utterance
        state = self._begin(request.deadline_ms, with_rewriter=request.rewrite != "off")
        check_thresholds(request, state.snapshot, self._reranker)
        is_allowed = await make_filter(request.filters, state.snapshot, access)
        state = replace(state, k=request.k, votes=request.votes != "off", is_allowed=is_allowed)
        not_asked = self._not_asked(request.rewrite, state.loaded)
        searches = (self._search_one(state, request, utterance, not_asked) for utterance in utterances)
        return schemas.SearchResponse(
            results=[await next(searches)] if len(utterances) == 1 else await run_together(searches),
            fingerprints=fingerprints(state.snapshot, None if not_asked else state.loaded, self._reranker),
            timings_ms=state.timings.finish(self._metrics),
        )

    def is_improved(self, request: schemas.SearchRequest) -> bool:
        """True if a rewriter or a reranker may change the raw ranking."""
        loaded = self._dispatcher.loaded if self._dispatcher else None
        reranks = self._reranker is not None and request.rerank == "auto"
        return reranks or self._not_asked(request.rewrite, loaded) is None

    async def rewrite(self, request: schemas.RewriteBody, access: AccessRules = ANY_TOOL) -> schemas.RewriteResponse:
        """Rewrite without a search; a template that shows tools gets those of the raw search."""
        if self._dispatcher is None:
            raise Refusal(404, "no_rewriter", "this server has no rewriter")
        utterances = [request.utterance] if isinstance(request.utterance, str) else request.utterance
        state = self._begin(request.deadline_ms)
        state = replace(state, is_allowed=await make_filter(None, state.snapshot, access))

        async def rewrite_one(utterance: str) -> schemas.RewriteResult:
            try:
                shows_tools = state.loaded is not None and state.loaded.template.candidates
                raw = asyncio.ensure_future(self._search_raw(state, utterance)) if shows_tools else None
                rewrite = await self._rewrite(state, utterance, raw, 0.0)
            except RewriteFailure as failure:
                return schemas.RewriteResult(rewrite=None, fallback=self._fallback(failure))
            return schemas.RewriteResult(rewrite=rewrite, fallback=self._unparseable(rewrite))

        return schemas.RewriteResponse(
            results=list(await asyncio.gather(*map(rewrite_one, utterances))),
            fingerprints=fingerprints(state.snapshot, state.loaded),
            timings_ms=state.timings.finish(self._metrics),
        )

    def _begin(self, deadline_ms: int | None, with_rewriter: bool = True) -> _RequestState:
        timings, default = Timings(), self._config.deadline_ms
        seconds = min(deadline_ms or default, self._config.max_deadline_ms) / 1000.0
        loaded = self._dispatcher.loaded if self._dispatcher and with_rewriter else None
        hurried = deadline_ms is not None and deadline_ms < default
        return _RequestState(self._catalogue.current, loaded, timings, timings.started + seconds, hurried)

    async def _search_one(
        self, state: _RequestState, request: schemas.SearchRequest, utterance: str, not_asked: NotAsked | None
    ) -> schemas.SearchResult:
        """Search one utterance. Without a rewriter nothing runs beside the raw search, and it needs no task."""
        raw: asyncio.Future[Ranking] = asyncio.get_running_loop().create_future()
        if not_asked:
            raw.set_result(await self._search_raw(state, utterance))
        else:
            raw = asyncio.ensure_future(self._search_raw(state, utterance))
        try:
            return await self._finish_one(state, request, utterance, raw, not_asked)
        finally:
            raw.cancel()

    async def _finish_one(
        self,
        state: _RequestState,
        request: schemas.SearchRequest,
        utterance: str,
        raw: asyncio.Future[Ranking],
        not_asked: NotAsked | None,
    ) -> schemas.SearchResult:
        rewrite, lines, fallback = None, list[Ranking](), None
        detection = await self._detect(state, request, utterance, raw)
        if detection is not None and not detection.needs_tool:
            reason = self._count_not_asked(not_asked or "detector")
            return schemas.SearchResult(detection=detection, rewrite=None, not_asked=reason, fallback=None, tools=[])
        fusion = served_fusion(state.loaded, forced=request.rewrite == "on")
        if not not_asked and fusion.skip_rewrite_above is not None:
            not_asked = "confident" if fusion.skips_rewrite(await asyncio.shield(raw)) else None
        if not_asked:
            self._count_not_asked(not_asked)
        else:
            try:
                rerank_seconds = self._reranker.seconds if self._reranker else 0.0
                rewrite = await self._rewrite(state, utterance, raw, 2 * self._line_seconds + rerank_seconds)
                fallback = self._unparseable(rewrite)
                lines = await self._search_lines(state, rewrite.lines)
            except RewriteFailure as failure:
                rewrite, lines, fallback = None, [], self._fallback(failure)
        ranking = await raw
        began, snapshot = time.monotonic(), state.snapshot
        reranker = self._reranker if request.rerank == "auto" else None
        is_small = isinstance(request.utterance, str) and state.k <= SMALL
        depth = UNLIMITED if reranker or state.is_allowed or self.trust.limits else state.k

        def fuse() -> Ranking:
            fused = snapshot.search.fuse(utterance, ranking, lines, depth, fusion)
            return keep_allowed(fused, state.is_allowed) if state.is_allowed else fused

        min_score = self._config.min_score if request.min_score is None else request.min_score
        least = self._config.min_probability if request.min_probability is None else request.min_probability
        query, reranked = SearchedQuery(utterance, fuse, ranking, lines, min_score, least), None
        if reranker:
            fused = fuse() if is_small else await self.answers.run(fuse)
            final, reranked = await reranker.rerank(snapshot.search, utterance, fused, state.deadline, state.timings)
            moved = fused if reranked is not None and reranked.fallback is None else None
            query = replace(query, fuse=partial(final.cut, UNLIMITED), fused=moved)
        tools = await self.answers.tools(snapshot, query, state.k, request.format, is_small)
        state.timings.add("fuse", began)
        return schemas.SearchResult(
            detection=detection, rewrite=rewrite, not_asked=not_asked, fallback=fallback, rerank=reranked, **tools
        )

    async def _detect(
        self, state: _RequestState, request: schemas.SearchRequest, utterance: str, raw: asyncio.Future[Ranking]
    ) -> schemas.DetectionOut | None:
        """Decide whether a tool is needed: after the raw search, which caches the vector, and before the rewriter."""
        if request.detect == "off" or not state.snapshot.search.has_detector:
            return None
        await asyncio.shield(raw)
        began = time.monotonic()
        threshold = self._threshold if request.detection_threshold is None else request.detection_threshold
        [detection] = await self.batcher.run(DetectionJob(state.snapshot.search, threshold), [utterance])
        state.timings.add("detect", began)
        return schemas.DetectionOut(**asdict(detection)) if detection is not None else None

    async def _search_raw(self, state: _RequestState, utterance: str) -> Ranking:
        began = time.monotonic()
        with span("raw"):
            [ranking] = await self._retrieve(state, [utterance], max(self.trust.depth(state.k), DEPTH))
        state.timings.add("raw", began)
        return ranking

    async def _rewrite(
        self, state: _RequestState, utterance: str, raw: asyncio.Future[Ranking] | None, reserve: float
    ) -> schemas.RewriteOut:
        """The rewrite, at least `reserve` seconds before the deadline."""
        assert self._dispatcher is not None
        if state.loaded is None:
            raise self._dispatcher.not_running()
        began, ask, template = time.monotonic(), RewriteRequest(utterance), state.loaded.template
        if template.candidates and raw is not None:
            [ask] = state.snapshot.search.rewrite_inputs([utterance], [await asyncio.shield(raw)], template)
        try:
            with span("rewrite"):
                left = state.deadline - reserve - time.monotonic()
                with outside():
                    rewrite, cached = await self._dispatcher.rewrite(state.loaded, ask, left, state.hurried)
        except (RewriteFailure, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("the rewriter failed")
            raise RewriteFailure("failed") from error
        finally:
            state.timings.add("rewrite", began)
        status = template.outcome(rewrite, utterance)
        self._metrics.rewrites.labels(status).inc()
        return describe_rewrite(rewrite, status, cached)

    async def _search_lines(self, state: _RequestState, lines: Sequence[str]) -> list[Ranking]:
        """One ranking per line, if there is time left."""
        began = time.monotonic()
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + state.deadline - began):
                with span("lists"):
                    rankings = await self._retrieve(state, lines, DEPTH)
        except TimeoutError:
            raise RewriteFailure("deadline") from None
        except Refusal:
            raise RewriteFailure("busy") from None
        if lines:
            state.timings.add("lists", began)
            self._line_seconds += 0.1 * (time.monotonic() - began - self._line_seconds)
        return rankings

    async def _retrieve(self, state: _RequestState, texts: Sequence[str], depth: int) -> list[Ranking]:
        """One ranking of allowed tools per text; with a filter, searches deeper until there are enough tools."""
        search, num_tools, searched = state.snapshot.search, len(state.snapshot.index.tools), depth
        while True:
            rankings = await self.batcher.run(RetrievalJob(search, searched, state.votes), texts)
            if state.is_allowed is None:
                return rankings
            kept = await self.answers.keep_allowed(rankings, state.is_allowed)
            if searched >= num_tools or all(len(ranking) >= depth for ranking in kept):
                return [ranking.cut(depth) for ranking in kept]
            searched = min(num_tools, searched * DEEPER)

    def _not_asked(self, mode: str, loaded: LoadedRewriter | None) -> NotAsked | None:
        """The reason not to ask the rewriter about any utterance of a request."""
        if self._dispatcher is None:
            return "no_rewriter"
        if mode == "off":
            return "off"
        fusion = loaded.fusion if loaded else self._dispatcher.fusion
        return "card" if mode == "auto" and fusion.raw >= 1 else None

    def _count_not_asked(self, reason: NotAsked) -> NotAsked:
        self._metrics.not_asked.labels(reason).inc()
        return reason

    def _fallback(self, failure: RewriteFailure) -> schemas.Fallback:
        self._metrics.fallbacks.labels(failure.reason).inc()
        return schemas.Fallback(reason=failure.reason)

    def _unparseable(self, rewrite: schemas.RewriteOut) -> schemas.Fallback | None:
        return self._fallback(RewriteFailure("unparseable")) if rewrite.status == "unparseable" else None
