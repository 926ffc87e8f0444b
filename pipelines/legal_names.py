"""Tool names that model APIs accept, unique within a catalogue.

A legal name that only one tool has stays. Otherwise illegal characters are replaced; names that collide get a hash of
the tool's id appended. A name that already ends like such a hash gets one too, so no tool can take another's name.
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

    def __init__(self, tools: Iterable[tuple[str, str]], extra: str, max_length: int) -> None:
        """`tools`: ids and names. `extra`: legal characters in addition to letters, digits, - and _."""
        self._illegal, self._max_length = re.compile(rf"[^A-Za-z0-9_{re.escape(extra)}-]+"), max_length
        self._taken = Counter(self._plain(name) for _, name in tools)

    def of(self, tool_id: str, name: str) -> str:
        """A tool's name; stable as long as the catalogue does not change."""
        plain = self._plain(name)
        if self._taken[plain] <= 1 and not _HASHED.search(plain):
            return plain
        digest = hashlib.sha256(tool_id.encode("utf-8", "replace")).hexdigest()[:8]
        return f"{plain[: self._max_length - 9]}_{digest}"

    def _plain(self, name: str) -> str:
        folded = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode() if not name.isascii() else name
        return self._illegal.sub("_", folded).strip("_")[: self._max_length] or "tool"
