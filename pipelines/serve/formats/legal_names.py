"""Names that a model API takes for tools that are called anything, one tool a name, and the way back.

A name that is legal and nobody else's stays. Any other gets its illegal characters replaced; where several tools come
to the same, each ends in a hash of its id. A name that looks as if it ended in such a hash gets one as well, so that
nobody can take another's.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

_HASHED = re.compile(r"_[0-9a-f]{8}$")


class LegalNames:
    """The names of one catalogue for one API."""

    def __init__(self, tools: Iterable[tuple[str, str]], extra: str, longest: int) -> None:
        """`tools`: ids and names. `extra`: characters beside letters, digits, - and _."""
        self._illegal, self._longest = re.compile(rf"[^A-Za-z0-9_{re.escape(extra)}-]+"), longest
        self._taken = Counter(self._plain(name) for _, name in tools)

    def of(self, tool_id: str, name: str) -> str:
        """A tool's name; the same for as long as the catalogue is the same."""
        plain = self._plain(name)
        if self._taken[plain] <= 1 and not _HASHED.search(plain):
            return plain
        digest = hashlib.sha256(tool_id.encode("utf-8", "replace")).hexdigest()[:8]
        return f"{plain[: self._longest - 9]}_{digest}"

    def _plain(self, name: str) -> str:
        folded = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode() if not name.isascii() else name
        return self._illegal.sub("_", folded).strip("_")[: self._longest] or "tool"
