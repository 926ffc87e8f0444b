"""What is said of ids that a catalogue does not have: which were perhaps meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from retrievers.types import ToolId


def unknown(where: object, strangers: Sequence[ToolId], known: Iterable[ToolId]) -> str:
    """A sentence without its end. A tool's bare name is the commonest slip, so that is looked for first."""
    wanted, ids = strangers[0], list(known)
    near = [each for each in ids if each.endswith(f"/{wanted}")] or difflib.get_close_matches(wanted, ids, n=1)
    more = f" (and {len(strangers) - 1} more)" * (len(strangers) > 1)
    way = f"did you mean {near[0]!r}?" if near else "give ids as `rewrite-index search` shows them"
    return f"{where} has no tool {wanted!r}{more}; {way}"
