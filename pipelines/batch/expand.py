"""The work itself: chunks of rows in, chunks of outcomes out, the model never waiting for a chunk to end.

With a backend that takes prompts while it answers others, the rows of the next chunks go in while the last rows of this
one come out. With any other backend a chunk is asked by itself, so that a job that was killed and resumed asks the very
same batches, and greedy decoding gives the very same answers.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from pipelines.batch.answer_cache import Known
from pipelines.batch.journal import BAD, GOOD, Tally
from pipelines.batch.plan import Loaded
from pipelines.batch.rows import Bad, Row, RowReader
from pipelines.batch.sources import Chunk
from pipelines.detection import Detection
from pipelines.search import DEPTH
from retrievers.types import Ranking
from rewrite.backends.streams import Stream, open_stream
from rewrite.rewriter import Rewriter, fit_prompts, halve_candidates
from rewrite.types import Answer, Prompt, Rewrite, RewriteRequest
from rewrite.votes import merge_answers

MOST_OPEN = 8
"""Chunks that may be under way at a time: one row that takes for ever does not fill the memory with the others."""


class Memory(Protocol):
    """Answers that are known."""

    def get(self, keys: Sequence[str]) -> dict[str, Known]:
        """Those that are known."""
        ...


@dataclass(frozen=True, slots=True)
class Done:
    """A finished chunk."""

    chunk: int
    lines: list[bytes]
    tally: Tally
    answers: dict[str, Known]
    """What the model answered for it, by key."""


@dataclass(slots=True)
class _Open:
    """A chunk under way."""

    rows: list[Row | Bad]
    keys: dict[str, str]
    """Of every utterance."""
    known: dict[str, Known] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    """Keys whose answers are this chunk's to keep."""
    missing: set[str] = field(default_factory=set)
    raw: dict[str, Ranking] = field(default_factory=dict)


class Expander:
    """Expands chunks with what is loaded."""

    def __init__(self, parts: Loaded, reader: RowReader, key: Callable[[str], str], memory: Memory, k: int) -> None:
        self._rewriter, self._search, self._detecting = parts.rewriter, parts.search, parts.detecting
        self._reader, self._key, self._memory, self._k = reader, key, memory, k
        self._open: dict[int, _Open] = {}
        self._queue: deque[tuple[str, Prompt]] = deque()
        self._asked: dict[str, tuple[RewriteRequest, int]] = {}
        """What each key was last asked with, and how many candidates are cut of it."""
        self._waiting: dict[str, list[int]] = {}

    def run(self, chunks: Iterator[Chunk], size: int) -> Iterator[Done]:
        """Finished chunks as they come. The caller keeps a chunk's answers before it asks for the next one."""
        if self._rewriter is None:
            for number, rows in chunks:
                yield self._finish(number, self._opened(rows))
            return
        stream = open_stream(self._rewriter.backend, self._rewriter.sampling, size)
        try:
            yield from self._flow(chunks, stream)
        finally:
            stream.close()

    def _flow(self, chunks: Iterator[Chunk], stream: Stream) -> Iterator[Done]:
        most, more = MOST_OPEN if stream.overlaps else 1, True
        while more or self._open:
            while more and len(self._open) < most and len(self._queue) < max(1, stream.capacity):
                chunk = next(chunks, None)
                if chunk is None:
                    more = False
                else:
                    self._take(*chunk)
                    yield from self._ready()
            if self._queue and stream.capacity > 0:
                stream.push([self._queue.popleft() for _ in range(min(stream.capacity, len(self._queue)))])
            if self._open:
                for key, found in stream.pull():
                    self._came(key, found)
                yield from self._ready()

    def _opened(self, rows: Sequence[tuple[int, Any]]) -> _Open:
        read = [self._reader.read(number, raw) for number, raw in rows]
        texts = dict.fromkeys(row.text for row in read if isinstance(row, Row))
        return _Open(read, {text: self._key(text) for text in texts})

    def _take(self, number: int, rows: Sequence[tuple[int, Any]]) -> None:
        """Opens a chunk: what nobody knows and nobody has asked yet is queued."""
        assert self._rewriter is not None
        opened = self._open[number] = self._opened(rows)
        opened.known = self._memory.get(list(opened.keys.values()))
        new = [text for text, key in opened.keys.items() if key not in opened.known and key not in self._waiting]
        asks = [RewriteRequest(text) for text in new]
        if self._search is not None and self._rewriter.template.candidates:
            opened.raw = self._raw(list(opened.keys))
            asks = self._search.rewrite_inputs(new, [opened.raw[text] for text in new], self._rewriter.template)
        fitted = fit_prompts(self._rewriter.template, self._rewriter.backend, asks, self._rewriter.sampling.max_tokens)
        for text, ask, (prompt, cut) in zip(new, asks, fitted, strict=True):
            key = opened.keys[text]
            opened.asked.add(key)
            if prompt is None:
                opened.known[key] = Known(None, cut=cut)
            else:
                self._waiting[key] = []
                self._asked[key] = ask, cut
                self._queue.append((key, prompt))
        opened.missing = {key for key in opened.keys.values() if key not in opened.known}
        for key in opened.missing:
            self._waiting[key].append(number)

    def _came(self, key: str, found: list[Answer] | str) -> None:
        """An answer, or none: a prompt that only the backend found too long is asked again with fewer candidates, as
        `Rewriter` does, until none is left of them."""
        assert self._rewriter is not None
        ask, cut = self._asked.pop(key)
        shorter = None if found else halve_candidates(self._rewriter.template, ask, cut)
        if shorter is None:
            self._answered(key, _known(found, cut, self._rewriter))
        else:
            prompt, cut = shorter
            self._asked[key] = ask, cut
            self._queue.append((key, prompt))

    def _answered(self, key: str, known: Known) -> None:
        for number in self._waiting.pop(key):
            opened = self._open[number]
            opened.known[key] = known
            opened.missing.discard(key)

    def _ready(self) -> Iterator[Done]:
        for number in [number for number, opened in self._open.items() if not opened.missing]:
            yield self._finish(number, self._open.pop(number))

    def _finish(self, number: int, opened: _Open) -> Done:
        refused = {key: known.refused for key, known in opened.known.items() if known.refused}
        rows: list[Row | Bad] = [
            Bad(row.number, refused[opened.keys[row.text]], row.text, row.id)
            if isinstance(row, Row) and opened.keys[row.text] in refused
            else row
            for row in opened.rows
        ]
        texts = list(dict.fromkeys(row.text for row in rows if isinstance(row, Row)))
        rewrites = {text: self._read(opened.known[opened.keys[text]]) for text in texts} if self._rewriter else {}
        tools, verdicts = self._tools(texts, rewrites, opened), self._verdicts(texts)
        answers = {key: opened.known[key] for key in opened.asked}
        tally = Tally(len(rows), sum(isinstance(row, Bad) for row in rows), len(answers))
        tally.tokens = sum(known.tokens for known in answers.values())
        lines = [self._line(row, rewrites, tools, verdicts, tally) for row in rows]
        return Done(number, lines, tally, answers)

    def _read(self, known: Known) -> Rewrite:
        assert self._rewriter is not None
        answer = known.answer
        return Rewrite((), "too-long", cut=known.cut) if answer is None else self._rewriter.template.parse(answer)

    def _tools(self, texts: Sequence[str], rewrites: dict[str, Rewrite], opened: _Open) -> dict[str, Ranking]:
        """The tools of every utterance, as `ToolSearch.explain` finds them."""
        if self._search is None:
            return {}
        if not rewrites:
            return dict(zip(texts, self._search.search(texts, self._k, detect=False), strict=True))
        raw = opened.raw or self._raw(list(opened.keys))
        lists = self._search.search_rewrites([rewrites[text] for text in texts])
        return {
            text: self._search.fuse(text, raw[text], lines, self._k) for text, lines in zip(texts, lists, strict=True)
        }

    def _verdicts(self, texts: Sequence[str]) -> dict[str, Detection]:
        """Which utterances need a tool; empty where nobody can tell, or is not asked."""
        if self._search is None or not self._detecting or not self._search.has_detector:
            return {}
        found = zip(texts, self._search.detect(texts), strict=True)
        return {text: verdict for text, verdict in found if verdict is not None}

    def _raw(self, texts: Sequence[str]) -> dict[str, Ranking]:
        """What the utterances find by themselves. All of a chunk are asked together, whatever is known of them:
        an encoder's last digits hang on the company, and a resumed job must keep it."""
        assert self._search is not None
        return dict(zip(texts, self._search.retrieve(texts, max(self._k, DEPTH)), strict=True))

    def _line(
        self,
        row: Row | Bad,
        rewrites: dict[str, Rewrite],
        tools: dict[str, Ranking],
        verdicts: dict[str, Detection],
        tally: Tally,
    ) -> bytes:
        if isinstance(row, Bad):
            facts: dict[str, Any] = {"line": row.number, "id": row.id, "error": row.reason, "raw": row.raw}
            return BAD + _json(facts)
        facts = {"id": row.id, "text": row.text}
        if (rewrite := rewrites.get(row.text)) is not None:
            facts |= {"status": rewrite.status, "queries": list(rewrite.lines), "tokens": rewrite.tokens}
            tally.statuses[rewrite.status] = tally.statuses.get(rewrite.status, 0) + 1
            tally.lines += len(rewrite.lines)
        if self._search is not None:
            verdict = verdicts.get(row.text)
            found = tools[row.text] if verdict is None or verdict.needs_tool else Ranking()
            facts["tools"] = [{"id": tool, "score": round(score, 6)} for tool, score in found]
            if verdict is not None:
                facts["detection"] = asdict(verdict)
        return GOOD + _json(facts)


def _known(found: list[Answer] | str, cut: int, rewriter: Rewriter) -> Known:
    if isinstance(found, str):
        return Known(None, refused=found)
    if not found:
        return Known(None, cut=cut)  # the backend found out too late that it is too long
    answer = merge_answers(rewriter.template, found, rewriter.sampling)
    return Known(answer.text, answer.tokens, answer.finished, cut)


def _json(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, ensure_ascii=False).encode("utf-8")
