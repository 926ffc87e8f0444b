"""Tools as lines of JSON, the way a segment keeps them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from retrievers.errors import IndexBroken
from retrievers.types import Parameter, Tool


def encode(tools: Sequence[Tool]) -> bytes:
    """One line a tool."""
    return "".join(json.dumps(asdict(tool), ensure_ascii=False) + "\n" for tool in tools).encode("utf-8", "replace")


def decode(path: Path) -> list[Tool]:
    """The tools of a segment."""
    try:
        return decode_lines(path.read_bytes())
    except (ValueError, TypeError, KeyError) as error:
        raise IndexBroken(f"{path} is damaged; build the index again") from error


def decode_lines(data: bytes) -> list[Tool]:
    """Tools out of lines of JSON."""
    # Not splitlines: a description may hold U+2028, which that would cut at.
    rows = [json.loads(line) for line in data.split(b"\n") if line]
    return [
        Tool(**{**row, "parameters": tuple(Parameter(**parameter) for parameter in row["parameters"])}) for row in rows
    ]
