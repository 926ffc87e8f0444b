"""The candidate of a round: retrievers built anew, or a rewriter fine-tuned. Killed at any moment, it goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.index.build import IndexConfig, build_index
from pipelines.renew.settings import COLLECTED, RenewConfig, RetrainIndex, RetrainRewriter
from pipelines.runs import as_json, write_files
from retrievers.generative.settings import ToolGenSettings
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.masstool.settings import MassToolSettings
from retrievers.registry import RetrieverSettings
from retrievers.settings import DenseSettings, TrainingSource

CANDIDATE = "candidate"


def retrain(config: RenewConfig, folder: Path, live: Index, context: Context) -> Path:
    """Makes the candidate of the round in `folder`, where it is not made yet, and gives its folder."""
    if isinstance(config.retrain, RetrainIndex):
        return _index(config.retrain, folder, live, context)
    return _rewriter(config, config.retrain, folder, context)


def _index(settings: RetrainIndex, folder: Path, live: Index, context: Context) -> Path:
    target = folder / CANDIDATE
    if not (target / "manifest.json").exists():
        retrievers = {name: bound(each, folder / COLLECTED) for name, each in settings.retrievers.items()}
        wanted = IndexConfig(str(target), (live.name,), retrievers, text=live.manifest.text)
        build_index(wanted, context, tools=list(live.tools.values()))
    return target


def bound(settings: RetrieverSettings, folder: Path) -> RetrieverSettings:
    """The settings with the folder of the collected set where they say `collected`."""
    if not isinstance(settings, DenseSettings | MassToolSettings | ToolGenSettings) or settings.train is None:
        return settings
    data = tuple(_source(each, folder) for each in settings.train.data)
    learning: Any = settings  # each kind has a training of its own, all of them `data`
    made: RetrieverSettings = replace(learning, train=replace(learning.train, data=data))
    return made


def _source(source: TrainingSource, folder: Path) -> TrainingSource:
    return replace(source, path=str(folder)) if source.path == COLLECTED else source


def _rewriter(config: RenewConfig, settings: RetrainRewriter, folder: Path, context: Context) -> Path:
    from pipelines.train.sft import SftConfig, run_sft
    from pipelines.train.targets.build import TargetsConfig, make_targets
    from pipelines.train.training_sources import SftSource
    from retrievers.dense.encoder import check_device
    from rewrite.sft.examples import write_examples
    from rewrite.template import TEMPLATE_FILE

    targets = folder / "targets"
    if not (targets / "targets.json").exists():
        made = make_targets(
            TargetsConfig(
                output=str(targets),
                data=str(folder / COLLECTED),
                index=str(folder / "live"),
                retriever=config.live.retriever,
                template=settings.template,
                say=settings.say,
                choose=settings.choose,
                most_examples=settings.most_examples,
                most_judged=settings.most_judged,
                seed=config.seed,
            ),
            context,
        )
        files = {f"{split}.jsonl": write_examples(examples) for split, examples in made.splits.items()}
        write_files(targets, files | {TEMPLATE_FILE: made.template.dump()})
        write_files(targets, {"targets.json": as_json(made.facts)})  # last: now it is whole
    target = folder / CANDIDATE
    wanted = SftConfig(str(target), (SftSource(str(targets)),), settings.base, settings.training, settings.evaluation)
    run_sft(wanted, context, True, check_device(context.device).startswith("cuda"))
    return target


def learns_from(settings: Iterable[RetrieverSettings]) -> bool:
    """Does any of these retrievers learn from what was collected?"""
    return any(
        source.path == COLLECTED
        for each in settings
        if isinstance(each, DenseSettings | MassToolSettings | ToolGenSettings) and each.train is not None
        for source in each.train.data
    )
