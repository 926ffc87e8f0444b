"""What the server does, without HTTP: the same path of a query as everywhere, raced against a deadline."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from pipelines.detection import Detection
from pipelines.search import DEPTH
from pipelines.serve.answers import Timings, rewrite_on_wire, tools_on_wire
from pipelines.serve.catalogue.batcher import Batcher
from pipelines.serve.catalogue.filters import Allowed, allowed_by, only
from pipelines.serve.catalogue.live_index import LiveCatalogue, Snapshot
from pipelines.serve.errors import Refusal, Trouble
from pipelines.serve.formats.definitions import Pasting
from pipelines.serve.metrics import Metrics
from pipelines.serve.rewriter.rewriting import Loaded, Rewriting, Rewritten
from pipelines.serve.schemas import search as wire
from pipelines.serve.tracing import span
from retrievers.settings import RewriteFusion
from retrievers.trust.tiers import TrustSettings, guarded
from retrievers.types import Ranking
from rewrite.types import RewriteRequest

ALL = 1 << 30
"""More places than any ranking has."""
log = logging.getLogger("rewrite-serve")


@dataclass(frozen=True, slots=True)
class _Task:
    """One request's search: everything that does not change between its utterances."""

    snapshot: Snapshot
    loaded: Loaded | None
    k: int
    deadline: float
    hurried: bool
    """The caller gives the rewriter less time than is usual here."""
    allowed: Allowed | None
    timings: Timings
    forced: bool = False
    """The caller wants a rewrite of every utterance, however sure the raw one is."""
    format: str | None = None
    detecting: bool = False
    threshold: float | None = None


class SearchService:
    """Searches and rewrites."""

    def __init__(
        self, catalogue: LiveCatalogue, batcher: Batcher, metrics: Metrics, deadline_ms: int, longest_ms: int
    ) -> None:
        self.catalogue, self.metrics = catalogue, metrics
        self.rewriting: Rewriting | None = None
        """None: there is no rewriter here."""
        self.trust = TrustSettings()
        self.least_probability: float | None = None
        self._batcher, self._deadline_ms, self._longest_ms = batcher, deadline_ms, longest_ms
        self._lists_seconds = 0.02
        self._pasting = Pasting()

    async def search(self, request: wire.SearchRequest) -> wire.SearchResponse:
        """Ranked tools for each utterance. Whatever befalls the rewriter, the raw ranking comes."""
        utterances = [request.utterance] if isinstance(request.utterance, str) else request.utterance
        timings, snapshot = Timings(), self.catalogue.current
        task = _Task(
            snapshot,
            self.rewriting.loaded if self.rewriting and request.rewrite != "off" else None,
            request.k,
            timings.started + self._budget(request.deadline_ms),
            self._hurried(request.deadline_ms),
            await allowed_by(request.filters, snapshot),
            timings,
            request.rewrite == "on",
            request.format,
            request.detect == "auto",
            self.least_probability if request.least_probability is None else request.least_probability,
        )
        asked = self._wants_rewrite(request.rewrite, task.loaded)
        raw = [asyncio.ensure_future(self._raw(task, utterance)) for utterance in utterances]
        try:
            results = await asyncio.gather(
                *(self._one(task, text, each, asked) for text, each in zip(utterances, raw, strict=True))
            )
        finally:
            for each in raw:
                each.cancel()
        return wire.SearchResponse(
            results=list(results),
            fingerprints=self.fingerprints(task.snapshot, task.loaded if asked else None),
            timings_ms=timings.milliseconds(self.metrics),
        )

    async def rewrite(self, request: wire.RewriteRequest) -> wire.RewriteResponse:
        """Rewrites without a search; templates that show tools are shown those of the raw query."""
        if self.rewriting is None:
            raise Refusal(404, "no_rewriter", "this server has no rewriter")
        utterances = [request.utterance] if isinstance(request.utterance, str) else request.utterance
        timings, snapshot, loaded = Timings(), self.catalogue.current, self.rewriting.loaded
        deadline = timings.started + self._budget(request.deadline_ms)
        task = _Task(snapshot, loaded, 1, deadline, self._hurried(request.deadline_ms), None, timings)

        async def one(utterance: str) -> wire.RewriteResult:
            try:
                shows = loaded is not None and loaded.template.candidates
                raw = asyncio.ensure_future(self._raw(task, utterance)) if shows else None
                rewritten = await self._rewrite(task, utterance, raw, 0.0)
            except Trouble as trouble:
                return wire.RewriteResult(rewrite=None, fallback=self._fallback(trouble))
            fallback = self._unusable(rewritten)
            return wire.RewriteResult(rewrite=rewrite_on_wire(rewritten), fallback=fallback)

        results = await asyncio.gather(*map(one, utterances))
        return wire.RewriteResponse(
            results=list(results),
            fingerprints=self.fingerprints(snapshot, loaded),
            timings_ms=timings.milliseconds(self.metrics),
        )

    def fingerprints(self, snapshot: Snapshot, loaded: Loaded | None) -> wire.Fingerprints:
        """What exactly answers."""
        template = loaded.template if loaded else None
        return wire.Fingerprints(
            index=snapshot.index.fingerprint,
            retriever=snapshot.search.fingerprint,
            rewriter=str(loaded.facts.get("fingerprint") or loaded.model) if loaded else None,
            template=f"{template.name} {template.version}" if template else None,
        )

    async def _one(self, task: _Task, utterance: str, raw: asyncio.Future[Ranking], asked: bool) -> wire.SearchResult:
        rewritten, lists, fallback = None, list[Ranking](), None
        verdict = await self._verdict(task, utterance, raw)
        if verdict is not None and not verdict.needs_tool:
            return wire.SearchResult(detection=_told(verdict), rewrite=None, fallback=None, tools=[])
        fusion = _fusion(task)
        if asked and fusion.skip_rewrite_above is not None:
            asked = not fusion.skips_rewrite(await asyncio.shield(raw))
        if asked:
            try:
                rewritten = await self._rewrite(task, utterance, raw, 2 * self._lists_seconds)
                fallback = self._unusable(rewritten)
                lists = await self._lists(task, rewritten.rewrite.lines)
            except Trouble as trouble:
                rewritten, lists, fallback = None, [], self._fallback(trouble)
        ranking = await raw
        began = time.monotonic()
        search = task.snapshot.search
        depth = ALL if task.allowed or self.trust.ranks else task.k
        fused = search.fuse(utterance, ranking, lists, depth, fusion)
        if task.allowed:
            fused = only(fused, task.allowed)
        fused = guarded(fused, task.k, lambda tool: task.snapshot.index.tools[tool].provider, self.trust)
        tools = tools_on_wire(task.snapshot, fused, ranking, lists)
        task.timings.add("fuse", began)
        return wire.SearchResult(
            detection=_told(verdict),
            rewrite=rewrite_on_wire(rewritten) if rewritten else None,
            fallback=fallback,
            tools=tools,
            definitions=await self._pasting.of(task.snapshot, task.format, fused.ids),
        )

    async def _verdict(self, task: _Task, utterance: str, raw: asyncio.Future[Ranking]) -> Detection | None:
        """Does it need a tool? Asked after the raw search, whose vector is still known, and before the rewriter."""
        if not task.detecting or not task.snapshot.search.has_detector:
            return None
        await asyncio.shield(raw)
        began = time.monotonic()
        verdicts = await asyncio.to_thread(task.snapshot.search.detect, [utterance], task.threshold)
        task.timings.add("detect", began)
        return verdicts[0]

    async def _raw(self, task: _Task, utterance: str) -> Ranking:
        began = time.monotonic()
        with span("raw"):
            [ranking] = await self._ask(task, [utterance], max(self.trust.depth(task.k), DEPTH))
        task.timings.add("raw", began)
        return ranking

    async def _rewrite(
        self, task: _Task, utterance: str, raw: asyncio.Future[Ranking] | None, reserve: float
    ) -> Rewritten:
        """The rewrite, early enough to be searched for."""
        if self.rewriting is None or task.loaded is None:
            raise Trouble("starting")
        began, ask = time.monotonic(), RewriteRequest(utterance)
        if task.loaded.template.candidates and raw is not None:
            ranking = await asyncio.shield(raw)
            [ask] = task.snapshot.search.rewrite_inputs([utterance], [ranking], task.loaded.template)
        try:
            with span("rewrite"):
                left = task.deadline - reserve - time.monotonic()
                found = await self.rewriting.rewrite(task.loaded, ask, left, task.hurried)
        except (Trouble, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("the rewriter failed")
            raise Trouble("failed") from error
        finally:
            task.timings.add("rewrite", began)
        self.metrics.rewrites.labels(found.rewrite.status).inc()
        return found

    async def _lists(self, task: _Task, lines: Sequence[str]) -> list[Ranking]:
        """One ranking a line, if there is time for it."""
        began = time.monotonic()
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + task.deadline - began):
                with span("lists"):
                    lists = await self._ask(task, lines, DEPTH)
        except TimeoutError:
            raise Trouble("deadline") from None
        except Refusal:
            raise Trouble("busy") from None
        if lines:
            task.timings.add("lists", began)
            self._lists_seconds += 0.1 * (time.monotonic() - began - self._lists_seconds)
        return lists

    async def _ask(self, task: _Task, texts: Sequence[str], depth: int) -> list[Ranking]:
        """Rankings of what the filters allow: asked deeper and deeper, until there is enough or no more."""
        search, every = task.snapshot.search, len(task.snapshot.index.tools)
        asked = depth
        while True:
            rankings = await self._batcher.ask(search, texts, asked)
            if task.allowed is None:
                return rankings
            kept = [only(ranking, task.allowed) for ranking in rankings]
            if asked >= every or all(len(ranking) >= depth for ranking in kept):
                return [ranking.cut(depth) for ranking in kept]
            asked = min(every, asked * 8)

    def _budget(self, wanted: int | None) -> float:
        return min(wanted or self._deadline_ms, self._longest_ms) / 1000.0

    def _hurried(self, wanted: int | None) -> bool:
        return wanted is not None and wanted < self._deadline_ms

    def _wants_rewrite(self, mode: str, loaded: Loaded | None) -> bool:
        if mode == "off" or self.rewriting is None:
            return False
        return mode == "on" or loaded is None or loaded.fusion.raw < 1

    def _fallback(self, trouble: Trouble) -> wire.Fallback:
        self.metrics.fallbacks.labels(trouble.reason).inc()
        return wire.Fallback(reason=trouble.reason)

    def _unusable(self, rewritten: Rewritten) -> wire.Fallback | None:
        return self._fallback(Trouble("unparseable")) if rewritten.rewrite.status == "unparseable" else None


def _fusion(task: _Task) -> RewriteFusion:
    """As the rewriter's card has it. One that says "do not ask" and is asked nevertheless takes an equal part."""
    fusion = task.loaded.fusion if task.loaded else RewriteFusion()
    fusion = replace(fusion, skip_rewrite_above=None) if task.forced else fusion
    return fusion if fusion.raw < 1 else RewriteFusion()


def _told(verdict: Detection | None) -> wire.Detection | None:
    return wire.Detection(**asdict(verdict)) if verdict is not None else None
