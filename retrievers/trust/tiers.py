"""Trust in providers: their tiers and the settings of the defences.

vetted    takes any rank
new       takes a share of the ranks, a few per provider, and the first only where nothing vetted was found, until
          its tools are used
blocked   is never shown

So a flood of tools, however near to a query, cannot push out vetted ones, and one provider cannot fill a list.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from annotated_types import Ge, Le

from retrievers.errors import BadInput

Tier = Literal["vetted", "new", "blocked"]
Flag = Literal["hidden", "stuffed", "imitation", "flood", "hub"]
FLAGS: tuple[Flag, ...] = ("hidden", "stuffed", "imitation", "flood", "hub")


@dataclass(frozen=True)
class TrustSettings:
    """Tiers of providers, limits on new ones, and tools that wait for approval."""

    default: Tier = "vetted"
    """Tier of providers that are not named; `new` turns the defences on."""
    vetted: tuple[str, ...] = ()
    """Providers; case does not matter."""
    new: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    max_share: Annotated[float, Ge(0), Le(1)] = 0.6
    """Share of a ranking for all new providers together; at least one rank."""
    max_per_provider: Annotated[int, Ge(0)] = 3
    """Ranks for one new provider; 0: no limit but the share."""
    proven_uses: Annotated[int, Ge(0)] = 3
    """Uses, by calls or feedback, after which a new provider's tool ranks like a vetted one; 0: never."""
    keys: tuple[str, ...] = ()
    """Keys whose calls and feedback count as uses; empty: all. Leave out those of people who add tools."""
    allow_first: bool = False
    """Let a new provider's tool rank before every vetted one."""
    hold: tuple[Flag, ...] = FLAGS
    """Flags that keep a tool out until it is approved: `hidden` for every provider, the others for new ones."""
    reapprove: bool = False
    """Keep the old version of a tool whose text has changed until the new one is approved."""

    def __post_init__(self) -> None:
        counts = Counter(name.casefold() for name in (*self.vetted, *self.new, *self.blocked))
        duplicates = [name for name, count in counts.items() if count > 1]
        if duplicates:
            raise BadInput(f"the provider {duplicates[0]!r} is named twice in vetted, new and blocked")

    @cached_property
    def _tiers(self) -> dict[str, Tier]:
        tiers: list[tuple[Tier, tuple[str, ...]]] = [
            ("vetted", self.vetted),
            ("new", self.new),
            ("blocked", self.blocked),
        ]
        return {name.casefold(): tier for tier, names in tiers for name in names}

    def tier(self, provider: str) -> Tier:
        """A provider's tier."""
        return self._tiers.get(provider.casefold(), self.default)

    def is_proven(self, uses: int) -> bool:
        """True for a tool whose uses make its provider's tier irrelevant."""
        return bool(self.proven_uses) and uses >= self.proven_uses

    @property
    def limits_rankings(self) -> bool:
        """True where some provider is not vetted."""
        return self.default != "vetted" or bool(self.new or self.blocked)

    def depth(self, k: int) -> int:
        """Ranks to look at, so that k are left."""
        return max(4 * k, 50) if self.limits_rankings else k
