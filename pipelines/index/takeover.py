"""Refuse to replace the tools of an API by those of another one, such as its next version."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from retrievers.errors import BadInput
from retrievers.types import Tool


def refuse_takeover(index: Path, known: Mapping[str, Tool], tools: Sequence[Tool]) -> None:
    """Refuse tools whose ids belong to operations with another address."""
    taken = list(_taken(known, tools))
    if not taken:
        return
    old, new = taken[0]
    name = f"{new.provider} v{_facts(new).get('version', '').partition('.')[0] or 2}"
    raise BadInput(
        f"{index} has other operations with {len(taken)} of these ids, first {new.id!r} ({_shown(old)}, now "
        f"{_shown(new)}); keep both with --provider {name!r}, or replace the old ones with --replace"
    )


def _taken(known: Mapping[str, Tool], tools: Sequence[Tool]) -> Iterator[tuple[Tool, Tool]]:
    for tool in tools:
        # Tools of other formats, and of indexes built before calls were stored, have no address to compare.
        if tool.call and tool.id in known and known[tool.id].call and _address(known[tool.id]) != _address(tool):
            yield known[tool.id], tool


def _address(tool: Tool) -> tuple[str, ...]:
    facts = _facts(tool)
    server, version = facts.get("server", ""), facts.get("version", "")
    # Without a server the version is all that tells two versions of an API apart.
    where = server.partition("://")[2] if "://" in server else f"{server} {version.partition('.')[0]}"
    return facts.get("method", ""), where, facts.get("path", "")


def _shown(tool: Tool) -> str:
    facts = _facts(tool)
    version = f" of version {facts['version']}" if facts.get("version") else ""
    return f"{facts.get('method')} {facts.get('server', '')}{facts.get('path')}{version}"


def _facts(tool: Tool) -> dict[str, str]:
    facts: dict[str, str] = json.loads(tool.call)
    return facts
