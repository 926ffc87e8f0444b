"""Settings of the server. Imports no heavy library, so reading a config is fast."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval, Lt

from pipelines.database.settings import DatabaseSettings
from pipelines.rerank.settings import RerankSettings
from pipelines.serve.calls.settings import AccessRules, ApiSource, CallSettings
from pipelines.serve.rewriter.settings import ServedRewriter
from retrievers.errors import BadInput
from retrievers.trust.tiers import TrustSettings

Scope = Literal["search", "call", "write", "admin"]
"""search: find tools. call: call them. write: change the catalogue, give feedback. admin: routes that are off by
default."""
_NAME = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True, slots=True)
class KeySettings:
    """An API key as `rewrite-serve key` prints it; only its hash is stored."""

    name: str
    sha256: str
    scopes: tuple[Scope, ...] = ("search",)
    access: AccessRules = field(default_factory=AccessRules)
    """The tools that it may find and call."""
    per_minute: Annotated[int, Ge(0)] = 0
    """Utterances and changes per minute; 64 kB of an answer, or 1,024 tokens of rewriter and reranker, count as one
    more; 0: no limit."""
    tokens_per_minute: Annotated[int, Ge(0)] = 0
    """Tokens of the rewriter per minute: of prompts, and of the longest answers to them, since they are counted before.
    Beyond them a search returns the raw ranking, with the fallback `budget`. Cached rewrites cost none; 0: no limit."""
    concurrent: Annotated[int, Ge(0)] = 0
    """Requests at the same time; 0: no limit."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            message = f"a hash has 64 hexadecimal digits, got {self.sha256!r}; make a key with `rewrite-serve key`"
            raise BadInput(message, "sha256")
        _check_name(self.name, "name")
        if not self.scopes:
            raise BadInput("a key needs at least one scope, got none", "scopes")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one request, and of all requests together."""

    bytes: Annotated[int, Ge(1024)] = 1_048_576
    """Size of a request's body."""
    utterances: Annotated[int, Ge(1)] = 64
    """Utterances per request."""
    characters: Annotated[int, Interval(ge=1, le=20_000)] = 8_000
    """Characters per utterance."""
    k: Annotated[int, Ge(1)] = 200
    """The largest `k` of a search."""
    in_flight: Annotated[int, Ge(1)] = 256
    """Requests at the same time; further ones get 429. A key has at most three quarters of them, and a quarter while
    other keys are active."""
    running: Annotated[int, Ge(1)] = 32
    """Requests that are worked on at the same time; others wait, and keys take turns. While other keys are active, a
    key has at most a sixteenth. Waiting for the rewriter does not count."""
    queue_seconds: Annotated[float, Gt(0)] = 1.0
    """Seconds that a request may wait for its turn, and as long again for its large body to be read; then it gets
    429."""
    answer_bytes: Annotated[int, Ge(65_536)] = 4_194_304
    """Size of an answer. A search that would exceed it is refused at once, with a size that fits. The answers of one
    key that are being made or sent may have four times as much together."""
    tools: Annotated[int, Ge(1)] = 500
    """Tools per change of the catalogue."""
    body_seconds: Annotated[float, Gt(0)] = 10.0
    """Seconds for a request's body to arrive."""
    anonymous_per_minute: Annotated[int, Ge(0)] = 0
    """Utterances and changes per minute of all callers without a key together; 0: no limit."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of connections, which anybody can open without a key."""

    total: Annotated[int, Ge(1)] = 1024
    """Connections at the same time; fewer if there are too few file handles. Further ones take the place of one that
    waits, or else may only ask for health."""
    per_address: Annotated[int, Ge(1)] = 256
    """The same for one address (IPv6: 64 bits of it); a proxy in front is one address."""
    header_seconds: Annotated[float, Gt(0)] = 10.0
    """Seconds for a request's headers to arrive."""
    idle_seconds: Annotated[float, Gt(0)] = 5.0
    """Seconds that a connection may wait for its next request."""
    stall_seconds: Annotated[float, Gt(0)] = 20.0
    """Seconds in which a caller must take some of its answer."""


@dataclass(frozen=True, slots=True)
class ImportRules:
    """Rules for catalogues and MCP servers that are fetched over HTTP."""

    hosts: tuple[str, ...] = ()
    """Hosts that may be asked; empty: none."""
    allow_private: bool = False
    """Also allow hosts with private addresses, and plain http."""
    bytes: Annotated[int, Ge(1)] = 20_000_000
    seconds: Annotated[float, Gt(0)] = 20.0


@dataclass(frozen=True, slots=True)
class McpSource:
    """A running MCP server whose tools are kept in the catalogue."""

    name: str
    """The provider of its tools; all tools of this provider belong to the server."""
    url: str = ""
    """Its streamable HTTP address; `imports.hosts` must allow the host."""
    command: tuple[str, ...] = ()
    """Or the command that speaks MCP on standard input and output."""
    poll_seconds: Annotated[float, Gt(0)] = 60.0
    """Seconds between two looks at its list, for servers that send no notifications."""
    key_variable: str = ""
    """The environment variable with its API key."""
    variables: tuple[str, ...] = ()
    """Environment variables that the command gets, such as those with its keys."""
    seconds: Annotated[float, Gt(0)] = 60.0
    """Time limit of a call."""
    concurrent: Annotated[int, Ge(1)] = 64
    """Calls at the same time; further ones are refused. A key has at most three quarters of them, and a quarter while
    other keys call."""

    def __post_init__(self) -> None:
        if bool(self.url) == bool(self.command):
            raise BadInput(f"give either a url or a command, got url {self.url!r} and command {self.command!r}", "url")

    @property
    def secrets(self) -> tuple[str, ...]:
        """Environment variables whose values are not passed on."""
        return (self.key_variable, *self.variables)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """`rewrite-serve`."""

    index: str = ""
    """The index folder, unless `database` is set; `bundled:sample` is a sample that ships."""
    database: DatabaseSettings | None = None
    """The database with the shared catalogue; fill it with `rewrite-index push`."""
    retriever: str = "auto"
    """The retriever of the index that answers; auto: the recommended one (docs/choosing.md)."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """Runs the language model of a generative retriever."""
    rewriter: ServedRewriter | None = None
    """None: search the raw utterance only."""
    rerank: RerankSettings | None = None
    """Reranks the first tools within the same deadline; None: no reranker."""
    host: str = "127.0.0.1"
    port: Annotated[int, Ge(0), Lt(65536)] = 8080
    hosts: tuple[str, ...] = ()
    """Host names that callers may use; empty: the loopback's own names, or any name on other addresses."""
    keys: tuple[KeySettings, ...] = ()
    anonymous: tuple[Scope, ...] = ()
    """Scopes of callers without a key."""
    access: AccessRules = field(default_factory=AccessRules)
    """The tools that callers without a key, and the client of `rewrite-serve mcp`, may find and call."""
    admin: bool = False
    """Turns the admin routes on."""
    page: bool = True
    """Serves the web page at /."""
    examples: tuple[str, ...] = ()
    """Requests that the page offers to begin with; empty: those of `bundled:sample`, for that index."""
    reports: dict[str, str] = field(default_factory=dict)
    """Name -> run folder whose report.html the page shows."""
    deadline_ms: Annotated[int, Ge(1)] = 800
    """Time for the rewriter unless the request sets its own; raw search does not wait for it."""
    max_deadline_ms: Annotated[int, Ge(1)] = 30_000
    """The longest deadline that a request may set."""
    limits: RequestLimits = field(default_factory=RequestLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    workers: Annotated[int, Ge(1)] = 2
    """Search threads."""
    detection_threshold: Annotated[float, Interval(ge=0, le=1)] | None = None
    """Probability from which an utterance needs a tool, unless the request sets its own; None: as chosen on dev when
    the index was trained, and 0.4 for `bundled:sample` (docs/choosing.md). 0 searches for every utterance."""
    min_score: Annotated[float, Interval(ge=0, le=1)] | None = None
    """Leaves out tools with a lower relevance, unless the request sets its own; None: none is left out."""
    min_probability: Annotated[float, Interval(ge=0, le=1)] | None = None
    """Leaves out tools that are less probably needed, unless the request sets its own; None: none is left out."""
    learn: bool = False
    """Let the index learn feedback at once; needs an index folder with a retriever of kind masstool."""
    feedback: str = ""
    """The folder for feedback; empty: into the database if there is one, else feedback is refused."""
    imports: ImportRules = field(default_factory=ImportRules)
    mcp: tuple[McpSource, ...] = ()
    """MCP servers whose tools are kept in the catalogue."""
    apis: tuple[ApiSource, ...] = ()
    """HTTP APIs whose tools can be called."""
    calls: CallSettings = field(default_factory=CallSettings)
    """Log of calls."""
    trust: TrustSettings | None = None
    """Trusted providers, and the checks that quarantine a tool; None: every provider but followed MCP servers, whose
    tools wait if they fail a check."""
    quarantine: str = ""
    """The folder for tools that wait for an admin's approval; empty: they are lost at a restart."""
    watch_seconds: Annotated[float, Ge(0)] = 2.0
    """Seconds between two looks for a newer index or rewriter; 0: never."""
    drain_seconds: Annotated[float, Ge(0)] = 30.0
    """Seconds for running requests when the server stops."""
    log_queries: bool = False
    """Write utterances to the log."""
    traces: bool = False
    """Send OpenTelemetry spans to $OTEL_EXPORTER_OTLP_ENDPOINT."""

    def __post_init__(self) -> None:
        if bool(self.index) == (self.database is not None):
            raise BadInput("name either the folder of an index, or a database that holds the catalogue", "index")
        if self.learn and self.database is not None:
            raise BadInput(
                "a shared catalogue cannot learn at once; `rewrite-index pull --feedback` gets its confirmations",
                "learn",
            )
        if self.deadline_ms > self.max_deadline_ms:
            raise BadInput(f"at most max_deadline_ms ({self.max_deadline_ms}), got {self.deadline_ms}", "deadline_ms")
        callable_names = [item.name for item in self.mcp] + [item.provider for item in self.apis]
        for names, key in (([item.name for item in self.keys], "keys"), (callable_names, "mcp")):
            if twice := [name for name in names if names.count(name) > 1]:
                raise BadInput(f"the name {twice[0]!r} is used twice", key)
        if not all(source.name for source in self.mcp):
            raise BadInput("an MCP server needs a name, got an empty one", "mcp")
        for name in self.reports:
            _check_name(name, "reports")
        if not self.keys and not self.anonymous:
            raise BadInput(
                "no caller could get in: make a key with `rewrite-serve key`, or set `anonymous` to the scopes of "
                "callers without one",
                "keys",
            )
        if not self.is_loopback and (more := set(self.anonymous) - {"search"}):
            message = f"callers without a key may only search unless the host is the loopback, got {', '.join(more)}"
            raise BadInput(message, "anonymous")

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can call."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _check_name(name: str, key: str) -> None:
    if not _NAME.fullmatch(name):
        raise BadInput(f"a name has at most 64 letters, digits, - . and _, got {name!r}", key)
