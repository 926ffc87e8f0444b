"""A tiny ToolWeaver of the tools in `generative_toys`, trained in seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from generative_toys import TRAINING

from retrievers.generative.settings import GenerativeTraining, Stage
from retrievers.training_set import Examples, TrainingSet
from retrievers.types import Tool
from retrievers.weaver.settings import QuantiserSettings, ToolWeaverSettings

QUANTISER = QuantiserSettings(levels=3, codebook_size=4, width=8, steps=40)
QUICK = replace(TRAINING, memorise=Stage(epochs=1, batch_size=8, learning_rate=3e-3), retrieve=Stage(epochs=0))


def toolweaver(
    model: Path, training: GenerativeTraining = TRAINING, quantiser: QuantiserSettings = QUANTISER, **more: object
) -> ToolWeaverSettings:
    return ToolWeaverSettings(train=training, model=str(model), quantiser=quantiser, **more)  # type: ignore[arg-type]


def any_set(tools: list[Tool]) -> TrainingSet:
    """Some queries of some tools, for those who only want it trained."""
    ids = tuple(tool.id for tool in tools)
    some = Examples(("one", "two"), ((0, 1), (1,)))
    return TrainingSet("any", tuple(tool.name for tool in tools), some, some, ids)
