"""The queries that an alignment learns from, and the policy it starts from: read, checked, put together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipelines.rewriters import RewriterSettings, find_parts
from pipelines.train.training_sources import SftSource, Source, read_sources
from retrievers.dense.encoder import fingerprint
from retrievers.errors import BadInput
from rewrite.align.query import AlignQuery
from rewrite.folder import open_rewriter
from rewrite.settings import BackendSettings
from rewrite.sft.examples import mix_examples, read_examples
from rewrite.template import Template


@dataclass(frozen=True, slots=True)
class AlignSource:
    """Targets of one data set."""

    targets: str
    """A folder that `rewrite-train targets` wrote."""
    split: Literal["train", "align", "all"] = "train"
    """Which of its queries: those of fine-tuning, those of the tools that were held out of it, or both."""
    weight: float = 1.0
    """0.5 takes every second query; above 1 queries come several times, for grpo, rloo and ppo."""

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise BadInput("a source's weight must be positive; leave the source out instead", "weight")


@dataclass(frozen=True, slots=True)
class StartSettings:
    """The policy before its alignment: a trained rewriter, or any language model with a template."""

    path: str | None = None
    """A rewriter's folder, or the training run it came from."""
    base: str | None = None
    """Without `path` the model itself; with it, where the adapter's base model lies now."""
    template: str | None = None

    def asked(self, backend: BackendSettings) -> RewriterSettings:
        """As a rewriter that answers."""
        return RewriterSettings(path=self.path, base=self.base, template=self.template, backend=backend)


@dataclass(frozen=True, slots=True)
class Lessons:
    """All that an alignment learns from."""

    sources: list[Source]
    """With the queries of fine-tuning as `train`."""
    queries: list[AlignQuery]
    template: Template


@dataclass(frozen=True, slots=True)
class Start:
    """Where a policy starts: files, and what its card will say of them."""

    model: Path
    adapter: Path | None
    base: str
    base_fingerprint: str
    said: str
    """How it came to be."""


def read_lessons(data: Sequence[AlignSource], most: int, seed: int) -> Lessons:
    """The queries of all sources, mixed; at most so many where `most` is not 0."""
    sources, template = read_sources([SftSource(each.targets, each.weight) for each in data])
    mixed = []
    for source, asked in zip(sources, data, strict=True):
        # A query that fine-tuning has learned from in several phrasings is one query.
        once = {each.id: each for each in reversed(source.train)}
        examples = list(reversed(once.values())) if asked.split != "align" else []
        if asked.split != "train":
            examples += read_examples(Path(asked.targets) / "align.jsonl")
        if not examples:
            raise BadInput(
                f"{asked.targets} holds no queries out; make it with hold_out_queries or hold_out_tools, or set "
                "split: train"
            )
        mixed += [AlignQuery(source.name, example) for example in mix_examples([(examples, asked.weight)], seed)]
    random.Random(f"{seed}/queries").shuffle(mixed)
    return Lessons(sources, mixed[: most or None], template)


def find_start(settings: StartSettings, method: str, lessons: Lessons) -> Start:
    """The policy's files. One that was trained with another template than the targets' is refused."""
    from rewrite.settings import TransformersSettings

    parts = find_parts(settings.asked(TransformersSettings()))
    if parts.template != lessons.template:
        raise BadInput(
            f"the policy answers by the template {parts.template.name} {parts.template.version}, the targets were made "
            f"with {lessons.template.name} {lessons.template.version}; make them again with the policy's"
        )
    shown = str(lessons.sources[0].facts["phrasing"])
    if parts.template.candidates and settings.path is not None and parts.phrasing != shown:
        raise BadInput(f"the policy is shown tools as `{parts.phrasing}`, the targets show them as `{shown}`")
    assert parts.model is not None  # a model in this process has a folder
    if settings.path is None:
        return Start(parts.model, None, settings.base or "", fingerprint(parts.model), "an untrained model")
    folder = open_rewriter(Path(settings.path).expanduser())
    card = folder.card
    if folder.adapter is not None:
        if method == "full":
            raise BadInput("the policy is an adapter; merge it first with `rewrite-train merge`, or set method: lora")
        return Start(parts.model, folder.adapter, card.base, card.base_fingerprint, card.trained_by)
    if method == "full":
        return Start(parts.model, None, card.base, card.base_fingerprint, card.trained_by)
    return Start(parts.model, None, str(folder.path), fingerprint(folder.path), card.trained_by)
