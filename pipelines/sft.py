"""`rewrite-train sft`: targets, base model and frozen retrievers -> a rewriter."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipelines import config as configs
from pipelines.models import find_model
from pipelines.runs import as_json, environment, write_files
from pipelines.search import DEPTH, ToolSearch
from retrievers.encoder import fingerprint
from retrievers.errors import BadInput, ModelMismatch
from retrievers.index import Index
from retrievers.index.files import disk_room
from retrievers.kinds import Context
from retrievers.settings import RewriteFusion
from reward.metrics import judge, measure, parse_metric
from rewrite.folder import Card, finish_folder
from rewrite.settings import SftSettings
from rewrite.sft.examples import Example, mix, read_examples
from rewrite.template import Template, load_template
from rewrite.types import Rewrite


@dataclass(frozen=True, slots=True)
class SftSource:
    """Targets of one data set."""

    targets: str
    """A folder that `rewrite-train targets` wrote."""
    weight: float = 1.0
    """How often its examples are seen in an epoch: 0.5 takes every second, 2 each twice."""

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise BadInput("a source's weight must be positive; leave the source out instead", "weight")


@dataclass(frozen=True, slots=True)
class DevSettings:
    """How dev is judged while training."""

    queries: int = 200
    """Dev queries of every data set, drawn by the seed."""
    metric: str = "recall@5"
    fusion: RewriteFusion = field(default_factory=lambda: RewriteFusion("interleave", 0.0))
    """With the raw query or, at raw: 0, the rewrite alone."""
    answer_tokens: int = 192
    batch_size: int = 64
    samples: int = 4
    """Rewrites shown in the log at every evaluation."""

    def __post_init__(self) -> None:
        parse_metric(self.metric)
        if min(self.queries, self.answer_tokens, self.batch_size) < 1 or self.samples < 0:
            raise BadInput("queries, answer_tokens and batch_size must be at least 1")


@dataclass(frozen=True, slots=True)
class SftConfig:
    """`rewrite-train sft`."""

    output: str
    """The run folder; the rewriter comes to lie in its folder `rewriter`."""
    data: tuple[SftSource, ...]
    base: str = "bundled:smollm2-135m"
    """A Hugging Face id, a folder, or a bundled model; it needs a chat template."""
    training: SftSettings = field(default_factory=SftSettings)
    evaluation: DevSettings = field(default_factory=DevSettings)

    def __post_init__(self) -> None:
        if not self.data:
            raise BadInput("there is nothing to learn from: data names no targets", "data")


@dataclass(frozen=True, slots=True)
class Source:
    """A targets folder, read."""

    facts: Mapping[str, Any]
    train: list[Example]
    dev: list[Example]
    weight: float

    @property
    def name(self) -> str:
        """The data set's name."""
        return str(self.facts["dataset"])


def read_sources(config: SftConfig) -> tuple[list[Source], Template]:
    """All targets folders, which must share one template and one way of showing tools."""
    sources, templates = [], set()
    for each in config.data:
        folder = Path(each.targets)
        if not (folder / "targets.json").is_file():
            raise BadInput(f"no targets in {folder}; make them with `rewrite-train targets`")
        facts = json.loads((folder / "targets.json").read_text(encoding="utf-8"))
        train, dev = read_examples(folder / "train.jsonl"), read_examples(folder / "dev.jsonl")
        if not train or not dev:
            raise BadInput(f"{folder} has {len(train)} training and {len(dev)} dev examples; both are needed")
        sources.append(Source(facts, train, dev, each.weight))
        templates.add((folder / "template.yaml").read_text(encoding="utf-8"))
    if len(templates) > 1:
        raise BadInput("the targets were made with different templates; make them again with one")
    if load_template(Path(config.data[0].targets)).candidates and len({str(s.facts["phrasing"]) for s in sources}) > 1:
        raise BadInput("the targets show tools in different phrasings; make them again with one `phrasings`")
    return sources, load_template(Path(config.data[0].targets))


class DevJudge:
    """Judges rewrites of dev queries by what the frozen retrievers find for them."""

    def __init__(self, sources: Sequence[Source], settings: DevSettings, seed: int, context: Context) -> None:
        self._settings = settings
        self._searches: list[tuple[str, ToolSearch, list[Example]]] = []
        for source in sources:
            search = ToolSearch(Index(Path(source.facts["index"]), context), source.facts["retriever"])
            if search.fingerprint != source.facts["fingerprint"]:
                raise ModelMismatch(
                    f"the targets of {source.name} were made with another state of {source.facts['index']}; "
                    "make them again with `rewrite-train targets`"
                )
            chosen = random.Random(f"{seed}/{source.name}").sample(source.dev, min(settings.queries, len(source.dev)))
            self._searches.append((source.name, search, chosen))
        self._raw = [search.ask([each.utterance for each in dev], DEPTH) for _, search, dev in self._searches]

    @property
    def examples(self) -> list[Example]:
        """The dev examples, set after set."""
        return [example for _, _, dev in self._searches for example in dev]

    def __call__(self, rewrites: Sequence[Rewrite]) -> dict[str, float]:
        """The metric of every data set, and their mean."""
        metric, start = self._settings.metric, 0
        found: dict[str, float] = {}
        for (name, search, dev), raw in zip(self._searches, self._raw, strict=True):
            lists = search.lists(rewrites[start : start + len(dev)])
            start += len(dev)
            fused = [
                search.fuse(example.utterance, first, lines, DEPTH, self._settings.fusion).ids
                for example, first, lines in zip(dev, raw, lists, strict=True)
            ]
            judged = judge(fused, [frozenset(example.gold) for example in dev])
            found[f"{name}_{metric}"] = float(measure(metric, judged).mean())
        return {metric: sum(found.values()) / len(found), **found}

    def raw(self) -> dict[str, float]:
        """What the raw queries reach."""
        return self([Rewrite((), "none")] * len(self.examples))


def run_sft(config: SftConfig, context: Context, resume: bool, cuda: bool) -> Path:
    """Trains and writes the rewriter's folder."""
    from rewrite.sft.train import Task, Trained, train

    output = Path(config.output)
    sources, template = read_sources(config)
    base = find_model(config.base)
    mark = _same_run(output, config, base, resume)
    dev = DevJudge(sources, config.evaluation, config.training.seed, context)
    task = Task(
        base,
        template,
        mix([(source.train, source.weight) for source in sources], config.training.seed),
        dev.examples,
        dev,
        config.evaluation.metric,
        config.evaluation.answer_tokens,
        config.evaluation.batch_size,
        config.evaluation.samples,
    )
    with disk_room(output):
        write_files(output, {"config.yaml": configs.dump(config), "environment.json": as_json(environment())})
        trained: Trained = train(task, config.training, output, resume, context.show_progress, cuda)
        metrics = {"raw": dev.raw(), "best": trained.best, "step": trained.step, "history": trained.history}
        card = _card(config, sources, trained, mark)
        _save(output, trained, card, template)
        write_files(output, {"metrics.json": as_json({**metrics, "training": trained.facts})})
    return output / "rewriter"


def _card(config: SftConfig, sources: Sequence[Source], trained: Any, base_fingerprint: str) -> Card:
    best: dict[str, float] = next((row for row in trained.history if row.get("step") == trained.step), {})
    return Card(
        base=config.base,
        base_fingerprint=base_fingerprint,
        method=config.training.method,
        phrasing=str(sources[0].facts["phrasing"]),
        metric=config.evaluation.metric,
        data=[
            {
                key: source.facts[key]
                for key in ("dataset", "protocol", "retriever", "fingerprint", "examples", "oracle")
            }
            | {"weight": source.weight}
            for source in sources
        ],
        metrics={name.removeprefix("eval_"): float(value) for name, value in best.items() if name.startswith("eval_")},
        training={**asdict(config.training), **trained.facts},
        environment=environment(),
    )


def _save(output: Path, trained: Any, card: Card, template: Template) -> None:
    part, finished = output / "rewriter.part", output / "rewriter"
    shutil.rmtree(part, ignore_errors=True)
    trained.model.save_pretrained(part)
    trained.tokenizer.save_pretrained(part)
    finish_folder(part, card, template)
    shutil.rmtree(finished, ignore_errors=True)
    part.rename(finished)


def _same_run(output: Path, config: SftConfig, base: Path, resume: bool) -> str:
    """Refuses to mix two runs in one folder; returns the base model's fingerprint."""
    mark = fingerprint(base)
    started = output / "checkpoints"
    if not resume and (started.exists() or (output / "rewriter").exists()):
        raise BadInput(f"{output} holds a run already; go on with `--resume`, or name another output")
    if resume and (output / "config.yaml").is_file():
        before = configs.load(output / "config.yaml", SftConfig)
        if before != config:
            raise BadInput(f"the run in {output} was started with another config; resume it with {output}/config.yaml")
    return mark
