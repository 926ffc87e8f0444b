"""Training sets of an index's retrievers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retrievers.generative.settings import ToolGenSettings
from retrievers.masstool.settings import MassToolSettings, MassToolTraining
from retrievers.registry import RetrieverSettings
from retrievers.settings import DenseSettings
from retrievers.training_set import TrainingSet
from retrievers.weaver.settings import ToolWeaverSettings


def training_data(retrievers: Mapping[str, RetrieverSettings], text: Sequence[str]) -> dict[str, Sequence[TrainingSet]]:
    """Training sets of the retrievers that are trained, by their names."""
    training: dict[str, Sequence[TrainingSet]] = {}
    for name, settings in retrievers.items():
        learners = DenseSettings | MassToolSettings | ToolGenSettings | ToolWeaverSettings
        if isinstance(settings, learners) and settings.train is not None:
            from pipelines.data.training_sets import labelled_set, training_sets

            learns = settings.train
            if isinstance(learns, MassToolTraining):
                training[name] = labelled_set(learns, text)
            else:
                training[name] = training_sets(learns, text)
    return training
