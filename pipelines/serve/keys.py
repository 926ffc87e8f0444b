"""API keys and callers: create keys, recognize them by hash, enforce scopes and rate limits.

A key has 256 random bits, so a plain SHA-256 is a safe way to store it. Hashes are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipelines.serve.bounds.costs import Budget
from pipelines.serve.bounds.fairness import at_end
from pipelines.serve.calls.settings import AccessRules
from pipelines.serve.errors import Refusal, overloaded
from pipelines.serve.settings import KeySettings, Scope
from retrievers.types import Tool

MAX_ADDRESSES = 10_000
"""Addresses of callers without a key that are remembered."""
_KEY = re.compile(r"trw_[A-Za-z0-9_-]{43}")


def make_key() -> tuple[str, str]:
    """A new key and its hash."""
    key = "trw_" + secrets.token_urlsafe(32)
    return key, digest(key)


def digest(key: str) -> str:
    """The hash of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass(slots=True)
class Caller:
    """A caller with scopes and rate limits; 0 means no limit."""

    name: str
    scopes: frozenset[str]
    per_minute: int = 0
    concurrent: int = 0
    access: AccessRules = field(default_factory=AccessRules)
    tokens_per_minute: int = 0
    clock: Callable[[], float] = time.monotonic
    address: str = ""
    """That of a caller without a key, who takes turns by it; empty: the key does."""
    _units: Budget = field(init=False)
    _tokens: Budget = field(init=False)
    running: int = 0
    """Requests that are running."""
    _bytes: int = 0
    """Of answers that are being made or sent."""

    def __post_init__(self) -> None:
        now = self.clock()
        self._units, self._tokens = Budget(self.per_minute, now), Budget(self.tokens_per_minute, now)

    @property
    def turn(self) -> str:
        """The name by which it takes turns with other callers."""
        return f"{self.name} {self.address}" if self.address else self.name

    def at(self, address: str) -> Caller:
        """The same caller at one address, with its own turns; the rate limit is common to all."""
        access, clock = self.access, lambda: self.clock()
        own = Caller(self.name, self.scopes, self.per_minute, self.concurrent, access, clock=clock, address=address)
        own._units = self._units
        return own

    def charge(self, scope: Scope, cost: int = 1) -> None:
        """Refuse a request that lacks the scope, or exceeds the rate limit."""
        if scope not in self.scopes:
            raise Refusal(403, "forbidden", f"this key has no scope {scope!r}")
        if seconds := self._units.spend(cost, self.clock()):
            raise overloaded(f"{self.name} may send {self.per_minute} per minute", seconds)

    def spend_tokens(self, tokens: int) -> bool:
        """Spend tokens of the rewriter; False if the key has too few left."""
        return not self._tokens.spend(tokens, self.clock())

    def may_find(self, tool: Tool) -> bool:
        return self.access.may_find(tool.id, tool.provider)

    def enter(self) -> None:
        """Count a request that starts, or refuse it."""
        if self.concurrent and self.running >= self.concurrent:
            raise overloaded(f"{self.name} may have {self.concurrent} requests at the same time")
        self.running += 1

    def leave(self) -> None:
        self.running -= 1

    def reserve(self, size: int, max_bytes: int) -> None:
        """Count the bytes of an answer until the request ends, or refuse it. A lone answer is never refused."""
        if self._bytes and self._bytes + size > max_bytes:
            left = max(0, max_bytes - self._bytes)
            message = f"answers of {self._bytes:,} bytes are on their way to {self.name}, and {left:,} more are allowed"
            raise overloaded(message)
        self._bytes += size
        at_end(lambda: self._release(size))

    def _release(self, size: int) -> None:
        self._bytes -= size


class Gate:
    """Recognizes callers by their keys."""

    def __init__(
        self,
        keys: Sequence[KeySettings],
        anonymous: Sequence[Scope],
        anonymous_per_minute: int = 0,
        access: AccessRules | None = None,
    ) -> None:
        """`access`: of callers without a key."""
        self._callers = [
            (
                key.sha256.encode(),
                Caller(
                    key.name,
                    frozenset(key.scopes),
                    key.per_minute,
                    key.concurrent,
                    key.access,
                    key.tokens_per_minute,
                ),
            )
            for key in keys
        ]
        self._anonymous: Caller | None = None
        self._by_address: OrderedDict[str, Caller] = OrderedDict()
        if anonymous:
            rules = access or AccessRules()
            self._anonymous = Caller("anonymous", frozenset(anonymous), anonymous_per_minute, access=rules)

    def admit(self, authorization: str | None, api_key: str | None, address: str = "") -> Caller:
        """The caller of a request with these headers, or a 401. Callers without a key differ by `address`."""
        if authorization is None and api_key is None:
            if self._anonymous is None:
                raise Refusal(401, "unauthorized", "send an API key as `Authorization: Bearer KEY`")
            return self._anonymous_at(self._anonymous, address) if address else self._anonymous
        if authorization is not None and api_key is not None:
            raise Refusal(401, "unauthorized", "send the API key once: as Authorization or as X-API-Key")
        key = api_key
        if authorization is not None:
            scheme, _, key = authorization.partition(" ")
            if scheme.lower() != "bearer":
                raise Refusal(401, "unauthorized", "send the API key as `Authorization: Bearer KEY`")
        return self._lookup(key or "")

    def _anonymous_at(self, anonymous: Caller, address: str) -> Caller:
        caller = self._by_address.get(address)
        if caller is None:
            caller = self._by_address[address] = anonymous.at(address)
        self._by_address.move_to_end(address)
        if len(self._by_address) > MAX_ADDRESSES:
            self._by_address.popitem(last=False)
        return caller

    def _lookup(self, key: str) -> Caller:
        match: Caller | None = None
        if _KEY.fullmatch(key):
            hashed = digest(key).encode()
            for known, caller in self._callers:  # compare with all, so the time does not tell which one matched
                if hmac.compare_digest(hashed, known):
                    match = caller
        if match is None:
            raise Refusal(401, "unauthorized", "this API key is not known here")
        return match
