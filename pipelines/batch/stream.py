"""A job that writes to standard output: nothing is kept, so it cannot be resumed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO

from pipelines.batch.answer_cache import AnswerCache
from pipelines.batch.engines import InProcessEngine
from pipelines.batch.expand import FinishedChunk
from pipelines.batch.journal import BAD, GOOD, RowCounts
from pipelines.batch.outputs import error_record, make_output
from pipelines.batch.plan import BatchPlan
from pipelines.batch.rows import RowReader, shape_of
from pipelines.batch.sources import InputFile, InputPipe
from pipelines.batch.summary import BatchSummary, ProgressReporter, check_bad_share, summarise
from retrievers.errors import BadInput


def stream_rows(
    plan: BatchPlan, tag: str, source: InputFile | InputPipe, out: IO[bytes], err: IO[str], device: str | None = None
) -> BatchSummary:
    """Write outcomes as they come, in the order that the config names, and bad rows to `err`."""
    config, rest = plan.config, source.chunks(plan.config.chunk_size)
    first = next(rest, None)
    if first is None:
        raise BadInput("the input holds no rows")
    sample = next((raw for _, raw in first[1] if raw != b""), b"") if source.format == "jsonl" else b""
    shape = config.input.shape or shape_of(sample)
    output = make_output("-", config, shape, tag)
    write = output.lines(out)
    reader = RowReader(config.input, shape, source.format == "txt")
    total, progress = RowCounts(), ProgressReporter(0, 0, False)
    with tempfile.TemporaryDirectory() as scratch:
        cache = AnswerCache(Path(config.cache).expanduser() if config.cache else Path(scratch) / "answers.sqlite")
        try:
            engine = InProcessEngine(plan, reader, device)
            chunks = engine.expand(chain([first], rest), config.chunk_size, cache)
            for chunk in _cache_and_order(chunks, cache, config.order == "input"):
                write([line[1:] for line in chunk.lines if line.startswith(GOOD)])
                out.flush()
                for line in chunk.lines:
                    if line.startswith(BAD):
                        record = error_record(json.loads(line[1:]), output.shape)
                        err.write(json.dumps(record, ensure_ascii=False) + "\n")
                total.add(chunk.counts)
                progress.add(chunk.counts.rows, total.bad)
                check_bad_share(total, config.max_bad_share, chunk.lines)
        finally:
            cache.close()
    check_bad_share(total, config.max_bad_share, [], last=True)
    return summarise(total, "-", progress.seconds, progress.rate, 0)


def _cache_and_order(chunks: Iterator[FinishedChunk], cache: AnswerCache, in_order: bool) -> Iterator[FinishedChunk]:
    """Cache answers, and hold chunks back until those before them are done."""
    waiting: dict[int, FinishedChunk] = {}
    wanted = 0
    for chunk in chunks:
        cache.put(chunk.answers)
        if not in_order:
            yield chunk
            continue
        waiting[chunk.chunk] = chunk
        while wanted in waiting:
            yield waiting.pop(wanted)
            wanted += 1
