"""API keys: made here, kept as hashes, compared in constant time.

A key is 256 random bits, so a plain SHA-256 of it is enough: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipelines.serve.errors import Refusal, overloaded
from pipelines.serve.settings import KeySettings, Scope

PREFIX = "trw_"
_KEY = re.compile(r"trw_[A-Za-z0-9_-]{43}")


def make_key() -> tuple[str, str]:
    """A new key and its hash."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, digest(key)


def digest(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass(slots=True)
class Caller:
    """Somebody who may do something, and how much of it is left."""

    name: str
    scopes: frozenset[str]
    per_minute: int = 0
    concurrent: int = 0
    clock: Callable[[], float] = time.monotonic
    _tokens: float = field(init=False)
    _seen: float = field(init=False)
    _busy: int = 0

    def __post_init__(self) -> None:
        self._tokens, self._seen = float(self.per_minute), self.clock()

    def need(self, scope: Scope) -> None:
        """Refuses what the key is not for."""
        if scope not in self.scopes:
            raise Refusal(403, "forbidden", f"this key has no scope {scope!r}")

    def spend(self, cost: int) -> None:
        """Takes so much from the minute's share; a request larger than the whole share empties it."""
        if not self.per_minute:
            return
        now = self.clock()
        rate = self.per_minute / 60.0
        self._tokens = min(float(self.per_minute), self._tokens + (now - self._seen) * rate)
        self._seen = now
        wanted = min(cost, self.per_minute)
        if self._tokens < wanted:
            raise overloaded(f"{self.name} has {self.per_minute} a minute", (wanted - self._tokens) / rate)
        self._tokens -= wanted

    def enter(self) -> None:
        """One more request at the same time."""
        if self.concurrent and self._busy >= self.concurrent:
            raise overloaded(f"{self.name} may have {self.concurrent} requests at the same time")
        self._busy += 1

    def leave(self) -> None:
        """One less."""
        self._busy -= 1


class Gate:
    """Knows who is calling."""

    def __init__(self, keys: Sequence[KeySettings], anonymous: Sequence[Scope], anonymous_share: int = 0) -> None:
        """`anonymous_share`: what all callers without a key have together a minute; 0: no limit."""
        self._callers = [
            (key.sha256.encode(), Caller(key.name, frozenset(key.scopes), key.per_minute, key.concurrent))
            for key in keys
        ]
        self._anonymous = Caller("anonymous", frozenset(anonymous), anonymous_share) if anonymous else None

    def admit(self, authorization: str | None, api_key: str | None) -> Caller:
        """The caller, by his key, or as nobody in particular where such may come in."""
        if authorization is None and api_key is None:
            if self._anonymous is None:
                raise Refusal(401, "unauthorized", "send an API key as `Authorization: Bearer KEY`")
            return self._anonymous
        if authorization is not None and api_key is not None:
            raise Refusal(401, "unauthorized", "send the API key once: as Authorization or as X-API-Key")
        key = api_key
        if authorization is not None:
            scheme, _, key = authorization.partition(" ")
            if scheme.lower() != "bearer":
                raise Refusal(401, "unauthorized", "send the API key as `Authorization: Bearer KEY`")
        return self._known(key or "")

    def _known(self, key: str) -> Caller:
        found: Caller | None = None
        if _KEY.fullmatch(key):
            told = digest(key).encode()
            for kept, caller in self._callers:  # all of them, whichever it is
                if hmac.compare_digest(told, kept):
                    found = caller
        if found is None:
            raise Refusal(401, "unauthorized", "this API key is not known here")
        return found
