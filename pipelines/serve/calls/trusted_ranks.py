"""Trust in rankings that are served: tiers of the config, uses of the logs, words of the catalogue."""

from __future__ import annotations

import secrets
from collections import Counter
from pathlib import Path

from pipelines.serve.calls.uses import UseCounts
from pipelines.serve.catalogue.checks import TRUST_ALL
from pipelines.serve.catalogue.live_index import LiveCatalogue, Snapshot
from pipelines.serve.settings import ServeConfig
from retrievers.trust.ranks import TrustEvidence, apply_trust, explores
from retrievers.trust.screening import MAX_READ, Screening
from retrievers.types import Ranking


class TrustedRanks:
    """Applies trust to rankings."""

    def __init__(self, config: ServeConfig, catalogue: LiveCatalogue) -> None:
        """Weighs the words of the catalogue by their frequency, once: they hardly change with it."""
        self._trust, self._catalogue = config.trust or TRUST_ALL, catalogue
        folders = [Path(folder).expanduser() for folder in (config.feedback, config.calls.log) if folder]
        self._uses, self._salt = UseCounts(folders, self._trust.keys), secrets.token_hex(8)
        self.limits = self._trust.limits_rankings
        """True where some provider is not vetted."""
        self._provider_uses: Counter[str] = Counter()
        tools = catalogue.current.index.tools
        ids = list(tools)[:: max(1, -(-len(tools) // MAX_READ))] if self.limits else []
        self._screening = Screening([tools[tool] for tool in ids])
        self.read_uses()

    def read_uses(self) -> None:
        """Count the uses of tools that were logged since the last time."""
        if self.limits and self._uses.read():
            labels, uses = self._catalogue.current.labels, Counter[str]()
            for tool, count in self._uses.counts.items():
                if tool in labels:
                    uses[labels[tool][0]] += count
            self._provider_uses = uses

    def depth(self, k: int) -> int:
        """Ranks to look at, so that k are left."""
        return self._trust.depth(k)

    def apply(self, snapshot: Snapshot, utterance: str, ranking: Ranking, k: int) -> Ranking:
        """The k tools of a ranking that trust allows."""
        tools = snapshot.index.tools
        evidence = TrustEvidence(
            lambda tool: tools[tool].provider,
            self._uses.counts,
            self._provider_uses,
            lambda one, other: self._screening.cosine(tools[one], tools[other]),
            tools.row_of,
        )
        return apply_trust(ranking, k, self._trust, evidence, explores(utterance, self._salt))
