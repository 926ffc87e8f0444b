"""Targets folders as training data: read and check them, and collect the queries of an alignment."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Gt

from retrievers.errors import BadInput
from rewrite.align.samples import AlignQuery
from rewrite.sft.examples import Example, mix_examples, read_examples
from rewrite.template import Template, load_template

CARD_FACTS = ("dataset", "protocol", "retriever", "fingerprint", "examples", "oracle")
"""Facts of the targets that a rewriter's card repeats."""


@dataclass(frozen=True, slots=True)
class SftSource:
    """Targets of one data set."""

    targets: str
    """A folder that `rewrite-train targets` wrote."""
    weight: Annotated[float, Gt(0)] = 1.0
    """Share of its examples per epoch: 0.5 takes every second one, 2 takes each twice."""
    left_out: bool = False
    """Not trained on. With such sets dev is theirs alone: checkpoint and fusion suit tools that training lacks."""


@dataclass(frozen=True, slots=True)
class AlignSource:
    """Targets of one data set."""

    targets: str
    """A folder that `rewrite-train targets` wrote."""
    split: Literal["train", "align", "all"] = "train"
    """Queries of fine-tuning, queries that were held out of it, or both."""
    weight: Annotated[float, Gt(0)] = 1.0
    """0.5 takes every second query; above 1 queries come several times, for grpo, rloo and ppo."""
    left_out: bool = False
    """Not trained on. With such sets dev is theirs alone: checkpoint and fusion suit tools that training lacks."""


@dataclass(frozen=True, slots=True)
class TargetsFolder:
    """The contents of a targets folder."""

    name: str
    """The data set's name, with a number if several folders are of one data set."""
    facts: Mapping[str, Any]
    train: list[Example]
    """Empty if the set is left out."""
    dev: list[Example]
    weight: float
    left_out: bool = False

    def summary(self) -> dict[str, Any]:
        """The facts for a rewriter's card."""
        keys = [key for key in (*CARD_FACTS, "searches") if key in self.facts]
        facts = {key: self.facts[key] for key in keys} | {"weight": self.weight}
        return facts | {"left_out": True} if self.left_out else facts


@dataclass(frozen=True, slots=True)
class AlignData:
    """Training data of an alignment."""

    sources: list[TargetsFolder]
    queries: list[AlignQuery]
    template: Template

    def seen_tools(self) -> set[tuple[str, str]]:
        """Tools (source, id) that fine-tuning or alignment has queries about."""
        tuned = {(source.name, tool) for source in self.sources for example in source.train for tool in example.gold}
        return tuned | {(query.source, tool) for query in self.queries for tool in query.example.gold}


def read_targets(data: Sequence[SftSource]) -> tuple[list[TargetsFolder], Template]:
    """Read all targets folders, which must share one template and one phrasing of candidates."""
    if not data:
        raise BadInput("data: name at least one targets folder")
    if all(settings.left_out for settings in data):
        raise BadInput("data: all targets folders are left out; name one to train on")
    sources: list[TargetsFolder] = []
    for settings in data:
        sources.append(_read_folder(settings, [source.facts["dataset"] for source in sources]))
    templates = [load_template(Path(settings.targets)) for settings in data]
    if any(template != templates[0] for template in templates):
        raise BadInput("the targets were made with different templates; make them again with one")
    if templates[0].candidates and len({str(source.facts["phrasing"]) for source in sources}) > 1:
        raise BadInput("the targets show tools in different phrasings; make them again with one `phrasings`")
    return sources, templates[0]


def _read_folder(settings: SftSource, datasets: Sequence[str]) -> TargetsFolder:
    folder = Path(settings.targets)
    try:
        facts = json.loads((folder / "targets.json").read_text(encoding="utf-8"))
        missing = [key for key in (*CARD_FACTS, "index", "phrasing") if key not in facts]
    except FileNotFoundError as error:
        raise BadInput(f"no finished targets in {folder}; make them with `rewrite-train targets`") from error
    except (ValueError, TypeError) as error:
        raise BadInput(f"{folder / 'targets.json'} is damaged; make the targets again") from error
    if missing:
        raise BadInput(f"{folder / 'targets.json'} lacks {missing[0]}; make the targets again")
    train, dev = read_examples(folder / "train.jsonl"), read_examples(folder / "dev.jsonl")
    if not train or not dev:
        raise BadInput(f"{folder} has {len(train)} training and {len(dev)} dev examples; take a data set with both")
    count = datasets.count(facts["dataset"])
    name = f"{facts['dataset']}-{count + 1}" if count else str(facts["dataset"])
    return TargetsFolder(name, facts, [] if settings.left_out else train, dev, settings.weight, settings.left_out)


def judging(sources: Sequence[TargetsFolder]) -> list[TargetsFolder]:
    """The data sets whose dev queries judge a training: those left out of it, or all."""
    return [source for source in sources if source.left_out] or list(sources)


def read_align_data(data: Sequence[AlignSource], max_queries: int, seed: int) -> AlignData:
    """Read and shuffle the queries of all sources; `max_queries` 0 takes all."""
    sources, template = read_targets([SftSource(own.targets, own.weight, own.left_out) for own in data])
    queries = []
    for source, settings in zip(sources, data, strict=True):
        if settings.left_out:
            continue
        # A query with several phrasings in fine-tuning is one query here.
        unique = {example.id: example for example in reversed(source.train)}
        examples = list(reversed(unique.values())) if settings.split != "align" else []
        if settings.split != "train":
            examples += read_examples(Path(settings.targets) / "align.jsonl")
        if not examples:
            raise BadInput(
                f"{settings.targets} has no held-out queries; make it with hold_out_queries or hold_out_tools, or set "
                "split: train"
            )
        queries += [AlignQuery(source.name, example) for example in mix_examples([(examples, settings.weight)], seed)]
    random.Random(f"{seed}/queries").shuffle(queries)
    return AlignData(sources, queries[: max_queries or None], template)
