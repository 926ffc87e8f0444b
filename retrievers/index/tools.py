"""Tools as lines of JSON, the way a segment stores them."""

from __future__ import annotations

import difflib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np

from retrievers.errors import IndexBroken
from retrievers.types import Parameter, Tool, ToolId

_START, _NAME = '{"id": ', ', "name": '
"""Start of every line, and the text between id and name, the first two fields of a Tool."""
_DECODER = json.JSONDecoder()


def encode(tools: Sequence[Tool]) -> bytes:
    """One line per tool. An empty `call` is left out, so that older versions read the line."""
    lines = (json.dumps(_facts(tool), ensure_ascii=False) + "\n" for tool in tools)
    return "".join(lines).encode("utf-8", "replace")


def _facts(tool: Tool) -> dict[str, Any]:
    facts = asdict(tool)
    return facts if tool.call else {key: value for key, value in facts.items() if key != "call"}


def decode(line: bytes | str) -> Tool:
    """A tool out of its line."""
    facts: dict[str, Any] = json.loads(line)
    parameters = tuple(Parameter(**parameter) for parameter in facts.pop("parameters"))
    return Tool(**facts, parameters=parameters)


class ToolLines(Sequence[Tool]):
    """The tools of a segment: ids and names are decoded at once, each tool on access."""

    def __init__(self, source: Path | str, texts: list[str] | None = None) -> None:
        """`texts`: the lines; None: those of the file `source`."""
        self._source = source
        try:
            # Not splitlines: a description may hold U+2028, which that would cut at.
            lines = Path(source).read_bytes().decode().split("\n") if texts is None else texts
            self.texts = [line for line in lines if line]
            self.ids: list[ToolId] = []
            self.names: list[str] = []
            for line in self.texts:
                tool, end = _DECODER.raw_decode(line, len(_START))
                self.ids.append(tool)
                self.names.append(_DECODER.raw_decode(line, end + len(_NAME))[0])
        except (ValueError, IndexError) as error:
            raise self._damaged() from error

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: int) -> Tool:  # type: ignore[override]
        try:
            return decode(self.texts[row])
        except (ValueError, TypeError, KeyError) as error:
            raise self._damaged() from error

    def _damaged(self) -> IndexBroken:
        return IndexBroken(f"{self._source} is damaged; build the index again")


class LiveTools(Mapping[ToolId, Tool]):
    """The live tools of an index by id, in the order of their rows."""

    def __init__(self, segments: Sequence[ToolLines], live: np.ndarray) -> None:
        self._segments = segments
        self._ends = list(accumulate(map(len, segments)))
        ids = chain.from_iterable(lines.ids for lines in segments)
        # Plain numbers: 50,000 tuples would start the garbage collector for a third of a second.
        self._rows = {tool: row for row, (tool, alive) in enumerate(zip(ids, live.tolist(), strict=True)) if alive}

    def __getitem__(self, tool: ToolId) -> Tool:
        segment, row = self._locate(tool)
        return segment[row]

    def line(self, tool: ToolId) -> str:
        """The tool as it is stored, not decoded."""
        segment, row = self._locate(tool)
        return segment.texts[row]

    def _locate(self, tool: ToolId) -> tuple[ToolLines, int]:
        """The tool's segment, and its row counted from the segment's end."""
        row = self._rows[tool]
        segment = bisect_right(self._ends, row)
        return self._segments[segment], row - self._ends[segment]

    def row_of(self, tool: ToolId) -> int:
        """The tool's row: the lower, the longer it is in the index unchanged."""
        return self._rows[tool]

    def segment_of(self, tool: ToolId) -> int | None:
        """Index of the segment with the tool's live row."""
        row = self._rows.get(tool)
        return None if row is None else bisect_right(self._ends, row)

    def names(self) -> Iterator[tuple[ToolId, str]]:
        """Ids and names, without decoding the tools."""
        names = list(chain.from_iterable(lines.names for lines in self._segments))
        return ((tool, names[row]) for tool, row in self._rows.items())

    def __contains__(self, tool: object) -> bool:  # Mapping's own would decode it
        return tool in self._rows

    def __iter__(self) -> Iterator[ToolId]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def unknown_ids(index: object, missing: Sequence[ToolId], known: Iterable[ToolId]) -> str:
    """Message about ids that the index does not have, with the one that was probably meant."""
    wanted, ids = missing[0], list(known)
    # A tool's bare name is the most frequent mistake, so that is looked for first.
    near = [tool for tool in ids if tool.endswith(f"/{wanted}")] or difflib.get_close_matches(wanted, ids, n=1)
    more = f" (and {len(missing) - 1} more)" * (len(missing) > 1)
    way = f"did you mean {near[0]!r}?" if near else "give ids as `rewrite-index search` shows them"
    return f"{index} has no tool {wanted!r}{more}; {way}"
