"""Copies of a model, in the cache, whose vocabulary includes later tools' tokens, for engines that load whole models.

A copy is made once and found again by its content. A copy that a newer version of its index replaced is removed, except
while a process has it open: users hold a lock on a file in the folder, which the system releases when they end, even by
kill -9.
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
from retrievers.generative import code_table
from retrievers.generative.decoding.language_model import LanguageModel, extend_vocabulary, load_model
from retrievers.kind import Context

LOCK_FILE = "in-use"
"""The file that users lock; it names the owner of the model."""


@dataclass(frozen=True, slots=True)
class ExtendedModel:
    """A folder that is kept as long as this object exists."""

    folder: Path
    lock: IO[str]


def extended_model_name(language: LanguageModel, inputs: np.ndarray, outputs: np.ndarray) -> str:
    """A hash of the model's weights and the added rows."""
    digest = hashlib.sha256(language.fingerprint.encode())
    digest.update(inputs.tobytes())
    digest.update(outputs.tobytes())
    return digest.hexdigest()[:16]


def open_extended_model(
    language: LanguageModel, inputs: np.ndarray, outputs: np.ndarray, context: Context
) -> ExtendedModel:
    """Open the model with these rows added, from the cache or made now; then remove older ones of its index."""
    cache = (context.cache or Path(tempfile.gettempdir())) / "generative"
    target, owner = cache / extended_model_name(language, inputs, outputs), _owner(language)
    with disk_room(cache):
        cache.mkdir(parents=True, exist_ok=True)
        while (model := _open_locked(target)) is None:
            _make(target, owner, language, inputs, outputs)
    _remove_replaced(cache, owner, target)
    return model


def _owner(language: LanguageModel) -> str:
    """The index in whose folder the model was trained; the fingerprint of a model that was not."""
    folder = language.folder.resolve()
    if not (folder / code_table.FILE).exists():
        return language.fingerprint
    return str(folder.with_name(folder.name.rpartition("-")[0].removeprefix("again-")))


def _make(target: Path, owner: str, language: LanguageModel, inputs: np.ndarray, outputs: np.ndarray) -> None:
    part = Path(tempfile.mkdtemp(prefix=PART, dir=target.parent))
    try:
        with (part / LOCK_FILE).open("w", encoding="utf-8", errors="surrogateescape") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # marks the folder as not abandoned
            lock.write(owner)
            lock.flush()
            model = load_model(language.folder)
            extend_vocabulary(model, inputs, outputs)
            model.save_pretrained(part)
            language.tokenizer.save_pretrained(part)
            os.rename(part, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # these: another process was faster
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _open_locked(folder: Path) -> ExtendedModel | None:
    """The folder with a lock on it; None where it does not exist."""
    try:
        lock = (folder / LOCK_FILE).open("a", encoding="utf-8")
    except FileNotFoundError:
        return None
    fcntl.flock(lock, fcntl.LOCK_SH)
    if _is_same_file(lock, folder / LOCK_FILE):
        return ExtendedModel(folder, lock)
    lock.close()  # the folder was removed before the lock was ours
    return None


def _remove_replaced(cache: Path, owner: str, kept: Path) -> None:
    """Remove the owner's other models and what killed processes left, unless a process has them open."""
    for lock_path in cache.glob(f"*/{LOCK_FILE}"):
        folder = lock_path.parent
        with suppress(OSError), lock_path.open(encoding="utf-8", errors="surrogateescape") as lock:
            if folder == kept or (lock.read() != owner and not folder.name.startswith(PART)):
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(lock, lock_path):
                removed = Path(tempfile.mkdtemp(prefix=PART, dir=cache))
                os.rename(folder, removed)  # in one step: no process opens half of it
                # The lock's file goes last, so that a folder left by a kill is recognised.
                for path in sorted(removed.iterdir(), key=lambda path: path.name == LOCK_FILE):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                removed.rmdir()


def _is_same_file(lock: IO[str], path: Path) -> bool:
    """True where the locked file is still the one at this path."""
    try:
        there, ours = path.stat(), os.fstat(lock.fileno())
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
