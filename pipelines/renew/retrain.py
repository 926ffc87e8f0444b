"""Makes the candidate of a round: rebuilt retrievers, or a fine-tuned rewriter. A killed training resumes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.data.dataset import load_dataset
from pipelines.index.build import IndexConfig, build_index
from pipelines.index.calibrate import MIN_QUERIES, calibrate_retriever
from pipelines.index.folds import copy_folds
from pipelines.renew.rounds import CANDIDATE, LIVE
from pipelines.renew.settings import COLLECTED, RenewConfig, RetrainIndex, RetrainRewriter
from pipelines.runs import as_json, write_files
from retrievers.generative.settings import ToolGenSettings
from retrievers.index import Index, calibrate
from retrievers.kind import Context
from retrievers.masstool.settings import MassToolSettings
from retrievers.registry import RetrieverSettings
from retrievers.settings import DenseSettings

TRAINABLE = DenseSettings | MassToolSettings | ToolGenSettings


def retrain(config: RenewConfig, folder: Path, live: Index, context: Context) -> None:
    """Make the candidate of the round in `folder`, unless it exists."""
    if isinstance(config.retrain, RetrainRewriter):
        _train_rewriter(config, config.retrain, folder, context)
    elif not (folder / CANDIDATE / "manifest.json").exists():
        _build_index(config.retrain, folder, live, context)


def _build_index(settings: RetrainIndex, folder: Path, live: Index, context: Context) -> None:
    retrievers = {name: _with_collected(kind, folder / COLLECTED) for name, kind in settings.retrievers.items()}
    config = IndexConfig(str(folder / CANDIDATE), (live.name,), retrievers, text=live.manifest.text)
    build_index(config, context, tools=list(live.tools.values()))
    calibrate_candidate(folder, live, context)


def calibrate_candidate(folder: Path, live: Index, context: Context) -> None:
    """Calibrate those retrievers of the candidate that are calibrated in the live index, if dev is large enough."""
    candidate, data = Index(folder / CANDIDATE, context), load_dataset(str(folder / COLLECTED))
    names = [name for name, part in live.manifest.retrievers.items() if part.calibration and name in candidate.names]
    if names and len(data.gold["dev"]) >= MIN_QUERIES:
        calibrate(candidate.folder, {name: calibrate_retriever(candidate, name, data)[0] for name in names})


def _with_collected(settings: RetrieverSettings, folder: Path) -> RetrieverSettings:
    """Settings with the folder of the collected data in place of `collected`."""
    if not isinstance(settings, TRAINABLE) or settings.train is None:
        return settings
    sources = settings.train.data
    data = tuple(replace(source, path=str(folder)) if source.path == COLLECTED else source for source in sources)
    trainable: Any = settings  # each kind has training settings of its own, all with `data`
    changed: RetrieverSettings = replace(trainable, train=replace(trainable.train, data=data))
    return changed


def trains_on_collected(settings: Iterable[RetrieverSettings]) -> bool:
    """True if any of these retrievers trains on the collected data."""
    return any(
        source.path == COLLECTED
        for kind in settings
        if isinstance(kind, TRAINABLE) and kind.train is not None
        for source in kind.train.data
    )


def _train_rewriter(config: RenewConfig, settings: RetrainRewriter, folder: Path, context: Context) -> None:
    from pipelines.train.sft import SftConfig, run_sft
    from pipelines.train.sources import SftSource
    from pipelines.train.targets.build import make_targets
    from pipelines.train.targets.settings import TargetsConfig
    from retrievers.dense.encoder import check_device
    from rewrite.sft.examples import write_examples
    from rewrite.template import TEMPLATE_FILE

    targets = folder / "targets"
    if not (targets / "targets.json").exists():
        copy_folds(Path(config.live.index), folder / LIVE, context)
        made = make_targets(
            TargetsConfig(
                output=str(targets),
                data=str(folder / COLLECTED),
                index=str(folder / LIVE),
                retriever=config.live.retriever,
                template=settings.template,
                target_style="own-words",
                seed=config.seed,
            ),
            context,
        )
        files = {f"{split}.jsonl": write_examples(examples) for split, examples in made.splits.items()}
        write_files(targets, files | {TEMPLATE_FILE: made.template.dump()})
        write_files(targets, {"targets.json": as_json(made.facts)})  # last: the folder is complete
    sft = SftConfig(
        str(folder / CANDIDATE), (SftSource(str(targets)),), settings.base, settings.training, settings.evaluation
    )
    run_sft(sft, context, True, check_device(context.device).startswith("cuda"))
