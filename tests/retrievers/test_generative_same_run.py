"""A training that was stopped, and what of it a run with a changed config goes on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from generative_toys import ACTING, DATA, TASKS, TOOLS, save_toy_model, toolgen
from safetensors.torch import load_file

from retrievers.errors import BadInput
from retrievers.generative.loop import Loop
from retrievers.generative.settings import GenerativeTraining, Stage
from retrievers.kinds import Context, make_kind
from retrievers.text import document
from retrievers.tuning.examples import TrainingSet

DOCUMENTS = [document(tool) for tool in TOOLS]
SHORT = replace(ACTING, retrieve=replace(ACTING.retrieve, epochs=1))
STEPS = 2 + 6
"""Of the first two stages."""


class Stopped(Exception):
    """The power went."""


@pytest.fixture(scope="module")
def toy_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_model(tmp_path_factory.mktemp("models") / "toy")


def learn(model: Path, training: GenerativeTraining, work: Path, context: Context, data: TrainingSet = DATA) -> Path:
    kind = make_kind(replace(toolgen(model, training), batch_size=4), context)
    return kind.train_tools(TOOLS, DOCUMENTS, [data], work)  # type: ignore[attr-defined, no-any-return]


def counted(monkeypatch: pytest.MonkeyPatch, most: int = 10**9) -> list[int]:
    """Counts the steps that are taken; after so many the power goes."""
    taken, one = [0], Loop._one

    def step(self: Loop, batch: object) -> None:
        if taken[0] == most:
            raise Stopped
        taken[0] += 1
        one(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(Loop, "_one", step)
    return taken


def test_a_trajectory_of_a_strange_tool_is_refused_before_anything_is_trained(
    toy_lm: Path, context: Context, tmp_path: Path
) -> None:
    strange = replace(TASKS[0], id="odd", calls=(replace(TASKS[0].calls[0], tool="nobody"),))
    data = replace(DATA, trajectories=(*TASKS, strange))
    with pytest.raises(BadInput, match="the trajectory odd calls 'nobody'"):
        learn(toy_lm, ACTING, tmp_path / "work", context, data)
    assert not (tmp_path / "work").exists()


def test_other_trajectories_do_not_cost_the_stages_before_them(
    toy_lm: Path, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as power:
        counted(power, STEPS + 1)
        with pytest.raises(Stopped):
            learn(toy_lm, SHORT, tmp_path / "work", context)
    assert (tmp_path / "work" / "2-retrieve" / "done.json").exists()
    fewer = replace(DATA, trajectories=TASKS[:6])
    taken = counted(monkeypatch)
    mended = learn(toy_lm, SHORT, tmp_path / "work", context, fewer)
    assert taken == [2]  # of the third stage alone
    anew = learn(toy_lm, SHORT, tmp_path / "anew", context, fewer)
    left, right = (load_file(folder / "model.safetensors") for folder in (mended, anew))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_saving_more_often_goes_on_where_it_was_and_other_memories_begin_anew(
    toy_lm: Path, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    alone = replace(SHORT, agent=replace(SHORT.agent, epochs=0))
    with monkeypatch.context() as power:
        counted(power, 2 + 5)
        with pytest.raises(Stopped):
            learn(toy_lm, alone, work, context)
    with monkeypatch.context() as power:
        taken = counted(power, 1)
        with pytest.raises(Stopped):
            learn(toy_lm, replace(alone, save_every=1), work, context)
    assert (work / "2-retrieve" / "step-5").exists()  # the fourth was saved, one was taken
    taken = counted(monkeypatch)
    learn(toy_lm, replace(alone, memorise=Stage(epochs=1, batch_size=8)), work, context)
    assert taken == [1 + 6]
