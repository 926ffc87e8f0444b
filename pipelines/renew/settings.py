"""Settings of `rewrite-train renew`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from pipelines.database.settings import DatabaseSettings
from pipelines.rewriters import RewriterSettings
from pipelines.train.dev_evaluator import DevSettings
from retrievers.errors import BadInput
from retrievers.registry import RetrieverSettings, check_names
from retrievers.settings import RewriteFusion
from reward.metrics import DEPTH, parse_metric
from rewrite.settings import SftSettings

COLLECTED = "collected"
"""Name of the collected data set in a retriever's `train.data`."""


@dataclass(frozen=True, slots=True)
class LiveSystem:
    """The system that answers users now, and that a better one replaces."""

    index: str
    """Index folder of the server."""
    retriever: str = "dense"
    """Retriever that the server uses."""
    rewriter: RewriterSettings | None = None
    """Rewriter of the server, by its `path`; where that does not exist yet, raw retrieval is live."""
    fusion: RewriteFusion | None = None
    """None: as in the rewriter's card."""

    def __post_init__(self) -> None:
        if self.rewriter is not None and self.rewriter.path is None:
            raise BadInput("the live rewriter needs a `path`, got none", "rewriter")


@dataclass(frozen=True, slots=True)
class EvidenceWeights:
    """Weights of evidence from logs of calls, per query, tool and key; a call that succeeded weighs 1."""

    retried: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """A call that succeeded after a second search right after the first one, for the first query. 0 was best on dev:
    the second query is an example of its own, and close to the first."""
    failed: Annotated[float, Ge(0)] = 1.0
    """A call that failed, against the tool."""
    ignored: Annotated[float, Ge(0)] = 0.25
    """A tool of the first three ranks that was passed over, against the tool."""
    min_support: Annotated[float, Gt(0)] = 0.5
    """Sum from which on a tool counts for a query."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of training data, and what is left out of them."""

    feedback: tuple[str, ...] = ()
    """Feedback folders of servers, or files of {"utterance", "tools"} lines."""
    traces: tuple[str, ...] = ()
    """JSON lines of OpenAI's and Anthropic's requests and answers, or folders of such files."""
    calls: tuple[str, ...] = ()
    """Logs of calls (`calls.log` of servers with `log_queries`): calls that followed a search and succeeded."""
    min_callers: Annotated[int, Ge(1)] = 1
    """API keys that must have called a tool with success before calls count as evidence for it."""
    max_per_key: Annotated[int, Ge(0)] = 0
    """Examples that the calls of one key may contribute; 0: no limit."""
    max_rank: Annotated[int, Ge(0)] = 10
    """Calls of tools below this rank of the search are no evidence: a caller who lists all tools may call any; 0: no
    limit."""
    weights: EvidenceWeights = EvidenceWeights()
    database: DatabaseSettings | None = None
    """Database in which several gateways share feedback."""
    datasets: tuple[str, ...] = ()
    """Data sets whose training queries are added, so that nothing is forgotten."""
    keys: tuple[str, ...] = ()
    """Use only feedback that came with these API keys; empty: all."""
    turns: Literal["first", "every"] = "first"
    """Turns of a trace to use: later ones seldom make sense alone."""
    drop: tuple[str, ...] = ()
    """Regular expressions; an utterance that matches one is left out."""
    max_per_tool: Annotated[int, Ge(0)] = 0
    """Leave an utterance out when all its tools have this many utterances; 0: no limit."""
    min_utterances: Annotated[int, Ge(1)] = 50
    """Utterances from feedback and traces that a round needs."""

    def __post_init__(self) -> None:
        if not self.feedback and not self.traces and not self.calls and self.database is None:
            raise BadInput("there is nothing to learn from: set `feedback`, `traces`, `calls` or `database`")
        for pattern in self.drop:
            try:
                re.compile(pattern)
            except re.error as error:
                raise BadInput(f"{pattern!r} is no regular expression ({error})", "drop") from error


@dataclass(frozen=True, slots=True)
class RetrainIndex:
    """Retrievers built over the live catalogue."""

    retrievers: dict[str, RetrieverSettings]
    """As in an index config; `train.data: [{path: collected}]` is the collected data set."""
    kind: Literal["index"] = "index"

    def __post_init__(self) -> None:
        check_names(self.retrievers)


@dataclass(frozen=True, slots=True)
class RetrainRewriter:
    """A rewriter, fine-tuned for the live retriever."""

    kind: Literal["rewriter"] = "rewriter"
    base: str = "bundled:smollm2-135m"
    template: str = "needs"
    training: SftSettings = field(default_factory=SftSettings)
    evaluation: DevSettings = field(default_factory=DevSettings)


@dataclass(frozen=True, slots=True)
class FixedSet:
    """Queries that are never trained on, the same in every round."""

    data: str
    """A data set folder, or `bundled:sample`."""
    split: str = "test"
    group_by: str | None = None
    """Key of the queries' metadata: the candidate must not be worse in any of its groups."""
    max_queries: Annotated[int, Ge(0)] = 0
    """Queries drawn by the seed; 0: all."""


@dataclass(frozen=True, slots=True)
class RenewConfig:
    """`rewrite-train renew`."""

    output: str
    """Folder of rounds, one per candidate."""
    live: LiveSystem
    sources: Sources
    retrain: RetrainIndex | RetrainRewriter
    fixed_sets: tuple[FixedSet, ...]
    """Data sets to compare candidate and live on."""
    metrics: tuple[str, ...] = ("recall@5", "ndcg@5", "comp@5")
    """The first must be better; none may be worse anywhere."""
    level: Annotated[float, Interval(gt=0, lt=1)] = 0.05
    """Significance level: a difference with p below it counts."""
    promote: bool = True
    """Promote a better candidate; false: only report it."""
    seed: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        if not self.fixed_sets:
            raise BadInput("name at least one data set to compare on, got []", "fixed_sets")
        if "recall@5" not in self.metrics:
            raise BadInput(f"must contain recall@5, which reports count wins by, got {list(self.metrics)}", "metrics")
        for metric in self.metrics:
            _, k = parse_metric(metric)
            if k is not None and k > DEPTH:
                raise BadInput(f"{metric} needs more than the {DEPTH} ranks that are kept", "metrics")
        if isinstance(self.retrain, RetrainIndex) and self.live.retriever not in self.retrain.retrievers:
            raise BadInput(f"the live retriever {self.live.retriever!r} is not among the retrievers", "retrain")
        if isinstance(self.retrain, RetrainRewriter) and self.live.rewriter is None:
            raise BadInput("`live.rewriter.path` must name the path of the trained rewriter", "live")
