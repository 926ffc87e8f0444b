"""What can be set of the server. Stdlib only, so that reading a config costs nothing."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Literal

from pipelines.database.settings import DatabaseSettings
from pipelines.serve.mcp.settings import McpSource
from pipelines.serve.rewriter.settings import ServedRewriter
from retrievers.errors import BadInput
from retrievers.trust.tiers import TrustSettings

Scope = Literal["search", "write", "admin"]
"""search: ask. write: change the catalogue, give feedback. admin: the routes that are off by default."""


@dataclass(frozen=True, slots=True)
class KeySettings:
    """An API key, as `rewrite-serve key` prints it; the key itself is nowhere."""

    name: str
    sha256: str
    scopes: tuple[Scope, ...] = ("search",)
    per_minute: int = 0
    """Utterances and changes a minute; 0: as many as the server bears."""
    concurrent: int = 0
    """Requests at the same time; 0: as many as the server bears."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise BadInput("a key's hash is 64 hexadecimal digits; make one with `rewrite-serve key`", "sha256")
        if not re.fullmatch(r"[\w.-]{1,64}", self.name):
            raise BadInput("a key's name is made of at most 64 letters, digits, - . and _", "name")
        if not self.scopes or min(self.per_minute, self.concurrent) < 0:
            raise BadInput("a key has at least one scope, and limits that are not negative")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request, and all of them together, may cost."""

    bytes: int = 1_048_576
    """Of a request's body."""
    utterances: int = 64
    """In one request."""
    characters: int = 8_000
    """Of an utterance."""
    places: int = 200
    """The largest k."""
    in_flight: int = 256
    """Requests at the same time, of callers who were let in; the next gets 429."""
    waiting: int = 1_024
    """Texts that wait for retrieval; the next get 429."""
    tools: int = 500
    """In one change of the catalogue."""
    body_seconds: float = 10.0
    """For a request's body to arrive."""
    anonymous_per_minute: int = 0
    """Utterances and changes a minute of all callers without a key together; 0: as many as the server bears."""

    def __post_init__(self) -> None:
        counts = (self.utterances, self.characters, self.places, self.in_flight, self.waiting, self.tools)
        if min(counts) < 1 or self.bytes < 1024 or self.body_seconds <= 0 or self.anonymous_per_minute < 0:
            raise BadInput("limits are at least 1, bytes at least 1024, and anonymous_per_minute at least 0")
        if self.characters > 20_000 or self.waiting < self.utterances:
            raise BadInput("characters are at most 20000, and as many texts may wait as one request has")


@dataclass(frozen=True, slots=True)
class Imports:
    """Catalogues fetched from URLs, on an admin's word."""

    hosts: tuple[str, ...] = ()
    """Hosts that may be asked; none: no import at all."""
    private: bool = False
    """Also hosts with private addresses, and plain http."""
    bytes: int = 20_000_000
    seconds: float = 20.0

    def __post_init__(self) -> None:
        if self.bytes < 1 or self.seconds <= 0:
            raise BadInput("bytes and seconds are positive")


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """`rewrite-serve`."""

    index: str = ""
    """The folder of the index, unless the catalogue is shared by way of a database; `bundled:sample`: one to try."""
    database: DatabaseSettings | None = None
    """The database that holds the catalogue for all gateways; see `rewrite-index push`."""
    retriever: str = "auto"
    """Which of the index's retrievers answers; auto: the one that is recommended (docs/choosing.md)."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """What runs the language model of a generative retriever."""
    rewriter: ServedRewriter | None = None
    """None: raw retrieval alone."""
    host: str = "127.0.0.1"
    port: int = 8080
    hosts: tuple[str, ...] = ()
    """Names by which callers may address the server; none: its own on the loopback, any elsewhere."""
    keys: tuple[KeySettings, ...] = ()
    anonymous: tuple[Scope, ...] = ()
    """What callers without a key may do."""
    admin: bool = False
    """Turns the admin routes on."""
    page: bool = True
    """A page for people at /."""
    reports: dict[str, str] = field(default_factory=dict)
    """Names, and the run folders whose report.html the page shows under them."""
    deadline_ms: int = 800
    """Until when the rewriter may answer, where a request does not say; raw retrieval does not wait for it."""
    longest_deadline_ms: int = 30_000
    limits: Limits = field(default_factory=Limits)
    workers: int = 2
    """Threads that search."""
    batch: int = 16
    """Texts that are searched together at the most; more are padded more than they gain."""
    least_probability: float | None = None
    """From which probability of the detector's on an utterance needs a tool, where a request does not say; none: as
    dev chose when the index was trained, and 0.4 for `bundled:sample` (docs/choosing.md). 0 lets everything through."""
    learn: bool = False
    """Have the index remember feedback at once; it must have a retriever of kind masstool."""
    feedback: str = ""
    """The folder for what callers confirm; empty: not taken, or put into the database where there is one."""
    imports: Imports = field(default_factory=Imports)
    mcp: tuple[McpSource, ...] = ()
    """MCP servers whose tools are kept in step."""
    trust: TrustSettings = field(default_factory=lambda: TrustSettings(hold=()))
    """Whom rankings trust, and what waits for an admin's word; left out: everybody, and nothing."""
    held: str = ""
    """The folder for tools that wait; empty: they are forgotten when the server ends."""
    watch_seconds: float = 2.0
    """How often index and rewriter are looked at for a newer version; 0: never."""
    drain_seconds: float = 30.0
    """For requests under way when the server is told to stop."""
    log_queries: bool = False
    """Write what users say into the log."""
    traces: bool = False
    """OpenTelemetry spans, sent where $OTEL_EXPORTER_OTLP_ENDPOINT says."""

    def __post_init__(self) -> None:
        if bool(self.index) == (self.database is not None):
            raise BadInput("name the folder of an index, or a database that holds the catalogue", "index")
        if not 0 <= self.port < 65536 or min(self.workers, self.batch) < 1:
            raise BadInput("port is below 65536, workers and batch are at least 1")
        if not 1 <= self.deadline_ms <= self.longest_deadline_ms:
            raise BadInput("between 1 and longest_deadline_ms", "deadline_ms")
        if self.least_probability is not None and not 0 <= self.least_probability <= 1:
            raise BadInput("a probability lies between 0 and 1", "least_probability")
        if min(self.watch_seconds, self.drain_seconds) < 0:
            raise BadInput("watch_seconds and drain_seconds must not be negative")
        if len({key.name for key in self.keys}) < len(self.keys):
            raise BadInput("two keys have the same name", "keys")
        for name in self.reports:
            if not re.fullmatch(r"[\w.-]{1,64}", name):
                raise BadInput("a report's name is made of at most 64 letters, digits, - . and _", "reports")
        if len({source.name for source in self.mcp}) < len(self.mcp) or not all(source.name for source in self.mcp):
            raise BadInput("every MCP server has a name of its own", "mcp")
        if not self.keys and not self.anonymous:
            raise BadInput(
                "nobody could get in: make a key with `rewrite-serve key`, or say with `anonymous` what callers "
                "without one may do",
                "keys",
            )
        if not self.loopback and set(self.anonymous) - {"search"}:
            raise BadInput("callers without a key may at most search, unless the host is the loopback", "anonymous")

    @property
    def loopback(self) -> bool:
        """True where only this machine can call."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
