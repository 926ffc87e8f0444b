"""`rewrite-train targets`: what a rewriter should answer, made from gold tools and a frozen retriever.

tools       Every gold tool becomes one line. The retriever is asked with several phrasings of the tool, and the one
            that finds it best is taken: for each tool by itself, or one phrasing for the whole catalogue, which a
            model can learn from the candidates it is shown. Best where all tools are known while training. Or any
            phrasing is taken, drawn anew for every query: which of them the retriever understands is then left for
            alignment to find out.
own-words   Of the utterance's own clauses and reductions those that find the gold tools best (`own_words.py`). Nothing
            of the catalogue is learned, so that it holds for tools and catalogues that come later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipelines.data.dataset import DataSet, Gold, limit_queries, load_dataset, stable_hash
from pipelines.data.splits import Protocol, apply_protocol
from pipelines.phrasing import NAMES, phrase
from pipelines.search import DEPTH, ToolSearch
from pipelines.system_description import retriever_label
from pipelines.train.targets.own_words import JUDGED_AT, own_words
from pipelines.train.targets.queries import choose_queries
from pipelines.train.targets.tool_lines import Lines, tool_lines
from retrievers.errors import BadInput
from retrievers.fusion import interleave, with_raw
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.types import Ranking, ToolId
from reward.metrics import judge, measure
from rewrite.sft.examples import Example
from rewrite.template import Template, load_template

ORACLE = ("recall@3", "recall@5", "ndcg@5", "comp@5")


@dataclass(frozen=True, slots=True)
class TargetsConfig:
    """`rewrite-train targets`."""

    output: str
    """The folder to write: train.jsonl, dev.jsonl, align.jsonl, targets.json."""
    data: str
    """A data set folder, or `bundled:sample`."""
    index: str
    """The index of its catalogue."""
    retriever: str = "dense"
    """The frozen retriever of the index for which rewrites are made."""
    protocol: Protocol = "official"
    template: str = "imagine"
    """A bundled template or a YAML file; it says how many candidates are shown and how long a line may be."""
    say: Literal["tools", "own-words"] = "tools"
    """Lines describe the gold tools, or are the user's own words with less around them."""
    phrasings: tuple[str, ...] = NAMES
    choose: Literal["tool", "set", "any"] = "tool"
    """Take the best phrasing of every tool, the one that is best for the whole catalogue, or one by chance for every
    tool of every query: then nothing that the retriever likes is in the targets' words."""
    draws: int = 1
    """With `choose: any`, how many times a training query comes, each time in other phrasings: so a model learns the
    tools by heart, and not one phrasing of them. Four draws take the place of four epochs."""
    order: Literal["id", "rank", "random"] = "rank"
    """Of an answer's lines: by tool id, as the raw query ranks the tools, or shuffled."""
    missing: Literal["imagine", "skip"] = "imagine"
    """What to do with gold tools that are not among the candidates shown: write them all the same, or leave them. A
    query that is left without any is nothing to learn from; dev keeps it."""
    abstain: float = 0.0
    """The largest share of training examples that are made to answer `no rewrite`, of those that raw retrieval serves
    already. In own words there are more: queries that every reduction harms."""
    served_at: int = 5
    """A query is served when all its tools are among the first so many."""
    most_per_tool: int = 0
    """A training query is left out when all its tools have been seen this often; 0: none is. A model that meets a few
    tools again and again learns to name them whatever it is asked, which harms it on tools it has never seen."""
    most_examples: int = 0
    """Training queries at most, drawn by the seed; 0: all."""
    most_judged: int = 500
    """Dev queries kept, and dev and test queries looked at for the oracle, at most; drawn by the seed; 0: all."""
    hold_out_tools: float = 0.0
    """The share of tools whose queries are kept out of SFT, for alignment: they go to align.jsonl."""
    hold_out_queries: float = 0.0
    """The share of all other training queries that go there too: a rewriter is sure of what it has learned by heart;
    only queries it has not seen show what it is torn between."""
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [name for name in self.phrasings if name not in NAMES]
        if unknown or not self.phrasings:
            raise BadInput(f"phrasings are {', '.join(NAMES)}, not {', '.join(unknown) or 'nothing'}", "phrasings")
        if any(not 0 <= share < 1 for share in (self.abstain, self.hold_out_tools, self.hold_out_queries)):
            raise BadInput("abstain, hold_out_tools and hold_out_queries are shares, from 0 to below 1")
        if self.draws < 1 or (self.draws > 1 and (self.choose != "any" or self.say != "tools")):
            raise BadInput("several draws are for `choose: any`, which says tools by chance; else draws is 1", "draws")
        if self.served_at < 1 or min(self.seed, self.most_per_tool, self.most_examples, self.most_judged) < 0:
            raise BadInput("served_at must be at least 1, seed and every most_ not negative")


@dataclass(frozen=True, slots=True)
class Targets:
    """All that a targets folder holds."""

    template: Template
    splits: Mapping[str, list[Example]]
    """train, dev and align"""
    facts: Mapping[str, Any]


def make_targets(config: TargetsConfig, context: Context) -> Targets:
    """Examples for training and dev queries, and what a model could reach that wrote them perfectly."""
    template = load_template(config.template)
    if template.candidates and config.choose != "set":
        raise BadInput(f"the template {template.name} shows candidates, which read alike only with `choose: set`")
    data = apply_protocol(load_dataset(config.data), config.protocol)
    if not data.gold.get("train"):
        raise BadInput(f"the data set {data.name} has no training queries with gold tools to make targets from")
    index = Index(Path(config.index), context)
    search = ToolSearch(index, config.retriever)
    search.check_tools(tool.id for tool in data.tools)
    queries = choose_queries(data.gold["train"], config)
    splits = {"train": queries.train, "align": queries.align}
    judged = limit_queries(data, config.most_judged, config.seed) if config.most_judged else data
    splits |= {split: judged.gold[split] for split in ("dev", "test") if data.gold.get(split)}
    maker = _Maker(config, data, template, search, splits)
    told = {split: maker.told(split) for split in splits if split in ("dev", "test")}
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
            "say": config.say,
            "choose": config.choose,
            "draws": config.draws,
            "phrasing": maker.lines.style,
            "phrasings": maker.lines.told,
            "raw": {split: scores["raw"] for split, scores in told.items()},
            "oracle": {split: scores["oracle"] for split, scores in told.items()},
            "oracle_fused": {split: scores["oracle_fused"] for split, scores in told.items()},
            "examples": {split: len(each) for split, each in examples.items()},
            "left_out": queries.left_out,
            "unshown": {
                split: left
                for split in examples
                if (left := len(splits.get(split, ())) - len({example.id for example in examples[split]}))
            },
            "abstained": sum(not example.lines for example in examples["train"]),
        },
    )


class _Maker:
    """Makes the examples of one data set."""

    def __init__(
        self, config: TargetsConfig, data: DataSet, template: Template, search: ToolSearch, splits: Mapping[str, Gold]
    ) -> None:
        self._config, self._data, self._template, self._search, self._splits = config, data, template, search, splits
        gold = {query: tools for each in splits.values() for query, tools in each.items()}
        order = sorted(gold)
        utterances = {query: data.queries[query].text for query in order}
        found = search.retrieve([utterances[query] for query in order], DEPTH, "raw queries")
        self._raw: dict[str, Ranking] = dict(zip(order, found, strict=True))
        if config.say == "own-words":
            own = own_words(search, utterances, self._raw, gold, template.max_lines)
            style = config.phrasings[0] if template.candidates else ""
            self.lines = Lines(own, style, {})
        else:
            self.lines = tool_lines(config, data, gold, splits["train"], self._raw, search, template)

    def examples(self, split: str) -> list[Example]:
        """One example a query, in the order of their ids; to learn from, perhaps several."""
        gold = self._splits[split]
        silent = self._served(gold) if split == "train" else frozenset()
        if split != "dev" and self._config.say != "own-words":
            # A query that shows none of its tools has nothing to teach: `no rewrite` would be the wrong lesson. Dev
            # keeps it: it will be asked all the same.
            gold = {query: tools for query, tools in gold.items() if self.lines.of[query]}
        return [
            Example(
                query,
                self._data.queries[query].text,
                () if query in silent else tuple(map(self._template.clean, lines[query])),
                tuple(sorted(gold[query])),
                self._shown(query),
            )
            for query in sorted(gold)
            for lines in (self.lines.of, *(self.lines.further if split == "train" else ()))
        ]

    def _shown(self, query: str) -> tuple[str, ...]:
        tools, most = self._search.tools, self._template.max_characters
        return tuple(
            phrase(tools[tool], self.lines.style, most, self._search.fields)
            for tool in self._raw[query].ids[: self._template.candidates]
        )

    def _served(self, gold: Gold) -> frozenset[str]:
        """Queries that raw retrieval serves already, as many of them as shall answer `no rewrite`."""
        served = [query for query in gold if gold[query] <= set(self._raw[query].ids[: self._config.served_at])]
        most = int(self._config.abstain * len(gold))
        return frozenset(sorted(served, key=lambda query: stable_hash(f"{self._config.seed}/{query}"))[:most])

    def told(self, split: str) -> dict[str, dict[str, float]]:
        """What the raw queries reach, and what lines written perfectly would: interleaved, and beside the raw query."""
        gold = self._splits[split]
        order = sorted(gold)
        every = list(dict.fromkeys(line for query in order for line in self.lines.of[query]))
        lists = dict(zip(every, self._search.retrieve(every, DEPTH, "oracle"), strict=True))
        own = [[lists[line] for line in self.lines.of[query]] for query in order]
        raw = [self._raw[query] for query in order]
        alone = [interleave(each, DEPTH) if each else first for first, each in zip(raw, own, strict=True)]
        fused = [with_raw(first, each, DEPTH, JUDGED_AT) for first, each in zip(raw, own, strict=True)]
        wanted = [gold[query] for query in order]
        return {
            name: _scores([ranking.ids for ranking in rankings], wanted)
            for name, rankings in {"raw": raw, "oracle": alone, "oracle_fused": fused}.items()
        }


def _scores(rankings: Sequence[Sequence[ToolId]], gold: Sequence[frozenset[ToolId]]) -> dict[str, float]:
    judged = judge(rankings, gold)
    return {metric: round(float(measure(metric, judged).mean()), 4) for metric in ORACLE}
