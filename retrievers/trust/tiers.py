"""Whom a ranking trusts: tiers of providers, and what those that nobody has vetted may take of it.

vetted    takes any place
new       takes a share of the places, few of them each, and the first only where nothing vetted was found
blocked   is never shown

A flood of tools, however near to a query, then cannot push out what is vetted, and one provider cannot fill a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from retrievers.errors import BadInput
from retrievers.types import Ranking, ToolId

Tier = Literal["vetted", "new", "blocked"]
Flag = Literal["hidden", "stuffed", "imitation", "flood", "hub"]
FLAGS: tuple[Flag, ...] = ("hidden", "stuffed", "imitation", "flood", "hub")


@dataclass(frozen=True)
class TrustSettings:
    """Tiers, shares, and what is held back."""

    default: Tier = "vetted"
    """The tier of providers that are not named; `new` turns the defences on."""
    vetted: tuple[str, ...] = ()
    """Providers; case does not matter."""
    new: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    share: float = 0.6
    """Of the places of a ranking, for all new providers together; at least one place."""
    per_provider: int = 3
    """Places of a ranking for one new provider; 0: as many as the share has."""
    first: bool = False
    """Whether a new provider's tool may stand before every vetted one."""
    hold: tuple[Flag, ...] = FLAGS
    """Flags that keep a tool out until it is approved: `hidden` whoever brings it, the others for new providers."""
    reapprove: bool = False
    """Keep the old version of a tool whose text has changed until the new one is approved."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.per_provider < 0:
            raise BadInput("share is between 0 and 1, per_provider is not negative")
        named = Counter(name.casefold() for name in (*self.vetted, *self.new, *self.blocked))
        twice = [name for name, count in named.items() if count > 1]
        if twice:
            raise BadInput(f"the provider {twice[0]!r} stands in two tiers, or twice in one")

    @cached_property
    def _tiers(self) -> dict[str, Tier]:
        told: list[tuple[Tier, tuple[str, ...]]] = [
            ("vetted", self.vetted),
            ("new", self.new),
            ("blocked", self.blocked),
        ]
        return {name.casefold(): tier for tier, names in told for name in names}

    def tier(self, provider: str) -> Tier:
        """A provider's tier."""
        return self._tiers.get(provider.casefold(), self.default)

    @property
    def ranks(self) -> bool:
        """Whether a ranking can be changed at all."""
        return self.default != "vetted" or bool(self.new or self.blocked)

    def depth(self, k: int) -> int:
        """Places to look at, so that k are left."""
        return max(4 * k, 50) if self.ranks else k


def guarded(ranking: Ranking, k: int, provider_of: Callable[[ToolId], str], trust: TrustSettings) -> Ranking:
    """The k places of a ranking that trust allows. Scores stay in descending order: they belong to places now."""
    if not trust.ranks:
        return ranking.cut(k)
    room, kept, newcomers = max(1, int(trust.share * k)), list[ToolId](), Counter[str]()
    most = trust.per_provider or room
    vetted = dict[ToolId, bool]()
    for tool in ranking.ids:
        if len(kept) == k:
            break
        provider = provider_of(tool)
        tier = trust.tier(provider)
        if tier == "new" and newcomers.total() < room and newcomers[provider.casefold()] < most:
            newcomers[provider.casefold()] += 1
        elif tier != "vetted":
            continue
        vetted[tool] = tier == "vetted"
        kept.append(tool)
    leader = next((tool for tool in kept if vetted[tool]), None)
    if leader is not None and not trust.first:
        kept = [leader, *(tool for tool in kept if tool != leader)]
    scores = dict(zip(ranking.ids, ranking.scores, strict=True))
    return Ranking(tuple(kept), tuple(sorted((scores[tool] for tool in kept), reverse=True)))
