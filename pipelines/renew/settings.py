"""What `rewrite-train renew` is told."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from pipelines.database.settings import DatabaseSettings
from pipelines.rewriters import RewriterSettings
from pipelines.train.training_sources import DevSettings
from retrievers.errors import BadInput
from retrievers.index.writer import WAIT
from retrievers.registry import RetrieverSettings, check_names
from retrievers.settings import RewriteFusion
from reward.metrics import DEPTH, parse_metric
from rewrite.settings import SftSettings

COLLECTED = "collected"
"""What a retriever's `train.data` calls the set that was collected."""


@dataclass(frozen=True, slots=True)
class Live:
    """What answers users now, and what a better one takes the place of."""

    index: str
    """The index folder that the server has."""
    retriever: str = "dense"
    """The retriever that the server asks."""
    rewriter: RewriterSettings | None = None
    """The rewriter that the server has, by its `path`; where nothing lies there yet, raw retrieval is what is live."""
    fusion: RewriteFusion | None = None
    """As the rewriter's card says when not given."""

    def __post_init__(self) -> None:
        if self.rewriter is not None and self.rewriter.path is None:
            raise BadInput("the live rewriter is named by its `path`", "rewriter")


@dataclass(frozen=True, slots=True)
class Sources:
    """What is learned from, and what of it is left out."""

    feedback: tuple[str, ...] = ()
    """Feedback folders of servers, or files of {"utterance", "tools"} lines."""
    traces: tuple[str, ...] = ()
    """JSON lines of OpenAI's and Anthropic's requests and answers, or folders of such files."""
    database: DatabaseSettings | None = None
    """The database whose gateways put feedback into one pool."""
    beside: tuple[str, ...] = ()
    """Data sets whose training queries are learned, too, so that nothing is forgotten."""
    keys: tuple[str, ...] = ()
    """Only feedback that came with these API keys; empty: all."""
    turns: Literal["first", "every"] = "first"
    """Of a trace: what the user said first, or everything. Later turns seldom stand for themselves."""
    ignore: tuple[str, ...] = ("search_tools", "get_tool")
    """Calls in traces that are no tools of the catalogue."""
    drop: tuple[str, ...] = ()
    """Regular expressions; an utterance in which one is found is left out."""
    longest: int = 2_000
    """Characters; a longer utterance is left out."""
    most_per_tool: int = 0
    """An utterance is left out when all its tools have been seen this often; 0: none is."""
    dev_one_in: int = 10
    """One utterance in so many is kept for dev, by a hash of its text."""
    least: int = 50
    """Utterances from feedback and traces under which nothing is trained."""

    def __post_init__(self) -> None:
        if not self.feedback and not self.traces and self.database is None:
            raise BadInput("there is nothing to learn from: name `feedback`, `traces` or a `database`")
        for pattern in self.drop:
            try:
                re.compile(pattern)
            except re.error as error:
                raise BadInput(f"{pattern!r} is no regular expression ({error})", "drop") from error
        if min(self.longest, self.least) < 1 or self.dev_one_in < 2 or self.most_per_tool < 0:
            raise BadInput("longest and least are at least 1, dev_one_in at least 2, most_per_tool not negative")


@dataclass(frozen=True, slots=True)
class RetrainIndex:
    """Retrievers, built anew over the live catalogue."""

    retrievers: dict[str, RetrieverSettings]
    """As in an index config; `train.data: [{path: collected}]` is the set that was collected."""
    kind: Literal["index"] = "index"

    def __post_init__(self) -> None:
        check_names(self.retrievers)


@dataclass(frozen=True, slots=True)
class RetrainRewriter:
    """A rewriter, fine-tuned for the live retriever."""

    kind: Literal["rewriter"] = "rewriter"
    base: str = "bundled:smollm2-135m"
    template: str = "needs"
    say: Literal["tools", "own-words"] = "own-words"
    choose: Literal["tool", "set"] = "tool"
    most_examples: int = 0
    most_judged: int = 500
    training: SftSettings = field(default_factory=SftSettings)
    evaluation: DevSettings = field(default_factory=DevSettings)


@dataclass(frozen=True, slots=True)
class FixedSet:
    """Queries that nobody trains on, the same in every round."""

    data: str
    """A data set folder, or `bundled:sample`."""
    split: str = "test"
    group_by: str | None = None
    """A key of the queries' metadata: the candidate must not be worse in any of its groups."""
    max_queries: int = 0
    """At most, drawn by the seed; 0: all."""


@dataclass(frozen=True, slots=True)
class RenewConfig:
    """`rewrite-train renew`."""

    output: str
    """A folder of rounds, one a candidate."""
    live: Live
    sources: Sources
    retrain: RetrainIndex | RetrainRewriter
    judged: tuple[FixedSet, ...]
    """What candidate and live are compared on."""
    metrics: tuple[str, ...] = ("recall@5", "ndcg@5", "comp@5")
    """The first must be better; none may be worse anywhere."""
    level: float = 0.05
    """Below this p a difference is not taken for chance."""
    promote: bool = True
    """Put a candidate that is better in the live one's place; false: only tell."""
    seed: int = 0
    wait: float = WAIT
    """Seconds to wait for another writer of the live index."""

    def __post_init__(self) -> None:
        if not self.judged:
            raise BadInput("a candidate must be judged: name at least one data set", "judged")
        if "recall@5" not in self.metrics:
            raise BadInput("metrics must hold recall@5: reports tell wins and losses by it", "metrics")
        for metric in self.metrics:
            _, k = parse_metric(metric)
            if k is not None and k > DEPTH:
                raise BadInput(f"{metric} looks deeper than the {DEPTH} places that are kept", "metrics")
        if not 0 < self.level < 1 or self.seed < 0 or self.wait < 0:
            raise BadInput("level is between 0 and 1, seed and wait are not negative")
        if isinstance(self.retrain, RetrainIndex) and self.live.retriever not in self.retrain.retrievers:
            raise BadInput(f"the server asks {self.live.retriever!r}, which is not among them", "retrain")
        if isinstance(self.retrain, RetrainRewriter) and self.live.rewriter is None:
            raise BadInput("say with `live.rewriter.path` where the rewriter that is trained shall lie", "live")
