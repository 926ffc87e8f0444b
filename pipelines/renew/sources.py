"""Reads feedback folders, files, a database's feedback, agents' logs and logs of calls as the same records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.database.settings import DatabaseSettings
from pipelines.renew.call_evidence import CallEvidence
from pipelines.renew.settings import Sources
from pipelines.renew.traces import NotATrace, read_turns
from retrievers.errors import BadInput
from rewrite.errors import RewriteError

IGNORED_CALLS = ("search_tools", "get_tool", "call_tool")
"""Calls in traces that are no tools of the catalogue."""


@dataclass(frozen=True, slots=True)
class FeedbackRecord:
    """An utterance, and the tools that were confirmed or called for it, as the source names them."""

    utterance: str
    tools: tuple[str, ...]
    source: str
    """feedback, trace or call"""


def read_records(sources: Sources, left_out: Counter[str]) -> Iterator[FeedbackRecord]:
    """Read all sources; what is no record is counted in `left_out` by reason."""
    for source in sources.feedback:
        for path in _files(Path(source), "feedback-*.jsonl"):
            yield from _read_feedback(_rows(path, left_out), sources, left_out, path)
    if sources.database is not None:
        yield from _read_feedback(_database_rows(sources.database, left_out), sources, left_out, "the database")
    for source in sources.traces:
        for path in _files(Path(source), "*.jsonl"):
            yield from _read_traces(path, sources, left_out)

    evidence = CallEvidence(sources, left_out)
    for source in sources.calls:
        for path in _files(Path(source), "calls-*.jsonl"):
            evidence.read(_rows(path, left_out))
    yield from (FeedbackRecord(utterance, tools, "call") for utterance, tools in evidence.examples())


def _files(path: Path, pattern: str) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob(pattern))  # an empty folder is no error: there is no feedback yet
    if not path.exists():
        raise BadInput(f"no file or folder {path} to learn from")
    return [path]


def _rows(path: Path, left_out: Counter[str]) -> Iterator[Any]:
    try:
        with path.open("rb") as stream:
            yield from _parse_lines(stream, left_out)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror})") from error


def _parse_lines(lines: Iterable[bytes], left_out: Counter[str]) -> Iterator[Any]:
    """Lines as JSON. A line cut off by a crash is counted and skipped."""
    for line in lines:
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                left_out["torn lines"] += 1


def _database_rows(settings: DatabaseSettings, left_out: Counter[str]) -> Iterator[Any]:
    try:
        from pipelines.database.feedback import read_pool
        from pipelines.database.session import Database, Session
    except ModuleNotFoundError as error:
        raise RewriteError(f"a shared catalogue needs {error.name}; run `pip install 'toolrewrite[shared]'`") from error
    session = Session(Database(settings))
    try:
        lines = session.run(read_pool, reading=True)
    finally:
        session.close()
    yield from _parse_lines((line.encode() for line in lines), left_out)


def _read_feedback(
    rows: Iterable[Any], sources: Sources, left_out: Counter[str], origin: object
) -> Iterator[FeedbackRecord]:
    for row in rows:
        utterance, tools = (row.get("utterance"), row.get("tools")) if isinstance(row, dict) else (None, None)
        if not isinstance(utterance, str) or not isinstance(tools, list) or not all(isinstance(t, str) for t in tools):
            raise BadInput(f'{origin}: a line of feedback is {{"utterance": …, "tools": [ids]}}')
        if sources.keys and row.get("key") not in sources.keys:
            left_out["other keys"] += 1
            continue
        yield FeedbackRecord(utterance, tuple(tools), "feedback")


def _read_traces(path: Path, sources: Sources, left_out: Counter[str]) -> Iterator[FeedbackRecord]:
    read = skipped = 0
    for row in _rows(path, left_out):
        try:
            turns = read_turns(row)
        except NotATrace:
            skipped += 1
            continue
        read += 1
        if sources.turns == "first":
            left_out["later turns"] += max(0, len(turns) - 1)
            turns = turns[:1]
        for turn in turns:
            left_out["failed calls"] += turn.failed
            calls = tuple(name for name in turn.calls if name not in IGNORED_CALLS)
            if calls:
                yield FeedbackRecord(turn.utterance, calls, "trace")
            else:
                left_out["no tool was called"] += 1
    left_out["lines without a conversation"] += skipped
    if skipped and not read:
        raise BadInput(
            f"{path} holds no conversation; a line is a request or an answer of OpenAI's chat completions or "
            "responses or of Anthropic's messages, or both as {request, response}"
        )
