"""A batch job with an output file: resumes after any crash, finishes once.

Files next to the output:
    OUT.work/           manifest, journal and, unless the config names a cache, the answers; removed at the end unless
                        there are bad rows, because --retry-errors needs it
    OUT.errors.jsonl    the bad rows with their line numbers, if any
    OUT.batch.json      identity and summary of the job; written last
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.batch.answer_cache import AnswerCache
from pipelines.batch.engines import ChunkEngine, PendingChunks, merge_retried, pending_bad_rows
from pipelines.batch.job_files import FORMAT, JobPaths, check_same_job, read_json, replace_file, write_json
from pipelines.batch.journal import BAD, GOOD, ChunkJournal, RowCounts
from pipelines.batch.outputs import OutputWriter, error_record
from pipelines.batch.plan import BatchPlan
from pipelines.batch.rows import RowReader
from pipelines.batch.sources import InputFile
from pipelines.batch.summary import BatchSummary, ProgressReporter, check_bad_share, summarise
from pipelines.runs import environment
from retrievers.errors import BadInput, OutOfDisk
from retrievers.files import hash_of, writer_lock

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
RETRY_MAY_CHANGE = ("input.sha256", "input.max_characters")


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One input, one output."""

    plan: BatchPlan
    source: InputFile
    reader: RowReader
    paths: JobPaths
    output: OutputWriter
    input_hash: str
    rows: int
    """About how many."""
    retry: bool = False
    """Retry the bad rows of a finished job."""

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the output depends on."""
        output = {"format": self.output.format, "compression": self.output.compression, "shape": self.output.shape}
        facts = self.plan.identity
        return {"format": FORMAT, **facts, "input": {**facts["input"], "sha256": self.input_hash}, "output": output}

    def run(self, engine: ChunkEngine, show: bool | None = None) -> BatchSummary:
        """Expand the pending rows, and write the output."""
        paths, config = self.paths, self.plan.config
        if (finished := self._finished()) is not None:
            return finished
        with writer_lock(paths.work, 0), self._report_full_disk():
            before = read_json(paths.manifest)
            if before is None:
                write_json(paths.manifest, self.identity)
            else:
                self._check_same(before)
            journal = ChunkJournal(paths.work)
            cache = AnswerCache(Path(config.cache).expanduser() if config.cache else paths.work / "answers.sqlite")
            try:
                pending = PendingChunks(self.source, config.chunk_size, frozenset(journal.blocks))
                if self.retry:
                    pending = pending_bad_rows(self.source, config.chunk_size, self.reader, journal)
                    paths.record.unlink(missing_ok=True)  # from here on the job is not finished
                seconds, rate, resumed = self._expand(engine, pending, journal, cache, show)
                if self.retry:
                    write_json(paths.manifest, self.identity)
                return self._finish(journal, seconds, rate, resumed)
            finally:
                journal.close()
                cache.close()

    def _expand(
        self, engine: ChunkEngine, pending: PendingChunks, journal: ChunkJournal, cache: AnswerCache, show: bool | None
    ) -> tuple[float, float, int]:
        """Expand the pending chunks; return seconds, rows per second, and the rows finished before."""
        total = RowCounts() if self.retry else journal.counts()
        resumed = total.rows
        progress = ProgressReporter(self.rows, resumed, show)
        try:
            for chunk in engine.run(pending, cache):
                cache.put(chunk.answers)  # first: after a kill before the append, the same answers are used again
                lines, counts = merge_retried(chunk, journal) if self.retry else (chunk.lines, chunk.counts)
                journal.append(chunk.chunk, lines, counts)
                total.add(chunk.counts)
                progress.add(chunk.counts.rows, total.bad)
                if not self.retry:
                    check_bad_share(total, self.plan.config.max_bad_share, chunk.lines)
            return progress.seconds, progress.rate, resumed
        finally:
            progress.close()

    def _finish(self, journal: ChunkJournal, seconds: float, rate: float, resumed: int) -> BatchSummary:
        paths, total = self.paths, journal.counts()
        if total.rows == 0:
            raise BadInput(f"{self.source.path} holds no rows")
        check_bad_share(total, self.plan.config.max_bad_share, [], last=True)
        chunks = sorted(journal.blocks) if self.plan.config.order == "input" else list(journal.blocks)
        with replace_file(paths.output) as stream, self.output.writer(stream) as write:
            for chunk in chunks:
                write([line[1:] for line in journal.read(chunk) if line.startswith(GOOD)])
        if total.bad:
            with replace_file(paths.errors) as stream:
                bad = (line for chunk in chunks for line in journal.read(chunk) if line.startswith(BAD))
                for line in bad:
                    record = error_record(json.loads(line[1:]), self.output.shape)
                    stream.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        else:
            paths.errors.unlink(missing_ok=True)
        summary = summarise(total, str(paths.output), seconds, rate, resumed)
        file = {"bytes": paths.output.stat().st_size, "sha256": hash_of(paths.output)}
        facts = {"identity": self.identity, **file, "summary": asdict(summary), "environment": environment()}
        write_json(paths.record, facts)
        if not total.bad:
            shutil.rmtree(paths.work, ignore_errors=True)
        return summary

    def _finished(self) -> BatchSummary | None:
        """The summary of an earlier run that finished this job."""
        paths, record = self.paths, read_json(self.paths.record)
        if record is None or not paths.output.exists():
            begun = read_json(paths.manifest) is not None
            if paths.output.exists() and not begun:
                raise BadInput(f"{paths.output} is there already; choose another output, or replace it with --fresh")
            if self.retry and not begun:
                raise BadInput(f"there is no job of {paths.output} whose bad rows could be retried")
            return None
        self._check_same(record["identity"])
        summary = BatchSummary(**record["summary"])
        if paths.output.stat().st_size != record["bytes"]:
            raise BadInput(f"{paths.output} was changed since it was written; write it again with --fresh")
        if summary.bad and self.retry:
            if not paths.work.exists():
                raise BadInput(f"{paths.work} is missing, so bad rows cannot be added to its rows; use --fresh")
            return None
        if not summary.bad:
            shutil.rmtree(paths.work, ignore_errors=True)
        summary.already_finished = True
        return summary

    def _check_same(self, before: dict[str, Any]) -> None:
        check_same_job(before, self.identity, str(self.paths.output), RETRY_MAY_CHANGE if self.retry else ())

    @contextmanager
    def _report_full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            raise OutOfDisk(
                f"no room left in {self.paths.work.parent} ({os.strerror(error.errno or 0)}); finished rows are kept: "
                "make room and run the same command again"
            ) from error
