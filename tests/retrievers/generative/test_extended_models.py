"""Models with later tools' rows in the cache: made once, removed when a newer one is there and nobody has them open."""

from __future__ import annotations

import fcntl
import gc
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from generative_toys import save_toy_model
from killing import started

from retrievers.generative.code_table import CodeTable
from retrievers.generative.decoding.extended_models import (
    LOCK_FILE,
    ExtendedModel,
    extended_model_name,
    open_extended_model,
)
from retrievers.generative.decoding.language_model import LanguageModel, load_model
from retrievers.kind import Context

SHELF = "generative"
HOLDER = """
import sys
from pathlib import Path

import numpy as np
from retrievers.generative.decoding.extended_models import open_extended_model
from retrievers.generative.decoding.language_model import LanguageModel
from retrievers.registry import Context

rows = np.full((1, 64), 0.5, np.float32)
held = open_extended_model(LanguageModel(Path(sys.argv[1]), "cpu"), rows, rows, Context(Path, Path(sys.argv[2])))
print(held.folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_model(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture
def trained(toy: Path, tmp_path: Path) -> Path:
    """A model as it lies in an index after training."""
    return sealed(toy, tmp_path / "index", "aaaaaaaaaaaaaaaa")


def sealed(toy: Path, index: Path, hashed: str) -> Path:
    folder = index / f"toolgen-model-{hashed}"
    shutil.copytree(toy, folder)
    CodeTable("atomic", 600, 600, {}).write(folder)
    return folder


def rows(count: int) -> np.ndarray:
    return np.full((count, 64), 0.5, np.float32)


def growing(model: Path, cache: Path, count: int) -> ExtendedModel:
    return open_extended_model(
        LanguageModel(model, "cpu"), rows(count), rows(count), Context(lambda reference: model, cache)
    )


def shelf(cache: Path) -> set[str]:
    return {path.name for path in (cache / SHELF).iterdir()}


def test_a_model_is_made_once_and_has_the_rows(trained: Path, tmp_path: Path) -> None:
    first = growing(trained, tmp_path, 3)
    language = LanguageModel(trained, "cpu")
    assert first.folder.name == extended_model_name(language, rows(3), rows(3))
    weights = load_model(first.folder).get_input_embeddings().weight
    assert len(weights) == language.vocab_size + 3
    assert np.array_equal(weights[-3:].detach().numpy(), rows(3))
    made = (first.folder / "model.safetensors").stat().st_mtime_ns
    again = growing(trained, tmp_path, 3)
    assert again.folder == first.folder
    assert (again.folder / "model.safetensors").stat().st_mtime_ns == made


def test_what_a_newer_version_has_taken_the_place_of_is_removed(trained: Path, toy: Path, tmp_path: Path) -> None:
    names = []
    for count in (1, 2, 3):
        held = growing(trained, tmp_path, count)
        names.append(held.folder.name)
        del held
        gc.collect()
    assert shelf(tmp_path) == {names[-1]}
    further = growing(
        sealed(toy, trained.parent, "bbbbbbbbbbbbbbbb"), tmp_path, 1
    )  # trained further, in the same index
    del further
    assert len(shelf(tmp_path)) == 1
    other = growing(sealed(toy, tmp_path / "other", "aaaaaaaaaaaaaaaa"), tmp_path, 2)  # another index's are its own
    assert len(shelf(tmp_path)) == 2
    assert (other.folder / "model.safetensors").exists()


def test_what_a_process_has_open_stays_until_that_ends(trained: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDER, str(trained), str(tmp_path)]
    with started(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        old = Path(process.stdout.readline().strip())
        assert (old / "model.safetensors").exists()
        new = growing(trained, tmp_path, 2)
        assert shelf(tmp_path) == {old.name, new.folder.name}
    assert process.returncode == -9
    growing(trained, tmp_path, 2)
    assert shelf(tmp_path) == {new.folder.name}


def test_what_a_killed_process_left_half_made_goes_and_what_another_makes_stays(trained: Path, tmp_path: Path) -> None:
    for name in (".part-left", ".part-made"):
        (tmp_path / SHELF / name).mkdir(parents=True)
        (tmp_path / SHELF / name / LOCK_FILE).write_text("whoever")
        (tmp_path / SHELF / name / "model.safetensors").write_bytes(b"half")
    with (tmp_path / SHELF / ".part-made" / LOCK_FILE).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        held = growing(trained, tmp_path, 1)
        assert shelf(tmp_path) == {".part-made", held.folder.name}


def test_a_model_that_an_older_release_left_is_used_and_nobody_elses_is_touched(trained: Path, tmp_path: Path) -> None:
    first = growing(trained, tmp_path, 1)
    (first.folder / LOCK_FILE).unlink()
    stranger = tmp_path / SHELF / "0123456789abcdef"
    shutil.copytree(first.folder, stranger)
    assert growing(trained, tmp_path, 1).folder == first.folder
    assert shelf(tmp_path) == {first.folder.name, stranger.name}
