"""Settings of `rewrite-train targets`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from pipelines.data.splits import Protocol
from pipelines.phrasing import NAMES
from retrievers.errors import BadInput


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
    """A bundled template or a YAML file; it sets the number of candidates shown and the length of a line."""
    target_style: Literal["tools", "own-words"] = "tools"
    """Lines describe the gold tools, or are the user's own words, shortened."""
    phrasings: tuple[str, ...] = NAMES
    """Phrasings of a tool to choose from."""
    phrasing_choice: Literal["tool", "set", "any"] = "tool"
    """The best phrasing of every tool, the one that is best for the whole catalogue, or a random one per tool and
    query: then the targets' words hold nothing that the retriever prefers."""
    draws: Annotated[int, Ge(1)] = 1
    """With `phrasing_choice: any`, how often a training query comes, each time in other phrasings, so that a model
    learns the tools and not one phrasing of them. Four draws replace four epochs."""
    order: Literal["id", "rank"] = "rank"
    """Order of an answer's lines: by tool id, or by the raw query's ranking."""
    missing: Literal["imagine", "skip"] = "imagine"
    """Gold tools that are not among the candidates shown: write them anyway, or leave them out. A query without any
    tool left is no training example; dev keeps it."""
    abstain: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """The largest share of training examples that answer `no rewrite`, from queries that raw retrieval serves
    already. In own words there are more: queries that every reduction harms."""
    max_examples: Annotated[int, Ge(0)] = 0
    """Training queries at most, drawn by the seed; 0: all."""
    max_eval_queries: Annotated[int, Ge(0)] = 500
    """Dev queries kept, and dev and test queries of the oracle, at most; drawn by the seed; 0: all."""
    hold_out_tools: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """The share of tools whose queries are held out of SFT for alignment; they go to align.jsonl."""
    hold_out_queries: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """The share of all other training queries that go there too: a rewriter's answers to queries that it was trained
    on vary too little to align it."""
    seed: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        unknown = [name for name in self.phrasings if name not in NAMES]
        if unknown or not self.phrasings:
            raise BadInput(f"phrasings are {', '.join(NAMES)}, got {', '.join(unknown) or 'none'}", "phrasings")
        if self.draws > 1 and (self.phrasing_choice != "any" or self.target_style != "tools"):
            raise BadInput(
                f"several draws need `phrasing_choice: any` and `target_style: tools`, got draws {self.draws}", "draws"
            )
