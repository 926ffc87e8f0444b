"""Tools that wait for an admin's word: one JSON file, replaced in one step, on the disk before anybody is told."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock

from retrievers.errors import BadInput
from retrievers.types import Parameter, Tool

NAME = "held.json"
MOST = 10_000
"""Tools that may wait; a flood must not fill the disk."""


@dataclass(frozen=True, slots=True)
class Held:
    """A tool as it would come in, and why it has not."""

    tool: Tool
    reasons: tuple[str, ...]
    """One sentence each."""
    flags: tuple[str, ...]


class HeldTools:
    """All that waits. Without a folder it is forgotten when the server ends."""

    def __init__(self, folder: Path | None) -> None:
        self._path, self._turn = folder / NAME if folder else None, Lock()
        self._held: dict[str, Held] = {}
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        if self._path and self._path.exists():
            self._held = _read(self._path)

    @property
    def all(self) -> Mapping[str, Held]:
        """By id, oldest first."""
        return self._held

    def keep(self, new: Iterable[Held], gone: Iterable[str] = ()) -> None:
        """Has tools wait; one that waits already is replaced. `gone`: ids that wait no longer, in the same step."""
        self._change({each.tool.id: each for each in new}, set(gone))

    def drop(self, ids: Sequence[str]) -> list[Tool]:
        """Lets tools go, to wherever the caller brings them."""
        found = [self._held[tool].tool for tool in ids if tool in self._held]
        self._change({}, {tool.id for tool in found})
        return found

    def _change(self, new: Mapping[str, Held], gone: Set[str]) -> None:
        with self._turn:
            changed = {tool: each for tool, each in self._held.items() if tool not in gone} | dict(new)
            if len(changed) > MOST and new:
                raise BadInput(f"{MOST} tools wait already")
            if changed == self._held:
                return
            if self._path:
                _write(self._path, changed)
            self._held = changed


def _write(path: Path, held: Mapping[str, Held]) -> None:
    part = path.with_suffix(f".{os.getpid()}")
    data = json.dumps([asdict(each) for each in held.values()], ensure_ascii=False).encode("utf-8", "replace")
    with part.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, path)


def _read(path: Path) -> dict[str, Held]:
    try:
        found = {}
        for facts in json.loads(path.read_bytes()):
            parameters = tuple(Parameter(**one) for one in facts["tool"].pop("parameters"))
            tool = Tool(**facts["tool"], parameters=parameters)
            found[tool.id] = Held(tool, tuple(facts["reasons"]), tuple(facts["flags"]))
        return found
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{path} is damaged; move it away, and add the tools in it again") from error
