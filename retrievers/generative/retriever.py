"""A retriever that says its tools: constrained beam search over the codes of the tools that can be found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from retrievers.generative.chat_format import Frames
from retrievers.generative.decoding.beam import Run, search
from retrievers.generative.decoding.trie import Trie
from retrievers.generative.settings import Asking
from retrievers.rows import Rows
from retrievers.text import clean
from retrievers.types import Ranking, ToolId

if TYPE_CHECKING:
    from retrievers.generative.decoding.free_text import Speech

DIGITS = 4
"""Decimals of a score: the rest depends on how a batch was cut."""

Start = Callable[[Sequence[Sequence[int]]], Run]


class Generative:
    """Queries in, tools out, each with the logarithm of its probability."""

    def __init__(
        self,
        start: Start,
        frames: Frames,
        trie: Trie,
        rows: Rows,
        fingerprint: str,
        settings: Asking,
        rows_at_once: Callable[[int], int],
    ) -> None:
        """`rows_at_once`: beams of all queries, so many tokens long, that may be under way together."""
        self.speech: Callable[[], Speech] | None = None
        """For an agent, which says more than tools."""
        self.branches: Mapping[ToolId, tuple[int, ...]] = {}
        """Where in a tree of codes each tool is, for kinds that have one."""
        self._start, self.frames, self._rows, self._settings = start, frames, rows, settings
        self.trie, self.fingerprint, self._rows_at_once = trie, fingerprint, rows_at_once

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        texts = [clean(query) for query in queries]
        # Prompts of one length need no padding, and equal ones are asked once.
        prompts = {text: self.frames.question(text, self._settings.max_length) for text in texts if text}
        order = sorted(prompts, key=lambda text: (len(prompts[text]), text))
        width = max(self._settings.beams, k)
        deep = bool((self.trie.only[self.trie.children(np.zeros(1, np.int64))[2]] < 0).any())
        found: dict[str, Ranking] = {}
        while len(found) < len(order):
            some = order[len(found) :][: self._settings.batch_size]
            if deep:
                some = some[: max(1, self._rows_at_once(len(prompts[some[-1]])) // width)]
            run = self._start([prompts[text] for text in some])
            early = self._settings.scores == "catalogue"
            for text, (ends, scores) in zip(some, search(run, len(some), self.trie, width, k, early), strict=True):
                found[text] = self._ranking(ends, scores, k)
        return [found.get(text, Ranking()) for text in texts]

    def choose(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """The row of the likeliest tool after each prompt: an agent's choice in the midst of a conversation."""
        found = []
        width = self._settings.beams
        for start in range(0, len(prompts), self._settings.batch_size):
            some = prompts[start : start + self._settings.batch_size]
            early = self._settings.scores == "catalogue"
            for ends, scores in search(self._start(some), len(some), self.trie, width, 1, early):
                found.append(min(self.trie.rows[int(ends[int(scores.argmax())])]))
        return found

    def _ranking(self, ends: np.ndarray, scores: np.ndarray, k: int) -> Ranking:
        held = [self.trie.rows[end] for end in ends.tolist()]
        rows = np.array([row for each in held for row in each], dtype=np.int64)
        return self._rows.ranking(rows, np.repeat(scores, [len(each) for each in held]), k, DIGITS)
