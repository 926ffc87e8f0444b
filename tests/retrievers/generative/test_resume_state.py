"""A training that was stopped, and what of it a run with a changed config goes on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from generative_toys import ACTING, DATA, TASKS, TOOLS, save_toy_model, toolgen
from safetensors.torch import load_file

from retrievers.errors import BadInput
from retrievers.generative.decoding.language_model import LanguageModel, load_model
from retrievers.generative.settings import GenerativeTraining, Stage
from retrievers.generative.training.examples import retrieval_examples
from retrievers.generative.training.loop import StageRun, StageTrainer
from retrievers.kind import Context
from retrievers.registry import make_kind
from retrievers.text import document
from retrievers.training_set import TrainingSet

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
    taken, one = [0], StageTrainer._step

    def step(self: StageTrainer, batch: object) -> None:
        if taken[0] == most:
            raise Stopped
        taken[0] += 1
        one(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(StageTrainer, "_step", step)
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


def test_the_best_epoch_is_kept_even_if_the_last_is_done_again_and_worse(
    toy_lm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = LanguageModel(toy_lm, "cpu").chat
    examples = retrieval_examples([DATA], {tool.id: (20 + place,) for place, tool in enumerate(TOOLS)}, frames, 64)
    seen: list[torch.Tensor] = []

    def run(work: Path, *recalls: float) -> torch.Tensor:
        """A weight as a stage of two epochs leaves it."""
        model, told = load_model(toy_lm), iter(recalls)
        row = model.get_input_embeddings().weight

        def judge() -> float:
            seen.append(row[20].detach().clone())
            return next(told)

        training = replace(SHORT, save_every=6)
        job = StageRun("retrieve", examples, Stage(2, batch_size=8), training, work, "cpu", False, judge)
        StageTrainer(model, dict(model.named_parameters()), job).train()
        return row[20].detach().clone()

    assert torch.equal(run(tmp_path / "whole", 0.5, 0.9), seen[1])
    assert torch.equal(run(tmp_path / "whole"), seen[1])  # stopped before the stage was closed
    assert not torch.equal(seen[0], seen[1])
    save = StageTrainer._save

    def last(self: StageTrainer) -> None:
        if self._state.step == 12:
            raise Stopped
        save(self)

    with monkeypatch.context() as power:
        power.setattr(StageTrainer, "_save", last)
        with pytest.raises(Stopped):
            run(tmp_path / "stopped", 0.5, 0.9)
    assert torch.equal(run(tmp_path / "stopped", 0.4), seen[0])  # on a GPU an epoch done again may end a little worse
