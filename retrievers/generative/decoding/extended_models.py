"""Model folders in the cache whose vocabulary holds the rows of later tools, for engines that take whole models only.

Each is a copy of a model, made once and found again by its content. One that a newer version of its index has taken the
place of is removed, but for those that some process has open: whoever uses a folder holds a lock on a file in it, which
the system lets go of when the process ends, however that happens.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from retrievers.files import PART, disk_room
from retrievers.generative import code_table as book
from retrievers.generative.decoding.language_model import LanguageModel, load_model
from retrievers.generative.training.trainable import grow
from retrievers.kind import Context

USED = "in-use"
"""The file that users lock; it says whose model this is."""


@dataclass(frozen=True, slots=True)
class Grown:
    """A folder that stays for as long as this object does."""

    folder: Path
    lock: IO[str]


def name_of(language: LanguageModel, inputs: np.ndarray, outputs: np.ndarray) -> str:
    """What such a model is known by: its weights and the rows that are added."""
    digest = hashlib.sha256(language.fingerprint.encode())
    digest.update(inputs.tobytes())
    digest.update(outputs.tobytes())
    return digest.hexdigest()[:16]


def grown(language: LanguageModel, inputs: np.ndarray, outputs: np.ndarray, context: Context) -> Grown:
    """The model with these rows as well: as it lies in the cache, or made now. Then older ones of its index go."""
    shelf = (context.cache or Path(tempfile.gettempdir())) / "generative"
    target, owner = shelf / name_of(language, inputs, outputs), _owner(language)
    with disk_room(shelf):
        shelf.mkdir(parents=True, exist_ok=True)
        while (held := _held(target)) is None:
            _make(target, owner, language, inputs, outputs)
    _sweep(shelf, owner, target)
    return held


def _owner(language: LanguageModel) -> str:
    """Whose model it is: the index's in whose folder it was trained, or everybody's."""
    folder = language.folder.resolve()
    if not (folder / book.NAME).exists():
        return language.fingerprint
    return str(folder.with_name(folder.name.rpartition("-")[0].removeprefix("again-")))


def _make(target: Path, owner: str, language: LanguageModel, inputs: np.ndarray, outputs: np.ndarray) -> None:
    part = Path(tempfile.mkdtemp(prefix=PART, dir=target.parent))
    try:
        with (part / USED).open("w", encoding="utf-8", errors="surrogateescape") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # it is no leftover
            lock.write(owner)
            lock.flush()
            model = load_model(language.folder)
            grow(model, inputs, outputs)
            model.save_pretrained(part)
            language.tokenizer.save_pretrained(part)
            os.rename(part, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # these: somebody else was quicker
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _held(folder: Path) -> Grown | None:
    """The folder with a lock on it; None where it is not there."""
    try:
        lock = (folder / USED).open("a", encoding="utf-8")
    except FileNotFoundError:
        return None
    fcntl.flock(lock, fcntl.LOCK_SH)
    if _is(lock, folder / USED):
        return Grown(folder, lock)
    lock.close()  # it went away before we had it
    return None


def _sweep(shelf: Path, owner: str, kept: Path) -> None:
    """Removes the owner's other models, and what a killed process left half made, where nobody has them open."""
    for used in shelf.glob(f"*/{USED}"):
        folder = used.parent
        with suppress(OSError), used.open(encoding="utf-8", errors="surrogateescape") as lock:
            if folder == kept or (lock.read() != owner and not folder.name.startswith(PART)):
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(lock, used):
                gone = Path(tempfile.mkdtemp(prefix=PART, dir=shelf))
                os.rename(folder, gone)  # in one step: nobody finds half of it
                _remove(gone)


def _remove(folder: Path) -> None:
    """The lock's file goes last: what a kill leaves here is known for what it is."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == USED):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    folder.rmdir()


def _is(lock: IO[str], path: Path) -> bool:
    """True where that is still the file at this path."""
    try:
        there, ours = path.stat(), os.fstat(lock.fileno())
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
