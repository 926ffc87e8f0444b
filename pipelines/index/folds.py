"""Indexes beside an index, each trained without one part of the training queries (`train.folds`).

An index has learned its training queries, so its answers to them are too good to train a rewriter with. Each fold's
index answers the queries that it was not trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pipelines.held_out import count_folds, fold_folder
from pipelines.index.training_data import training_data
from retrievers.dense.encoder import fingerprint
from retrievers.index import Index, build, build_like
from retrievers.index import manifest as manifests
from retrievers.index.writer import refuse_foreign
from retrievers.kind import Context
from retrievers.masstool.settings import MassToolSettings, MassToolTraining
from retrievers.progress import say
from retrievers.registry import RetrieverSettings
from retrievers.settings import hybrid_parts
from retrievers.types import Tool


def build_folds(
    index: Path,
    tools: Sequence[Tool],
    retrievers: Mapping[str, RetrieverSettings],
    context: Context,
    text: Sequence[str],
    wait: float,
) -> None:
    """Build the index of every fold; one that was built from the same data is kept."""
    count = max((learns.folds for learns in map(_folded, retrievers.values()) if learns), default=0)
    if count:
        refuse_foreign(index)  # before hours of training
    for fold in range(count):
        folder, own = fold_folder(index, fold), _fold_retrievers(retrievers, fold)
        training = training_data(own, text)
        weights = [
            fingerprint(context.find_model(kept.model)) for kept in own.values() if isinstance(kept, MassToolSettings)
        ]
        inputs = hashlib.sha256(repr((own, weights, list(tools), text, training)).encode()).hexdigest()
        noted = folder.with_suffix(".inputs")
        if (folder / manifests.NAME).exists() and noted.exists() and noted.read_text() == inputs:
            say(f"fold {fold + 1} of {count} is built: {folder}", context.show_progress)
            continue
        say(f"training without fold {fold + 1} of {count}: {folder}", context.show_progress)
        noted.unlink(missing_ok=True)
        build(folder, tools, own, context, text, wait, training)
        noted.write_text(inputs)  # after the index, so that a stopped build is not taken for a whole one


def copy_folds(source: Path, target: Path, context: Context) -> None:
    """Give an index the folds of another one, which has the same trained retrievers, for its own tools.

    Nothing is trained. A fold that is missing stays missing: `open_folds` says so when it is needed.
    """
    index = Index(target, context)
    for fold in range(count_folds(index.manifest, index.names)):
        trained = fold_folder(source, fold)
        if not (trained / manifests.NAME).exists():
            continue
        manifest, _ = manifests.read(trained)
        build_like(fold_folder(target, fold), list(index.tools.values()), manifest, trained, context)


def _fold_retrievers(retrievers: Mapping[str, RetrieverSettings], fold: int) -> dict[str, RetrieverSettings]:
    """Retrievers of a fold's index: those with folds, those without training, and hybrids of them."""
    own: dict[str, RetrieverSettings] = {}
    for name, settings in retrievers.items():
        learns = _folded(settings)
        if learns and isinstance(settings, MassToolSettings):
            own[name] = replace(settings, train=replace(learns, left_out_fold=fold))
        elif getattr(settings, "train", None) is None:
            own[name] = settings
    return {name: kept for name, kept in own.items() if all(part in own for part in hybrid_parts(asdict(kept)))}


def _folded(settings: RetrieverSettings) -> MassToolTraining | None:
    """Training settings that ask for folds."""
    learns = settings.train if isinstance(settings, MassToolSettings) else None
    return learns if learns and learns.folds and learns.left_out_fold is None else None
