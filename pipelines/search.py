"""ToolSearch: the one path of a query, for commands, evaluation, batch jobs and the server alike."""

from __future__ import annotations

from collections.abc import Sequence

from retrievers.fusion import ExactNames
from retrievers.index import Index
from retrievers.types import Ranking


class ToolSearch:
    """Utterances in, ranked tools out."""

    def __init__(self, index: Index, retriever: str) -> None:
        self._retriever = index.retriever(retriever)
        self._names = ExactNames(index.tools.names())
        self.fingerprint = self._retriever.fingerprint

    def find(self, utterances: Sequence[str], k: int) -> list[Ranking]:
        """One ranking an utterance. A tool that the utterance names outright stands first."""
        rankings = self._retriever.search(utterances, k)
        return [
            self._names.promote(utterance, ranking, k) for utterance, ranking in zip(utterances, rankings, strict=True)
        ]
