"""Feedback folders, files, the pool of a database and agents' logs, all read as the same records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.database.settings import DatabaseSettings
from pipelines.renew.settings import Sources
from pipelines.renew.traces import NotATrace, read_turns
from retrievers.errors import BadInput
from rewrite.errors import RewriteError


@dataclass(frozen=True, slots=True)
class Record:
    """What somebody said, and the tools that were right, or were called, as the source names them."""

    utterance: str
    tools: tuple[str, ...]
    source: str
    """feedback or trace"""


def read_records(sources: Sources, left_out: Counter[str]) -> Iterator[Record]:
    """Everything that the sources hold; what is not a record is counted by the reason."""
    for place in sources.feedback:
        for path in _files(Path(place), "feedback-*.jsonl"):
            yield from _confirmed(_rows(path, left_out), sources, left_out, path)
    if sources.database is not None:
        yield from _confirmed(_pool(sources.database, left_out), sources, left_out, "the database")
    for place in sources.traces:
        for path in _files(Path(place), "*.jsonl"):
            yield from _called(path, sources, left_out)


def _files(place: Path, pattern: str) -> list[Path]:
    if place.is_dir():
        return sorted(place.glob(pattern))  # none yet is no mistake: nobody has said anything
    if not place.exists():
        raise BadInput(f"no file or folder {place} to learn from")
    return [place]


def _rows(path: Path, left_out: Counter[str]) -> Iterator[Any]:
    try:
        with path.open("rb") as stream:
            yield from _parsed(stream, left_out)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror})") from error


def _parsed(lines: Iterable[bytes], left_out: Counter[str]) -> Iterator[Any]:
    """Lines as JSON. One that a dying machine has torn is counted, and passed over."""
    for line in lines:
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                left_out["torn lines"] += 1


def _pool(settings: DatabaseSettings, left_out: Counter[str]) -> Iterator[Any]:
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
    yield from _parsed((line.encode() for line in lines), left_out)


def _confirmed(rows: Iterable[Any], sources: Sources, left_out: Counter[str], place: object) -> Iterator[Record]:
    for row in rows:
        utterance, tools = (row.get("utterance"), row.get("tools")) if isinstance(row, dict) else (None, None)
        if not isinstance(utterance, str) or not isinstance(tools, list) or not all(isinstance(t, str) for t in tools):
            raise BadInput(f'{place}: a line of feedback is {{"utterance": …, "tools": [ids]}}')
        if sources.keys and row.get("key") not in sources.keys:
            left_out["other keys"] += 1
            continue
        yield Record(utterance, tuple(tools), "feedback")


def _called(path: Path, sources: Sources, left_out: Counter[str]) -> Iterator[Record]:
    read = 0
    strange = 0
    for row in _rows(path, left_out):
        try:
            turns = read_turns(row)
        except NotATrace:
            strange += 1
            continue
        read += 1
        if sources.turns == "first":
            left_out["later turns"] += max(0, len(turns) - 1)
            turns = turns[:1]
        for turn in turns:
            left_out["failed calls"] += turn.failed
            calls = tuple(name for name in turn.calls if name not in sources.ignore)
            if calls:
                yield Record(turn.utterance, calls, "trace")
            else:
                left_out["no tool was called"] += 1
    left_out["lines without a conversation"] += strange
    if strange and not read:
        raise BadInput(
            f"{path} holds no conversation; a line is a request or an answer of OpenAI's chat completions or "
            "responses or of Anthropic's messages, or both as {request, response}"
        )
