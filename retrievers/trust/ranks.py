"""Limits on the ranks of providers that are not vetted.

A tool of a new provider is proven once it was used often enough; until then it is a newcomer. Newcomers get a share of
the ranks, a few per provider, not the first, and only the oldest of several that read alike. They take the ranks of the
last tools, those that are used least first; a list of tools that were all used before has a rank for a newcomer in one
search of five. So honest newcomers can prove themselves, and an imitation takes little of what established tools have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from retrievers.trust.tiers import TrustSettings
from retrievers.types import Ranking, ToolId

EXPLORED = 5
"""One search of this many shows a newcomer among tools that were all used before."""
REACH = 2
"""Tools above the last ones among which the least used is looked for too; more would cost the best tools their ranks
where the logs know few tools."""
ALIKE = 0.15
"""Cosine of two newcomers' words from which on only the older one is shown."""


@dataclass(frozen=True, slots=True)
class TrustEvidence:
    """Facts about tools, beyond the tiers of their providers."""

    provider_of: Callable[[ToolId], str]
    uses: Mapping[ToolId, int] = field(default_factory=dict)
    """Number of times that a tool was confirmed or called; a tool without is not in it."""
    alike: Callable[[ToolId, ToolId], float] = lambda one, other: 0.0
    """Cosine of two tools' words."""
    row_of: Callable[[ToolId], int] = lambda tool: 0
    """A tool's row: those of older tools are lower."""


def explores(utterance: str, salt: str) -> bool:
    """True for one utterance of five; an attacker without the salt cannot tell for which."""
    digest = hashlib.sha256(f"{salt}/{utterance}".encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8], "big") % EXPLORED == 0


def apply_trust(
    ranking: Ranking, k: int, trust: TrustSettings, evidence: TrustEvidence, explore: bool = True
) -> Ranking:
    """The k tools of a ranking that trust allows. Scores stay in descending order: they belong to ranks now."""
    if not trust.limits_rankings:
        return ranking.cut(k)
    uses, new, established = evidence.uses, list[ToolId](), list[ToolId]()
    for tool in ranking.ids:
        if len(established) == k:
            break
        tier = trust.tier(evidence.provider_of(tool))
        if tier == "new" and not trust.is_proven(uses.get(tool, 0)):
            new.append(tool)
        elif tier != "blocked":
            established.append(tool)
    seen = {*new, *established}
    allowed = [tool for tool in ranking.ids if tool in seen]
    room = k - sum(tool in uses for tool in established)
    max_new = min(max(1, int(trust.max_share * k)), room or int(explore))
    newcomers = _choose_newcomers(allowed, frozenset(new), k, max_new, trust, evidence)
    surplus = max(0, len(established) + len(newcomers) - k)
    last = established[-surplus - REACH :] if surplus else []
    left_out = set(sorted(reversed(last), key=lambda tool: uses.get(tool, 0))[:surplus])
    chosen = {*newcomers, *established} - left_out
    kept = [tool for tool in allowed if tool in chosen]
    leader = next((tool for tool in kept if tool in established), None)
    if leader is not None and not trust.allow_first:
        kept = [leader, *(tool for tool in kept if tool != leader)]
    ranks = dict(zip(ranking.ids, range(len(ranking)), strict=True))
    return Ranking(
        tuple(kept),
        tuple(sorted((ranking.scores[ranks[tool]] for tool in kept), reverse=True)),
        tuple(ranking.probabilities[ranks[tool]] for tool in kept) if ranking.probabilities else (),
    )


def _choose_newcomers(
    ranked: Sequence[ToolId], new: Set[ToolId], k: int, max_new: int, trust: TrustSettings, evidence: TrustEvidence
) -> list[ToolId]:
    """Newcomers among the first k: a few per provider, and the oldest of those of several providers that read alike."""
    chosen, num_established = dict[ToolId, str](), 0
    for tool in ranked:
        if len(chosen) + num_established == k:
            break
        if tool not in new:
            num_established += 1
            continue
        provider = evidence.provider_of(tool).casefold()
        alike = [one for one, other in chosen.items() if other != provider and evidence.alike(tool, one) >= ALIKE]
        if any(evidence.row_of(one) <= evidence.row_of(tool) for one in alike):
            continue
        left = {one: other for one, other in chosen.items() if one not in alike}
        has_room = list(left.values()).count(provider) < (trust.max_per_provider or max_new)
        if has_room and len(left) < max_new:
            chosen = left | {tool: provider}
    return list(chosen)
