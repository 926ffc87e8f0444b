"""Trust in rankings that are served: tiers of the config, uses of the logs, words of the catalogue."""

from __future__ import annotations

import secrets
from pathlib import Path

from pipelines.serve.calls.uses import UseCounts
from pipelines.serve.catalogue.checks import TRUST_ALL
from pipelines.serve.catalogue.feedback import FeedbackStore
from pipelines.serve.catalogue.live_index import Snapshot
from pipelines.serve.settings import ServeConfig
from retrievers.trust.ranks import TrustEvidence, apply_trust, explores
from retrievers.trust.screening import MAX_READ, Screening
from retrievers.types import Ranking


class TrustedRanks:
    """Applies trust to rankings."""

    def __init__(self, config: ServeConfig, snapshot: Snapshot) -> None:
        """`snapshot`: its words are weighed by their frequency, once; they hardly change with the catalogue."""
        self._trust = config.trust or TRUST_ALL
        folders = [Path(folder).expanduser() for folder in (config.feedback, config.calls.log) if folder]
        self._uses, self._salt = UseCounts(folders, self._trust.keys), secrets.token_hex(8)
        self.limits = self._trust.limits_rankings
        """True where some provider is not vetted."""
        tools = snapshot.index.tools
        ids = list(tools)[:: max(1, -(-len(tools) // MAX_READ))] if self.limits else []
        self._screening = Screening([tools[tool] for tool in ids])
        self.read_uses()

    def read_uses(self, feedback: FeedbackStore | None = None) -> None:
        """Count the uses of tools that were logged, or came into a shared database, since the last time."""
        if self.limits:
            self._uses.read()
            for record in feedback.read_new() if feedback else ():
                self._uses.count(record)

    def depth(self, k: int) -> int:
        """Ranks to look at, so that k are left."""
        return self._trust.depth(k)

    def apply(self, snapshot: Snapshot, utterance: str, ranking: Ranking, k: int) -> Ranking:
        """The k tools of a ranking that trust allows."""
        tools = snapshot.index.tools
        evidence = TrustEvidence(
            lambda tool: tools[tool].provider,
            self._uses.counts,
            lambda one, other: self._screening.cosine(tools[one], tools[other]),
            tools.row_of,
        )
        return apply_trust(ranking, k, self._trust, evidence, explores(utterance, self._salt))
