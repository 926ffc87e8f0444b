"""The systems of an evaluation: retrievers, rewriters in front of retrievers, and run files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from annotated_types import Interval

from pipelines.data.trec import read_run
from pipelines.evaluate.context import EvalContext, EvalQueries, RetrieverRef
from pipelines.evaluate.reranked_systems import FusedLists, RerankerFigures, RerankerPool, ReturnedTools, Thresholds
from pipelines.evaluate.rewritten_systems import DEV, RewriterAnswers, RewriterPool, RewriterUse, SystemFusion
from pipelines.index.defaults import choose_retriever
from pipelines.index.trained_on import refuse_trained
from pipelines.rerank.settings import RerankSettings
from pipelines.rewriters import RewriterSettings
from pipelines.system_description import SystemDescription, describe_system
from retrievers.errors import BadInput
from retrievers.kind import Context
from retrievers.progress import say
from retrievers.settings import RewriteFusion
from retrievers.types import Ranking, ToolId
from reward.metrics import DEPTH


@dataclass(frozen=True, slots=True)
class SystemSettings:
    """A system that ranks tools: a retriever of an index, with an optional rewriter in front, or a run file."""

    retriever: str | None = None
    index: str | None = None
    """The config's index when not given."""
    run: str | None = None
    """A TREC run file made elsewhere."""
    rewriter: str | None = None
    """One of the config's rewriters; its rewrites are searched in addition to the raw query."""
    fusion: RewriteFusion | None = None
    """Fusion of the raw query's ranking with those of its rewrite; as the rewriter's card says when not given."""
    choose_fusion: bool = False
    """Choose the fusion on the dev split of the same data set."""
    min_score: Annotated[float, Interval(ge=0, le=1)] | None = None
    """Leave out tools with a lower relevance; metrics.json has the share of queries that are left with none."""
    min_probability: Annotated[float, Interval(ge=0, le=1)] | None = None
    """Leave out tools that are less probably needed; metrics.json has precision, recall and number of the others."""
    rerank: RerankSettings | None = None
    """A reranker for the first tools of the list."""

    def __post_init__(self) -> None:
        if (self.retriever is None) == (self.run is None):
            raise BadInput("a system is either a `retriever` of an index or a `run` file")
        if self.run is not None and self.rewriter is not None:
            raise BadInput("a run file is final; a rewriter needs a retriever", "rewriter")
        if self.run is not None and (self.min_score is not None or self.min_probability is not None):
            raise BadInput("a run file has no relevance; name a retriever", "min_score")
        if self.run is not None and self.rerank is not None:
            raise BadInput("a run file is final; a reranker needs a retriever", "rerank")
        if self.rewriter is None and (self.fusion is not None or self.choose_fusion):
            raise BadInput("without a `rewriter` there is nothing to fuse with the raw query")
        if self.fusion is not None and self.choose_fusion:
            raise BadInput("give the fusion or choose it (`choose_fusion: true`), not both", "fusion")


@dataclass(frozen=True, slots=True)
class SystemAnswers:
    """The rankings of one system."""

    rankings: Mapping[str, Ranking]
    fingerprint: str
    seconds: float | None
    """Rewriting included; None for a run file."""
    fusion: SystemFusion | None = None
    branches: Mapping[ToolId, tuple[int, ...]] = field(default_factory=dict)
    """Paths of the tools in the retriever's tree of codes, if it has one."""
    description: SystemDescription | None = None
    """None for a run file."""
    reranking: RerankerFigures | None = None
    """None without a reranker."""
    returned: ReturnedTools | None = None
    """None without a threshold."""


def answer_queries(
    systems: Mapping[str, SystemSettings],
    rewriters: Mapping[str, RewriterSettings],
    default_index: str | None,
    queries: EvalQueries,
    context: Context,
) -> tuple[dict[str, SystemAnswers], dict[str, RewriterAnswers]]:
    """Answers of every system and of every rewriter. All checks are made before the first search."""
    evaluation, order = EvalContext(queries, context), queries.order(queries.split)
    tools = {tool.id for tool in queries.data.tools}
    runs: dict[str, Mapping[str, Ranking]] = {}
    refs: dict[str, RetrieverRef] = {}
    uses: dict[str, RewriterUse] = {}
    for name, system in systems.items():
        if system.run is not None:
            runs[name] = read_run(Path(system.run), tools)
            _check_queries(name, runs[name], order)
            continue
        refs[name] = _checked_ref(name, system, default_index, evaluation)
        if system.rewriter is not None:
            uses[name] = RewriterUse(system.rewriter, refs[name], system.choose_fusion)
    named = {name: (refs[name], system.rerank) for name, system in systems.items() if name in refs}
    rerankers = RerankerPool(evaluation, {name: (ref, rerank) for name, (ref, rerank) in named.items() if rerank})
    for name, ref in refs.items():
        rerankers.check_thresholds(name, ref, _thresholds(systems[name]))
    pool = RewriterPool(evaluation, rewriters, uses.values())
    pool.answer()
    answers = {}
    for number, (name, system) in enumerate(systems.items(), 1):
        say(f"evaluating {name}, {number} of {len(systems)}, on {len(order):,} queries", context.show_progress)
        if name in runs:
            answers[name] = SystemAnswers(runs[name], f"run:{Path(system.run or '').name}", None)
            continue
        ref, use = refs[name], uses.get(name)
        fused, fusion = pool.rank(use, system.fusion) if use else (_rank_raw(evaluation, ref), None)
        done = rerankers.finish(name, ref, fused, _thresholds(system))
        description = describe_system(
            evaluation.index(ref.index), ref.retriever, context.find_model, pool.parts(use) if use else None
        )
        search = evaluation.search(ref)
        answers[name] = SystemAnswers(
            dict(zip(order, done.rankings, strict=True)),
            search.fingerprint,
            fused.seconds + done.seconds,
            fusion,
            search.branches,
            description,
            done.reranking,
            done.returned,
        )
    return answers, pool.answers()


def _thresholds(system: SystemSettings) -> Thresholds:
    return Thresholds(system.min_score, system.min_probability)


def _rank_raw(evaluation: EvalContext, ref: RetrieverRef) -> FusedLists:
    """The rankings of a system that does not rewrite."""
    split, search = evaluation.queries.split, evaluation.search(ref)
    raw, texts = evaluation.raw(ref, split), evaluation.queries.texts(split)
    named = evaluation.timed(
        lambda: [search.fuse(text, ranking, (), DEPTH) for text, ranking in zip(texts, raw.value, strict=True)]
    )
    return FusedLists(named.value, [[ranking] for ranking in raw.value], raw.seconds + named.seconds)


def _checked_ref(name: str, system: SystemSettings, default_index: str | None, evaluation: EvalContext) -> RetrieverRef:
    """The retriever of a system, after checking its tools and training data."""
    folder, queries = system.index or default_index, evaluation.queries
    if folder is None or system.retriever is None:
        raise BadInput(f"the system {name!r} names no index, and neither does the config")
    retriever = choose_retriever(evaluation.index(folder), system.retriever)
    ref = RetrieverRef(folder, retriever)
    evaluation.search(ref).check_tools((tool.id for tool in queries.data.tools), f"the index of {name!r}")
    uses_dev = system.choose_fusion or queries.split == DEV
    refuse_trained(
        f"the system {name!r}",
        evaluation.index(folder),
        retriever,
        queries.data.name,
        queries.protocol,
        uses_dev,
        queries.split == "train",
    )
    return ref


def _check_queries(name: str, rankings: Mapping[str, Ranking], order: Sequence[str]) -> None:
    missing, extra = sorted(set(order) - rankings.keys()), sorted(rankings.keys() - set(order))
    if missing or extra:
        problem = (
            f"does not rank query {missing[0]!r}" if missing else f"ranks query {extra[0]!r}, which is not in the split"
        )
        raise BadInput(f"the system {name!r} {problem}; systems must rank the same {len(order)} queries")
