"""The guard of a training run's work folder: what is kept, what is deleted, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrievers.errors import BadInput
from retrievers.training_set import Examples
from retrievers.work_folder import STATE, WorkStage, content_hash, reuse_work


def stages(first: Any = 1, second: Any = 2) -> list[WorkStage]:
    return [WorkStage("first", first, ("one", "step-*")), WorkStage("second", second, ("two.bin",))]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with the work of both stages."""
    reuse_work(tmp_path / "work", stages())
    for name in ("one", "step-9"):
        (tmp_path / "work" / name).mkdir()
    (tmp_path / "work" / "two.bin").write_text("done")
    (tmp_path / "work" / ".lock").touch()
    return tmp_path / "work"


def kept(work: Path) -> set[str]:
    return {path.name for path in work.iterdir()} - {STATE, ".lock"}


def test_the_same_run_keeps_everything(work: Path) -> None:
    (work / "notes.txt").touch()
    reuse_work(work, stages())
    assert kept(work) == {"one", "step-9", "two.bin", "notes.txt"}


def test_a_later_stage_that_differs_costs_only_itself(work: Path) -> None:
    reuse_work(work, stages(second=3))
    assert kept(work) == {"one", "step-9"}


def test_an_earlier_stage_that_differs_costs_the_later_ones(work: Path) -> None:
    reuse_work(work, stages(first=3))
    assert kept(work) == set()


@pytest.mark.parametrize("state", ["", "[]", '{"first": "of another version"}'])
def test_work_of_an_unknown_run_is_deleted(work: Path, state: str) -> None:
    (work / STATE).write_text(state)
    reuse_work(work, stages())
    assert kept(work) == set()


def test_a_folder_with_other_files_is_refused_and_left_alone(work: Path) -> None:
    (work / "notes.txt").touch()
    with pytest.raises(BadInput, match=r"notes\.txt"):
        reuse_work(work, stages(first=3))
    assert kept(work) == {"one", "step-9", "two.bin", "notes.txt"}
    reuse_work(work, stages(first=3), shared=["notes.txt"])
    assert kept(work) == {"notes.txt"}


def test_a_hash_tells_contents_apart() -> None:
    examples = Examples(("a",), ((0,),))
    values = [examples, Examples(("b",), ((0,),)), np.zeros(3), np.zeros(3, np.float32), np.zeros((3, 1)), [1, "a"], {}]
    assert len({content_hash(value) for value in values}) == len(values)
    assert content_hash([examples, np.zeros(3)]) == content_hash([Examples(("a",), ((0,),)), np.zeros(3)])
