"""Expansion: chunks of rows in, chunks of outcomes out, without the model waiting for a chunk to end.

A backend that accepts prompts while it answers others gets the rows of the next chunks while the last rows of this one
are answered. Any other backend gets one chunk at a time, so that a resumed job sends the same batches, and greedy
decoding gives the same answers.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from pipelines.batch.answer_cache import CachedAnswer
from pipelines.batch.journal import BAD, GOOD, RowCounts
from pipelines.batch.plan import LoadedParts
from pipelines.batch.rows import BadRow, InputRow, RowReader
from pipelines.batch.sources import Chunk
from pipelines.calibration import FittingTools
from pipelines.detection import Detection
from pipelines.search import DEPTH
from retrievers.types import Ranking
from rewrite.backends.streams import Stream, open_stream
from rewrite.rewriter import Rewriter, fit_prompts, halve_candidates
from rewrite.types import NOT_ASKED, Answer, Prompt, Rewrite, RewriteRequest
from rewrite.votes import merge_answers

MAX_OPEN_CHUNKS = 8
"""Bounds the memory that finished rows take while they wait for a slow row of their chunk."""


class AnswerLookup(Protocol):
    """A cache of answers, as far as expansion needs it."""

    def get(self, keys: Sequence[str]) -> dict[str, CachedAnswer]:
        """The cached answers by key."""
        ...


@dataclass(frozen=True, slots=True)
class FinishedChunk:
    """The outcomes of a chunk."""

    chunk: int
    lines: list[bytes]
    counts: RowCounts
    answers: dict[str, CachedAnswer]
    """New answers of the model, by key."""


@dataclass(slots=True)
class _OpenChunk:
    rows: list[InputRow | BadRow]
    keys: dict[str, str]
    """Of every utterance."""
    answers: dict[str, CachedAnswer] = field(default_factory=dict)
    requested: set[str] = field(default_factory=set)
    """Keys whose answers this chunk returns."""
    missing: set[str] = field(default_factory=set)
    raw: dict[str, Ranking] = field(default_factory=dict)
    detections: dict[str, Detection] = field(default_factory=dict)
    not_asked: dict[str, str] = field(default_factory=dict)
    """Why the rewriter is not asked about these utterances."""
    not_reranked: dict[str, str] = field(default_factory=dict)
    """Why the tools of these utterances are in their first order."""


class Expander:
    """Expands chunks with loaded models."""

    def __init__(
        self, parts: LoadedParts, reader: RowReader, key: Callable[[str], str], cache: AnswerLookup, k: int
    ) -> None:
        self._rewriter, self._search, self._detect = parts.rewriter, parts.search, parts.detect
        self._fusion, self._left_out = parts.fusion, parts.left_out
        self._min_score, self._min_probability = parts.min_score, parts.min_probability
        self._reader, self._key, self._cache, self._k = reader, key, cache, k
        self._open: dict[int, _OpenChunk] = {}
        self._queue: deque[tuple[str, Prompt]] = deque()
        self._requests: dict[str, tuple[RewriteRequest, int]] = {}
        """The last request of each key, and how many candidates were cut from it."""
        self._waiting: dict[str, list[int]] = {}

    def run(self, chunks: Iterator[Chunk], size: int) -> Iterator[FinishedChunk]:
        """Yield chunks as they finish. The caller caches a chunk's answers before it takes the next."""
        if self._rewriter is None:
            for number, rows in chunks:
                yield self._finish(number, self._read_chunk(rows))
            return
        stream = open_stream(self._rewriter.backend, self._rewriter.sampling, size)
        try:
            yield from self._flow(chunks, stream)
        finally:
            stream.close()

    def _flow(self, chunks: Iterator[Chunk], stream: Stream) -> Iterator[FinishedChunk]:
        max_open, more = MAX_OPEN_CHUNKS if stream.overlaps else 1, True
        while more or self._open:
            while more and len(self._open) < max_open and len(self._queue) < max(1, stream.capacity):
                chunk = next(chunks, None)
                if chunk is None:
                    more = False
                else:
                    self._open_chunk(*chunk)
                    yield from self._finish_ready()
            if self._queue and stream.capacity > 0:
                stream.push([self._queue.popleft() for _ in range(min(stream.capacity, len(self._queue)))])
            if self._open:
                for key, answers in stream.pull():
                    self._receive(key, answers)
                yield from self._finish_ready()

    def _read_chunk(self, rows: Sequence[tuple[int, Any]]) -> _OpenChunk:
        parsed = [self._reader.read(number, raw) for number, raw in rows]
        texts = list(dict.fromkeys(row.text for row in parsed if isinstance(row, InputRow)))
        chunk = _OpenChunk(parsed, {text: self._key(text) for text in texts}, detections=self._detections(texts))
        needless = [text for text, detection in chunk.detections.items() if not detection.needs_tool]
        if self._left_out:
            chunk.not_asked = dict.fromkeys(texts, "card")
        elif self._rewriter is not None:
            chunk.not_asked = dict.fromkeys(needless, "detector")
        return chunk

    def _open_chunk(self, number: int, rows: Sequence[tuple[int, Any]]) -> None:
        """Queue the utterances that are neither cached nor requested."""
        assert self._rewriter is not None
        template, backend = self._rewriter.template, self._rewriter.backend
        chunk = self._open[number] = self._read_chunk(rows)
        if self._search is not None and (template.candidates or self._fusion.skip_rewrite_above is not None):
            chunk.raw = self._retrieve(list(chunk.keys))
            confident = [text for text, ranking in chunk.raw.items() if self._fusion.skips_rewrite(ranking)]
            chunk.not_asked = dict.fromkeys(confident, "confident") | chunk.not_asked
        keys = {text: key for text, key in chunk.keys.items() if text not in chunk.not_asked}
        chunk.answers = self._cache.get(list(keys.values()))
        new = [text for text, key in keys.items() if key not in chunk.answers and key not in self._waiting]
        requests = [RewriteRequest(text) for text in new]
        if self._search is not None and template.candidates:
            requests = self._search.rewrite_inputs(new, [chunk.raw[text] for text in new], template)
        fitted = fit_prompts(template, backend, requests, self._rewriter.sampling.max_tokens)
        for text, request, (prompt, cut) in zip(new, requests, fitted, strict=True):
            key = chunk.keys[text]
            chunk.requested.add(key)
            if prompt is None:
                chunk.answers[key] = CachedAnswer(None, cut=cut)
            else:
                self._waiting[key] = []
                self._requests[key] = request, cut
                self._queue.append((key, prompt))
        chunk.missing = {key for key in keys.values() if key not in chunk.answers}
        for key in chunk.missing:
            self._waiting[key].append(number)

    def _receive(self, key: str, answers: list[Answer] | str) -> None:
        """Take an answer; a prompt too long for the backend is sent again with half its candidates."""
        assert self._rewriter is not None
        request, cut = self._requests.pop(key)
        shorter = None if answers else halve_candidates(self._rewriter.template, request, cut)
        if shorter is not None:
            prompt, cut = shorter
            self._requests[key] = request, cut
            self._queue.append((key, prompt))
            return
        answer = _to_cached(answers, cut, self._rewriter)
        for number in self._waiting.pop(key):
            self._open[number].answers[key] = answer
            self._open[number].missing.discard(key)

    def _finish_ready(self) -> Iterator[FinishedChunk]:
        for number in [number for number, chunk in self._open.items() if not chunk.missing]:
            yield self._finish(number, self._open.pop(number))

    def _finish(self, number: int, chunk: _OpenChunk) -> FinishedChunk:
        refused = {key: answer.refused for key, answer in chunk.answers.items() if answer.refused}
        rows: list[InputRow | BadRow] = [
            BadRow(row.number, refused[chunk.keys[row.text]], row.text, row.id)
            if isinstance(row, InputRow) and chunk.keys[row.text] in refused
            else row
            for row in chunk.rows
        ]
        texts = list(dict.fromkeys(row.text for row in rows if isinstance(row, InputRow)))
        wanted = [text for text in texts if text not in chunk.not_asked] if self._rewriter else []
        rewrites = {text: self._parse(chunk.answers[chunk.keys[text]]) for text in wanted}
        tools = self._tools(texts, rewrites, chunk)
        answers = {key: chunk.answers[key] for key in chunk.requested}
        counts = RowCounts(len(rows), sum(isinstance(row, BadRow) for row in rows), len(answers))
        counts.tokens = sum(answer.tokens for answer in answers.values())
        lines = [self._line(row, rewrites, tools, chunk, counts) for row in rows]
        return FinishedChunk(number, lines, counts, answers)

    def _parse(self, cached: CachedAnswer) -> Rewrite:
        assert self._rewriter is not None
        answer = cached.answer
        return Rewrite((), "too-long", cut=cached.cut) if answer is None else self._rewriter.template.parse(answer)

    def _tools(self, texts: Sequence[str], rewrites: dict[str, Rewrite], chunk: _OpenChunk) -> dict[str, FittingTools]:
        """The tools of every utterance, by the same path as `ToolSearch.explain`."""
        if self._search is None:
            return {}
        if self._rewriter is None:
            limits = self._min_score, self._min_probability
            results = self._search.explain(texts, self._k, False, None, *limits)
            chunk.not_reranked = {
                text: one.rerank_failure for text, one in zip(texts, results, strict=True) if one.rerank_failure
            }
            fitting = [FittingTools(one.ranking, one.relevance, one.nothing_fits, one.probabilities) for one in results]
            return dict(zip(texts, fitting, strict=True))
        raw = chunk.raw or self._retrieve(list(chunk.keys))
        lists = self._search.search_rewrites([rewrites.get(text, Rewrite()) for text in texts], texts)
        depth = max(self._k, DEPTH) if self._search.reranker else self._k
        fused = [self._search.fuse(text, raw[text], lines, depth) for text, lines in zip(texts, lists, strict=True)]
        tools = {}
        for text, lines, one in zip(texts, lists, self._search.rerank(texts, fused), strict=True):
            limits, parts = (self._min_score, self._min_probability), [raw[text], *lines]
            tools[text] = self._search.keep_fitting(text, one.ranking.cut(self._k), parts, *limits)
            if one.failure:
                chunk.not_reranked[text] = one.failure
        return tools

    def _detections(self, texts: Sequence[str]) -> dict[str, Detection]:
        if self._search is None or not self._detect or not self._search.has_detector:
            return {}
        detections = zip(texts, self._search.detect(texts), strict=True)
        return {text: detection for text, detection in detections if detection is not None}

    def _retrieve(self, texts: Sequence[str]) -> dict[str, Ranking]:
        """Raw rankings. All utterances of a chunk are one batch, cached or not: the last digits of an encoder's
        vectors depend on the batch, and a resumed job must give the same bytes."""
        assert self._search is not None
        return dict(zip(texts, self._search.retrieve(texts, max(self._k, DEPTH)), strict=True))

    def _line(
        self,
        row: InputRow | BadRow,
        rewrites: dict[str, Rewrite],
        tools: dict[str, FittingTools],
        chunk: _OpenChunk,
        counts: RowCounts,
    ) -> bytes:
        if isinstance(row, BadRow):
            return BAD + _json({"line": row.number, "id": row.id, "error": row.reason, "raw": row.raw})
        facts: dict[str, Any] = {"id": row.id, "text": row.text}
        reason, rewrite = chunk.not_asked.get(row.text), rewrites.get(row.text)
        status = f"{NOT_ASKED}{reason}" if reason else ""
        if rewrite is not None and self._rewriter is not None:
            status = self._rewriter.template.outcome(rewrite, row.text)
        if status:
            lines, tokens = (rewrite.lines, rewrite.tokens) if rewrite is not None else ((), 0)
            facts |= {"status": status, "queries": list(lines), "tokens": tokens}
            counts.statuses[status] = counts.statuses.get(status, 0) + 1
            counts.lines += len(lines)
        if self._search is not None:
            detection = chunk.detections.get(row.text)
            is_needed = detection is None or detection.needs_tool
            facts |= self._tool_facts(tools[row.text] if is_needed else FittingTools(Ranking(), ()), counts)
            if detection is not None:
                facts["detection"] = asdict(detection)
            if row.text in chunk.not_reranked:
                facts["not_reranked"] = chunk.not_reranked[row.text]
                counts.not_reranked += 1
        return GOOD + _json(facts)

    def _tool_facts(self, fitting: FittingTools, counts: RowCounts) -> dict[str, Any]:
        tools = [{"id": tool, "score": round(score, 6)} for tool, score in fitting.ranking]
        if self._min_score is not None:
            for tool, relevance in zip(tools, fitting.relevance or (), strict=True):
                tool["relevance"] = relevance
        if self._min_probability is not None:
            for tool, probability in zip(tools, fitting.probabilities or (), strict=True):
                tool["probability"] = probability
        if fitting.nothing_fits is None:
            return {"tools": tools}
        counts.nothing_fits += 1
        reason = {
            key: value for key, value in asdict(fitting.nothing_fits).items() if key == "best" or value is not None
        }
        return {"tools": tools, "nothing_fits": reason}


def _to_cached(answers: list[Answer] | str, cut: int, rewriter: Rewriter) -> CachedAnswer:
    if isinstance(answers, str):
        return CachedAnswer(None, refused=answers)
    if not answers:
        return CachedAnswer(None, cut=cut)  # too long even without candidates
    answer = merge_answers(rewriter.template, answers, rewriter.sampling)
    return CachedAnswer(answer.text, answer.tokens, answer.finished, cut)


def _json(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, ensure_ascii=False).encode("utf-8")
