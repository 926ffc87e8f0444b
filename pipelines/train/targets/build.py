"""`rewrite-train targets`: the answers that a rewriter should give, from gold tools and a frozen retriever.

tools       One line per gold tool, in the phrasing with which the retriever finds it best: of each tool, or one for
            the whole catalogue, which a model can copy from the candidates shown. Best if all tools are known in
            training. Or in a random phrasing per query: alignment then learns which ones the retriever prefers.
own-words   The utterance's own clauses and reductions that find the gold tools best (`own_words.py`). Nothing of the
            catalogue is learned, so that it holds for tools and catalogues that come later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.data.dataset import DataSet, Gold, limit_queries, load_dataset, stable_hash
from pipelines.data.splits import apply_protocol
from pipelines.held_out import refuse_learned
from pipelines.index.trained_on import refuse_trained
from pipelines.phrasing import phrase
from pipelines.search import DEPTH, ToolSearch
from pipelines.system_description import retriever_label
from pipelines.train.targets.own_words import FUSION, own_word_lines
from pipelines.train.targets.queries import choose_queries
from pipelines.train.targets.settings import TargetsConfig
from pipelines.train.targets.tool_lines import TargetLines, tool_lines
from retrievers.errors import BadInput
from retrievers.fusion import interleave, with_raw
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.types import Ranking, ToolId
from reward.metrics import judge, measure
from rewrite.sft.examples import Example
from rewrite.template import Template, load_template

ORACLE_METRICS = ("recall@3", "recall@5", "ndcg@5", "comp@5")
SERVED_RANK = 5
"""Raw retrieval serves a query if all its tools are within this rank."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The contents of a targets folder."""

    template: Template
    splits: Mapping[str, list[Example]]
    """train, dev and align"""
    facts: Mapping[str, Any]


def make_targets(config: TargetsConfig, context: Context) -> Targets:
    """Make the examples of training and dev queries, and the oracle: the metrics of perfect rewrites."""
    template = load_template(config.template)
    if template.candidates and config.phrasing_choice != "set":
        raise BadInput(
            f"the template {template.name} shows candidates: it needs `phrasing_choice: set`, "
            f"got {config.phrasing_choice!r}"
        )
    data = apply_protocol(load_dataset(config.data), config.protocol)
    if not data.gold.get("train"):
        raise BadInput(f"the data set {data.name} has no training queries with gold tools to make targets from")
    index = Index(Path(config.index), context)
    refuse_trained(f"the retriever {config.retriever!r}", index, config.retriever, data.name, config.protocol, True)
    search = ToolSearch(index, config.retriever, held_out=True)
    search.check_tools(tool.id for tool in data.tools)
    queries = choose_queries(data.gold["train"], config)
    learning = [data.queries[query].text for query in (*queries.train, *queries.align)]
    refuse_learned(search.held_out, learning, config.retriever)
    splits = {"train": queries.train, "align": queries.align}
    limited = limit_queries(data, config.max_eval_queries, config.seed) if config.max_eval_queries else data
    splits |= {split: limited.gold[split] for split in ("dev", "test") if data.gold.get(split)}
    maker = _ExampleMaker(config, data, template, search, splits)
    scores = {split: maker.scores(split) for split in splits if split in ("dev", "test")}
    examples: dict[str, list[Example]] = {"dev": []}
    examples |= {split: maker.examples(split) for split in splits if split != "test"}
    return Targets(
        template,
        examples,
        {
            "data": config.data,
            "dataset": data.name,
            "protocol": config.protocol,
            "index": config.index,
            "retriever": config.retriever,
            "searches": retriever_label(index, config.retriever),
            "fingerprint": search.fingerprint,
            "template": {"name": template.name, "version": template.version},
            "target_style": config.target_style,
            "phrasing_choice": config.phrasing_choice,
            "draws": config.draws,
            "phrasing": maker.lines.style,
            "phrasings": maker.lines.phrasing_scores,
            **{name: {split: row[name] for split, row in scores.items()} for name in ("raw", "oracle", "oracle_fused")},
            "examples": {split: len(rows) for split, rows in examples.items()},
            "left_out": queries.left_out,
            "unshown": {
                split: left
                for split in examples
                if (left := len(splits.get(split, ())) - len({example.id for example in examples[split]}))
            },
            "abstained": sum(not example.lines for example in examples["train"]),
        },
    )


class _ExampleMaker:
    """Makes the examples of one data set."""

    def __init__(
        self, config: TargetsConfig, data: DataSet, template: Template, search: ToolSearch, splits: Mapping[str, Gold]
    ) -> None:
        self._config, self._data, self._template, self._search, self._splits = config, data, template, search, splits
        gold = {query: tools for split in splits.values() for query, tools in split.items()}
        order = sorted(gold)
        utterances = {query: data.queries[query].text for query in order}
        rankings = search.retrieve([utterances[query] for query in order], DEPTH, "raw queries")
        self._raw: dict[str, Ranking] = dict(zip(order, rankings, strict=True))
        if config.target_style == "own-words":
            lines = own_word_lines(search, utterances, self._raw, gold, template.max_lines)
            self.lines = TargetLines(lines, config.phrasings[0] if template.candidates else "", {})
        else:
            self.lines = tool_lines(config, data, gold, splits["train"], self._raw, search, template)

    def examples(self, split: str) -> list[Example]:
        """One example per query, in the order of their ids; several per training query with `draws`."""
        gold = self._splits[split]
        abstaining = self._choose_abstaining(gold) if split == "train" else frozenset()
        if split != "dev" and self._config.target_style != "own-words":
            # Without a line the example would teach `no rewrite`. Dev keeps such queries, as users ask them too.
            gold = {query: tools for query, tools in gold.items() if self.lines.first[query]}
        return [
            Example(
                query,
                self._data.queries[query].text,
                () if query in abstaining else tuple(map(self._template.clean, lines[query])),
                tuple(sorted(gold[query])),
                self._candidates(query),
            )
            for query in sorted(gold)
            for lines in (self.lines.first, *(self.lines.further if split == "train" else ()))
        ]

    def _candidates(self, query: str) -> tuple[str, ...]:
        tools, max_characters = self._search.tools, self._template.max_characters
        return tuple(
            phrase(tools[tool], self.lines.style, max_characters, self._search.fields)
            for tool in self._raw[query].ids[: self._template.candidates]
        )

    def _choose_abstaining(self, gold: Gold) -> frozenset[str]:
        """The queries that answer `no rewrite`, of those that raw retrieval serves already."""
        served = [query for query in gold if gold[query] <= set(self._raw[query].ids[:SERVED_RANK])]
        count = int(self._config.abstain * len(gold))
        return frozenset(sorted(served, key=lambda query: stable_hash(f"{self._config.seed}/{query}"))[:count])

    def scores(self, split: str) -> dict[str, dict[str, float]]:
        """Metrics of the raw queries, and of perfect lines: interleaved, and fused with the raw query."""
        gold = self._splits[split]
        order = sorted(gold)
        utterances = [self._data.queries[query].text for query in order]
        lists = self._search.search_lines([self.lines.first[query] for query in order], utterances, "oracle")
        raw = [self._raw[query] for query in order]
        systems = {
            "raw": raw,
            "oracle": [interleave(own, DEPTH) if own else first for first, own in zip(raw, lists, strict=True)],
            "oracle_fused": [with_raw(first, own, DEPTH, FUSION) for first, own in zip(raw, lists, strict=True)],
        }
        wanted = [gold[query] for query in order]
        return {name: _scores([ranking.ids for ranking in answers], wanted) for name, answers in systems.items()}


def _scores(rankings: Sequence[Sequence[ToolId]], gold: Sequence[frozenset[ToolId]]) -> dict[str, float]:
    judged = judge(rankings, gold)
    return {metric: round(float(measure(metric, judged).mean()), 4) for metric in ORACLE_METRICS}
