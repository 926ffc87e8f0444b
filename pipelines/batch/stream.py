"""A job whose output goes to standard output: nothing is kept, so nothing can be resumed."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipelines.batch.answer_cache import Answers
from pipelines.batch.engines import Local, Todo
from pipelines.batch.expand import Done
from pipelines.batch.journal import BAD, GOOD, Tally
from pipelines.batch.outputs import make_output, trouble
from pipelines.batch.plan import Plan
from pipelines.batch.progress import Progress
from pipelines.batch.rows import RowReader, shape_of
from pipelines.batch.sources import Chunk, Piped, Source
from pipelines.batch.summary import Summary, check_share, summarise
from retrievers.errors import BadInput


@dataclass(frozen=True, slots=True)
class _Begun:
    """A source whose first chunk was looked at."""

    first: Chunk
    rest: Iterator[Chunk]

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All rows."""
        return itertools.chain([self.first], self.rest)


def pipe(
    plan: Plan, tag: str, source: Source | Piped, out: IO[bytes], err: IO[str], device: str | None = None
) -> Summary:
    """Writes outcomes as they come, in the input's order unless the config wants any, and bad rows to `err`."""
    config, rest = plan.config, source.chunks(plan.config.chunk)
    first = next(rest, None)
    if first is None:
        raise BadInput("the input holds no rows")
    looked = next((raw for _, raw in first[1] if raw != b""), b"") if source.format == "jsonl" else b""
    shape = config.input.shape or shape_of(looked)
    write = (output := make_output("-", config, shape, tag)).lines(out)
    reader = RowReader(config.input, shape, source.format == "txt")
    total, progress = Tally(), Progress(0, 0, False)
    with tempfile.TemporaryDirectory() as scratch:
        answers = Answers(Path(config.cache).expanduser() if config.cache else Path(scratch) / "answers.sqlite")
        try:
            todo = Todo(_Begun(first, rest), config.chunk, frozenset())
            finished = Local(plan, reader, device).run(todo, answers)
            for done in _kept(finished, answers, config.order == "input"):
                write([line[1:] for line in done.lines if line.startswith(GOOD)])
                out.flush()
                for line in done.lines:
                    if line.startswith(BAD):
                        err.write(json.dumps(trouble(json.loads(line[1:]), output.shape), ensure_ascii=False) + "\n")
                total.add(done.tally)
                progress.add(done.tally.rows, total.bad)
                check_share(total, config.most_bad, done.lines)
        finally:
            answers.close()
    check_share(total, config.most_bad, [], last=True)
    return summarise(total, "-", progress.seconds, progress.rate, 0)


def _kept(finished: Iterator[Done], answers: Answers, in_order: bool) -> Iterator[Done]:
    """Keeps answers, and holds chunks back until those before them are done."""
    held: dict[int, Done] = {}
    wanted = 0
    for done in finished:
        answers.put(done.answers)
        held[done.chunk] = done
        if not in_order:
            yield held.pop(done.chunk)
        while wanted in held:
            yield held.pop(wanted)
            wanted += 1
