"""The generative retriever: constrained beam search over the codes of the live tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from retrievers.generative.chat_format import ChatFormat
from retrievers.generative.decoding.beam import Decoder, beam_search
from retrievers.generative.decoding.trie import Trie
from retrievers.generative.settings import GenerativeSettings
from retrievers.rows import Rows
from retrievers.text import clean
from retrievers.types import Ranking, ToolId

if TYPE_CHECKING:
    from retrievers.generative.decoding.free_text import TextGenerator

DIGITS = 4
"""Decimals of a score: the others depend on how queries were batched."""

StartDecoder = Callable[[Sequence[Sequence[int]]], Decoder]


class GenerativeRetriever:
    """Queries in, tools out, each with the logarithm of its probability."""

    def __init__(
        self,
        start: StartDecoder,
        chat: ChatFormat,
        trie: Trie,
        rows: Rows,
        fingerprint: str,
        settings: GenerativeSettings,
        max_rows: Callable[[int], int],
    ) -> None:
        """`max_rows(tokens)`: the number of beams of that length, over all queries, that fit into memory."""
        self.text_generator: Callable[[], TextGenerator] | None = None
        """Generates the free text of an agent."""
        self.branches: Mapping[ToolId, tuple[int, ...]] = {}
        """Each tool's path in the tree of codes, for kinds that have one."""
        self._start, self.chat, self._rows, self._settings = start, chat, rows, settings
        self.trie, self.fingerprint, self._max_rows = trie, fingerprint, max_rows

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        texts = [clean(query) for query in queries]
        # Prompts of one length need no padding, and equal ones are searched once.
        prompts = {text: self.chat.query_prompt(text, self._settings.max_length) for text in texts if text}
        order = sorted(prompts, key=lambda text: (len(prompts[text]), text))
        width = max(self._settings.beams, k)
        deep = bool((self.trie.only_end[self.trie.children(np.zeros(1, np.int64))[2]] < 0).any())
        rankings: dict[str, Ranking] = {}
        while len(rankings) < len(order):
            batch = order[len(rankings) :][: self._settings.batch_size]
            if deep:
                batch = batch[: max(1, self._max_rows(len(prompts[batch[-1]])) // width)]
            results = self._beam_search([prompts[text] for text in batch], width, k)
            for text, (ends, scores) in zip(batch, results, strict=True):
                rankings[text] = self._ranking(ends, scores, k)
        return [rankings.get(text, Ranking()) for text in texts]

    def choose(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """The row of the likeliest tool after each prompt: an agent's choice within a conversation."""
        rows = []
        for start in range(0, len(prompts), self._settings.batch_size):
            batch = prompts[start : start + self._settings.batch_size]
            for ends, scores in self._beam_search(batch, self._settings.beams, 1):
                rows.append(min(self.trie.rows[int(ends[int(scores.argmax())])]))
        return rows

    def _beam_search(self, prompts: Sequence[Sequence[int]], width: int, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
        stop_early = self._settings.scores == "catalogue"
        return beam_search(self._start(prompts), len(prompts), self.trie, width, k, stop_early)

    def _ranking(self, ends: np.ndarray, scores: np.ndarray, k: int) -> Ranking:
        groups = [self.trie.rows[end] for end in ends.tolist()]
        rows = np.array([row for group in groups for row in group], dtype=np.int64)
        return self._rows.ranking(rows, np.repeat(scores, [len(group) for group in groups]), k, DIGITS)
