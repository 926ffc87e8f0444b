"""A job in a file: begun, gone on with after any crash, finished once.

Beside the output lie
    OUT.work/           manifest, journal and, unless the config names a cache, the answers; gone at the end unless
                        there are bad rows, which --retry-errors needs it for
    OUT.errors.jsonl    the bad rows with their line numbers, where there are some
    OUT.batch.json      what was done; written last
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.batch.answer_cache import Answers
from pipelines.batch.engines import Engine, Todo
from pipelines.batch.journal import BAD, GOOD, Journal, Tally
from pipelines.batch.manifest import FORMAT, MANIFEST, check_same, read_json, write_json
from pipelines.batch.outputs import Output, trouble
from pipelines.batch.plan import Plan
from pipelines.batch.progress import Progress
from pipelines.batch.retry import again, merged
from pipelines.batch.rows import RowReader
from pipelines.batch.sources import Source
from pipelines.batch.summary import Summary, check_share, summarise
from pipelines.runs import environment
from retrievers.errors import BadInput, OutOfDisk
from retrievers.files import sync_folder, writer_lock

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True)
class Places:
    """Where a job writes."""

    output: Path

    @property
    def work(self) -> Path:
        """Its folder while it is under way."""
        return self.output.with_name(f"{self.output.name}.work")

    @property
    def errors(self) -> Path:
        """The bad rows."""
        return self.output.with_name(f"{self.output.name}.errors.jsonl")

    @property
    def record(self) -> Path:
        """What was done."""
        return self.output.with_name(f"{self.output.name}.batch.json")

    def clear(self) -> None:
        """Forgets what was done, and lets the output be replaced."""
        with writer_lock(self.work, 0):
            for path in (self.record, self.errors, self.output):
                path.unlink(missing_ok=True)
            shutil.rmtree(self.work, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Job:
    """One input, one output."""

    plan: Plan
    source: Source
    reader: RowReader
    places: Places
    output: Output
    content: str
    """The input's hash."""
    rows: int
    """About how many."""

    @property
    def identity(self) -> dict[str, Any]:
        """What the output depends on."""
        written = {"format": self.output.format, "packing": self.output.packing, "shape": self.output.shape}
        facts = self.plan.identity
        return {"format": FORMAT, **facts, "input": {**facts["input"], "sha256": self.content}, "output": written}

    def run(self, engine: Engine, retry: bool = False, show: bool | None = None) -> Summary:
        """Does what is left to do, and writes the output."""
        places = self.places
        if (done := self._finished(retry)) is not None:
            return done
        with writer_lock(places.work, 0), self._disk():
            self._check_begun(retry)
            journal = Journal(places.work)
            named = self.plan.config.cache
            answers = Answers(Path(named).expanduser() if named else places.work / "answers.sqlite")
            try:
                todo = Todo(self.source, self.plan.config.chunk, frozenset(journal.blocks))
                if retry:
                    todo = again(self.source, self.plan.config.chunk, self.reader, journal)
                    places.record.unlink(missing_ok=True)  # from here on the job is not finished
                seconds, rate, kept = self._work(engine, todo, journal, answers, show)
                if retry:
                    write_json(places.work / MANIFEST, self.identity)
                return self._finish(journal, seconds, rate, kept)
            finally:
                journal.close()
                answers.close()

    def _work(
        self, engine: Engine, todo: Todo, journal: Journal, answers: Answers, show: bool | None
    ) -> tuple[float, float, int]:
        """Expands what is left; gives seconds, rows a second, and how many rows were there before."""
        total = journal.tally() if todo.only is None else Tally()
        kept = total.rows
        progress = Progress(self.rows, kept, show)
        try:
            for done in engine.run(todo, answers):
                answers.put(done.answers)  # first: should this be the last thing, the same answers are found again
                lines, tally = done.lines, done.tally
                if todo.only is not None:
                    lines, tally = merged(done, journal)
                journal.append(done.chunk, lines, tally)
                total.add(done.tally)
                progress.add(done.tally.rows, total.bad)
                if todo.only is None:
                    check_share(total, self.plan.config.most_bad, done.lines)
            return progress.seconds, progress.rate, kept
        finally:
            progress.close()

    def _finish(self, journal: Journal, seconds: float, rate: float, kept: int) -> Summary:
        places, total = self.places, journal.tally()
        if total.rows == 0:
            raise BadInput(f"{self.source.path} holds no rows")
        check_share(total, self.plan.config.most_bad, [], last=True)
        chunks = sorted(journal.blocks) if self.plan.config.order == "input" else list(journal.blocks)
        with self._replacing(places.output) as stream, self.output.writer(stream) as write:
            for chunk in chunks:
                write([line[1:] for line in journal.read(chunk) if line.startswith(GOOD)])
        if total.bad:
            with self._replacing(places.errors) as stream:
                for chunk in chunks:
                    for line in journal.read(chunk):
                        if line.startswith(BAD):
                            facts = trouble(json.loads(line[1:]), self.output.shape)
                            stream.write(json.dumps(facts, ensure_ascii=False).encode() + b"\n")
        else:
            places.errors.unlink(missing_ok=True)
        summary = summarise(total, str(places.output), seconds, rate, kept)
        size, digest = places.output.stat().st_size, _hash(places.output)
        facts = {"bytes": size, "sha256": digest, "summary": asdict(summary), "environment": environment()}
        write_json(places.record, {"identity": self.identity, **facts})
        if not total.bad:
            shutil.rmtree(places.work, ignore_errors=True)
        return summary

    def _finished(self, retry: bool) -> Summary | None:
        """What an earlier run of this very job did, where it was finished."""
        places, record = self.places, read_json(self.places.record)
        if record is None or not places.output.exists():
            if places.output.exists() and read_json(places.work / MANIFEST) is None:
                raise BadInput(f"{places.output} is there already; choose another output, or replace it with --fresh")
            if retry and read_json(places.work / MANIFEST) is None:
                raise BadInput(f"there is no job of {places.output} whose bad rows could be tried again")
            return None
        summary = Summary(**record["summary"])
        free = ("input.sha256", "input.max_characters") if retry else ()
        check_same(record["identity"], self.identity, str(places.output), free)
        if places.output.stat().st_size != record["bytes"]:
            raise BadInput(f"{places.output} was changed since it was written; write it again with --fresh")
        if summary.bad and retry:
            if not places.work.exists():
                raise BadInput(f"{places.work} is gone, and with it what the bad rows could be added to; use --fresh")
            return None
        if not summary.bad:
            shutil.rmtree(places.work, ignore_errors=True)
        summary.already = True
        return summary

    def _check_begun(self, retry: bool) -> None:
        begun = self.places.work / MANIFEST
        before = read_json(begun)
        if before is None:
            write_json(begun, self.identity)
        else:
            free = ("input.sha256", "input.max_characters") if retry else ()
            check_same(before, self.identity, str(self.places.output), free)

    @contextmanager
    def _replacing(self, path: Path) -> Iterator[Any]:
        """A file that takes another's place once it is whole and on the disk."""
        part = path.with_name(f".part-{path.name}")
        try:
            with part.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, path)
            sync_folder(path.parent)
        finally:
            part.unlink(missing_ok=True)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise OutOfDisk(
                f"no room left in {self.places.work.parent} ({os.strerror(error.errno or 0)}); what is finished is "
                "kept: make room and run the same command again"
            ) from error


def _hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
