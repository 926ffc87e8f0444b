"""LRU cache of recent rewrites, by model, template, sampling and prompt."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict

from rewrite.settings import Sampling
from rewrite.types import Prompt, Rewrite


class RewriteCache:
    """Keeps the rewrites used last, in memory only; keys are hashes, not the users' words."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._rewrites: OrderedDict[bytes, Rewrite] = OrderedDict()

    @staticmethod
    def key(model: str, template: str, sampling: Sampling, prompt: Prompt) -> bytes:
        """Equal for the same prompt to the same model, read by the same template."""
        return hashlib.sha256(json.dumps([model, template, repr(sampling), prompt]).encode()).digest()

    def get(self, key: bytes) -> Rewrite | None:
        rewrite = self._rewrites.get(key)
        if rewrite is not None:
            self._rewrites.move_to_end(key)
        return rewrite

    def put(self, key: bytes, rewrite: Rewrite) -> None:
        self._rewrites[key] = rewrite
        self._rewrites.move_to_end(key)
        while len(self._rewrites) > self._max_size:
            self._rewrites.popitem(last=False)
