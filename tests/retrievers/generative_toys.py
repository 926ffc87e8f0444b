"""Tools that are called by words which mean nothing: what a tiny model can learn while a test waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from retrievers.generative.settings import AgentStage, GenerativeTraining, Stage, ToolGenSettings
from retrievers.generative.trajectories import Call, Trajectory
from retrievers.sources import TrainingSource
from retrievers.tuning.examples import Examples, TrainingSet
from retrievers.types import Tool

WORDS = "blorp zindle quax frum teggle wix snarb plood".split()
TOOLS = [Tool(f"t{i}", f"{word}_tool", f"Does {word} things.") for i, word in enumerate(WORDS)]
IDS = tuple(tool.id for tool in TOOLS)
OPENINGS = ("please", "get me a", "now", "any", "the", "one")
QUERIES = tuple(f"{opening} {word}" for word in WORDS for opening in OPENINGS)
GOLD = tuple((i,) for i in range(len(WORDS)) for _ in OPENINGS)
TASKS = tuple(
    Trajectory(f"a{i}", f"do {word}", (Call("I look.", f"t{i}", {"what": word}, {"ok": True}),), "Done.")
    for i, word in enumerate(WORDS)
)
DATA = TrainingSet(
    "toy",
    tuple(tool.description for tool in TOOLS),
    Examples(QUERIES, GOLD),
    Examples(tuple(f"I want {word}" for word in WORDS), tuple((i,) for i in range(len(WORDS)))),
    IDS,
    TASKS,
)
TRAINING = GenerativeTraining(
    (TrainingSource("toy"),),
    memorise=Stage(epochs=2, batch_size=8, learning_rate=5e-3),
    retrieve=Stage(epochs=8, batch_size=8, learning_rate=5e-3),
    save_every=2,
    patience=9,
)
ACTING = replace(TRAINING, agent=AgentStage(epochs=1, batch_size=8, learning_rate=1e-3, max_length=400))


def toolgen(model: Path, training: GenerativeTraining | None = None, indexing: str = "atomic") -> ToolGenSettings:
    return ToolGenSettings(model=str(model), indexing=indexing, train=training)  # type: ignore[arg-type]
