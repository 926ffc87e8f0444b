"""The rewrites of late, by model, sampling and prompt: the prompt holds the template's words and the utterance."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict

from rewrite.settings import Sampling
from rewrite.types import Prompt, Rewrite


class RewriteCache:
    """Keeps the rewrites last used. Of what users said only a hash is a key, and nothing is written to disk."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[bytes, Rewrite] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @staticmethod
    def key(model: str, template: str, sampling: Sampling, prompt: Prompt) -> bytes:
        """Equal for what would be asked in the same words of the same model and read in the same way."""
        facts = [model, template, repr(sampling), prompt]
        return hashlib.sha256(json.dumps(facts).encode()).digest()

    def get(self, key: bytes) -> Rewrite | None:
        """The rewrite, now the youngest."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: bytes, rewrite: Rewrite) -> None:
        """Remembers one; the oldest makes room."""
        if self._most:
            self._kept[key] = rewrite
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
