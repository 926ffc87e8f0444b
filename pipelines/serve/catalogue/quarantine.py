"""Quarantine: tools that wait for an admin's approval, in one JSON file that is replaced atomically."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock

from pipelines.serve.bounds.fairness import SHARE
from retrievers.errors import BadInput
from retrievers.types import Parameter, Tool

FILE = "quarantine.json"
OLD_FILE = "held.json"
MAX_TOOLS = 10_000
"""Tools that may wait, a quarter of them of one caller or followed server; a flood must not fill the disk."""


@dataclass(frozen=True, slots=True)
class QuarantinedTool:
    """A tool that waits, and the reasons."""

    tool: Tool
    reasons: tuple[str, ...]
    """One sentence per failed check."""
    flags: tuple[str, ...]
    sender: str = ""
    """The caller or followed server that it came from."""


class Quarantine:
    """All tools that wait. Without a folder they are lost at a restart."""

    def __init__(self, folder: Path | None) -> None:
        self._path, self._lock = folder / FILE if folder else None, Lock()
        self._tools: dict[str, QuarantinedTool] = {}
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / OLD_FILE).exists():
                raise BadInput(f"{folder / OLD_FILE} was written by an earlier version; rename it to {FILE}")
        if self._path and self._path.exists():
            self._tools = _read(self._path)

    @property
    def tools(self) -> Mapping[str, QuarantinedTool]:
        """By id, oldest first."""
        return self._tools

    def update(self, added: Iterable[QuarantinedTool], removed: Iterable[str] = ()) -> None:
        """Add or replace tools, and remove others, in one step."""
        new, gone = {item.tool.id: item for item in added}, set(removed)
        with self._lock:
            changed = {tool: item for tool, item in self._tools.items() if tool not in gone} | new
            counts = Counter(item.sender for item in changed.values())
            if new and (
                len(changed) > MAX_TOOLS or any(counts[one.sender] > MAX_TOOLS // SHARE for one in new.values())
            ):
                raise BadInput(f"{counts.total()} tools wait already")
            if changed == self._tools:
                return
            if self._path:
                _write(self._path, changed)
            self._tools = changed


def _write(path: Path, tools: Mapping[str, QuarantinedTool]) -> None:
    part = path.with_suffix(f".{os.getpid()}")
    data = json.dumps([asdict(item) for item in tools.values()], ensure_ascii=False).encode("utf-8", "replace")
    with part.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, path)


def _read(path: Path) -> dict[str, QuarantinedTool]:
    try:
        tools = {}
        for facts in json.loads(path.read_bytes()):
            parameters = tuple(Parameter(**parameter) for parameter in facts["tool"].pop("parameters"))
            tool = Tool(**facts["tool"], parameters=parameters)
            tools[tool.id] = QuarantinedTool(
                tool, tuple(facts["reasons"]), tuple(facts["flags"]), facts.get("sender", "")
            )
        return tools
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{path} is damaged; move it away, and add its tools again") from error
