"""Parts of the training queries that an index leaves out: a rewriter then meets queries its retriever never learned."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from pipelines.data.dataset import DataSet, stable_hash
from pipelines.data.splits import held_out_tools
from retrievers.errors import BadInput
from retrievers.masstool.settings import MassToolTraining
from retrievers.text import tokens
from retrievers.types import ToolId


def without_fold(data: DataSet, settings: MassToolTraining) -> DataSet:
    """The data set without the training queries of the fold that is left out."""
    if settings.left_out_fold is None:
        return data
    fold, train = settings.left_out_fold, data.split("train")
    if settings.fold_by == "queries":
        # Copies of a query, up to order and case, are in one fold.
        keys = {query: " ".join(sorted(set(tokens(data.queries[query].text)))) for query in train}
        kept = {
            query: gold for query, gold in train.items() if stable_hash(f"fold/{keys[query]}") % settings.folds != fold
        }
    else:
        tools = _tool_folds(data, settings.folds)
        kept = {query: gold for query, gold in train.items() if all(tools[tool] != fold for tool in gold)}
    if not kept:
        raise BadInput(f"{settings.folds} folds by {settings.fold_by} leave nothing to train on; set fewer", "folds")
    return replace(data, gold={**data.gold, "train": kept})


def _tool_folds(data: DataSet, folds: int) -> Counter[ToolId]:
    """The fold of every tool that a training query needs; tools that are used together are in one fold."""
    scenes, side = list(data.split("train").values()), dict[ToolId, str]()
    for fold in range(1, folds):
        for tool in held_out_tools(scenes, 1 / folds, side, str(fold), f"{data.name}/fold/{fold}"):
            side[tool] = str(fold)
    return Counter({tool: int(fold) for tool, fold in side.items()})
