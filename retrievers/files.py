"""Files of an index folder: written whole or not at all, named by their content, guarded by one lock.

A file is written under a temporary name, flushed to the disk, and renamed to `<label>-<hash>.<ending>`. So a name
always means the same bytes, old and new index share unchanged files, and a killed writer leaves only temporary files,
which the next writer deletes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from retrievers.errors import BadInput, IndexBroken, IndexBusy, OutOfDisk, ReadOnlyDisk

PART = ".part-"
LOCK = ".lock"
_NAMES = re.compile(r"[\w-]+-[0-9a-f]{16}\.(npy|jsonl)|[\w-]+-model-[0-9a-f]{16}")
MAX_READ_BYTES = 1 << 20
"""Of an array that is read; larger ones are mapped."""
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in the manifest."""

    file: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        """Refuse a path that leaves the index's folder: the manifest may come from anywhere."""
        if not is_confined(self.file):
            raise IndexBroken(f"the manifest names {self.file!r}, a file outside of the index; build the index again")


def is_confined(path: str) -> bool:
    """True for a relative path below its folder."""
    pure = PurePosixPath(path)
    return bool(pure.parts) and not pure.is_absolute() and ".." not in pure.parts and not {"\\", "\0"} & set(path)


class _HashingStream:
    """A stream that hashes and counts the bytes written to it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self._stream.write(data)


@contextmanager
def disk_room(folder: Path) -> Iterator[None]:
    """Raise OutOfDisk for "no space left", "quota exceeded" and "file too large", ReadOnlyDisk where writing fails."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise OutOfDisk(
                f"no room left to write in {folder} ({os.strerror(error.errno)}); nothing was changed"
            ) from error
        if error.errno in _READ_ONLY and not isinstance(error, ReadOnlyDisk):
            raise ReadOnlyDisk(
                f"{folder} cannot be written ({os.strerror(error.errno)}); nothing was changed. Make it writable, or "
                "name another folder"
            ) from error
        raise


def put(folder: Path, label: str, ending: str, write: Callable[[Any], object]) -> Entry:
    """Write one file through `write(stream)` and return its entry."""
    part = folder / f"{PART}{os.getpid()}-{time.monotonic_ns()}"
    with disk_room(folder):
        try:
            with part.open("wb") as stream:
                hashing = _HashingStream(stream)
                write(hashing)
                stream.flush()
                os.fsync(stream.fileno())
            sha256 = hashing.digest.hexdigest()
            name = f"{label}-{sha256[:16]}.{ending}"
            os.replace(part, folder / name)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    return Entry(name, hashing.size, sha256)


def put_bytes(folder: Path, label: str, ending: str, data: bytes) -> Entry:
    """Write one file."""
    return put(folder, label, ending, lambda stream: stream.write(data))


def put_array(folder: Path, label: str, array: np.ndarray) -> Entry:
    """Write an array as a plain .npy file."""
    return put(folder, label, "npy", lambda stream: np.save(stream, np.ascontiguousarray(array), allow_pickle=False))


def put_folder(folder: Path, label: str, source: Path) -> tuple[str, dict[str, Entry]]:
    """Copy a folder, such as a model's, and return its name and the entries of its files."""
    part = folder / f"{PART}{os.getpid()}-{time.monotonic_ns()}"
    with disk_room(folder):
        try:
            shutil.copytree(source, part)
            digest, entries = hashlib.sha256(), {}
            for path in sorted(path for path in part.rglob("*") if path.is_file()):
                with path.open("rb") as stream:
                    os.fsync(stream.fileno())
                    sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
                name = path.relative_to(part).as_posix()
                entries[name] = Entry(name, path.stat().st_size, sha256)
                digest.update(f"{name}\0{sha256}\0".encode())
            target = _free_name(folder, label, digest.hexdigest()[:16], entries)
            if not (folder / target).exists():
                os.replace(part, folder / target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target, {name: Entry(f"{target}/{name}", entry.bytes, entry.sha256) for name, entry in entries.items()}


def _free_name(folder: Path, label: str, digest: str, entries: dict[str, Entry]) -> str:
    """A name that is free, or whose folder holds exactly this content.

    An existing folder may be in use by the previous index, so it is never replaced, damaged or not.
    """
    name = f"{label}-{digest}"
    while (folder / name).exists() and not all(is_intact(folder / name, entry) for entry in entries.values()):
        name = f"again-{name}"
    return name


def is_intact(folder: Path, entry: Entry) -> bool:
    """True for a file with the bytes of its entry."""
    path = folder / entry.file
    return path.is_file() and path.stat().st_size == entry.bytes and hash_of(path) == entry.sha256


KNOWN_HASHES = ".hashes.json"
"""Size, time of change, inode and hash of each file of a folder; an entry holds while the first three do."""


def hash_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_unchanged(path: Path) -> str:
    """The SHA-256 of a file, which is read once per process as long as its size, time and inode stay the same."""
    facts = path.stat()
    return _hash_of_version(path, facts.st_size, facts.st_mtime_ns, facts.st_ino)


@lru_cache(maxsize=1024)
def _hash_of_version(path: Path, size: int, changed: int, inode: int) -> str:
    try:
        known = json.loads((path.parent / KNOWN_HASHES).read_text())[path.name]
        if known[:3] == [size, changed, inode]:
            return str(known[3])
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return hash_of(path)


def keep_hashes(folder: Path) -> None:
    """Keep the hashes of a folder's files in it: without them each process reads 275 MB for a second or two."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name != KNOWN_HASHES]
    facts = {path.name: (path.stat(), hash_unchanged(path)) for path in files}
    known = {name: [own.st_size, own.st_mtime_ns, own.st_ino, sha256] for name, (own, sha256) in facts.items()}
    part = folder / f"{KNOWN_HASHES}.{os.getpid()}"
    part.write_text(json.dumps(known))
    os.replace(part, folder / KNOWN_HASHES)


def check(folder: Path, entry: Entry) -> Path:
    """The path of an entry, once its bytes are checked: about 0.1 s for 100 MB."""
    path = folder / entry.file
    if not path.resolve().is_relative_to(folder.resolve()):
        raise IndexBroken(f"{path} is a link out of the index; build the index again")
    size = path.stat().st_size
    if size != entry.bytes:
        raise IndexBroken(f"{path} has {size} bytes, not {entry.bytes} as in the manifest; build the index again")
    if hash_of(path) != entry.sha256:
        raise IndexBroken(f"{path} was changed after it was written; build the index again")
    return path


def get_array(folder: Path, entry: Entry) -> np.ndarray:
    """An array, read-only: a large one is mapped into memory, a small one read. Freeing a mapped file that was deleted
    since takes up to 0.3 s of file system work, during which no other thread runs, and each keeps a file handle."""
    path = check(folder, entry)
    try:
        array = np.load(path, mmap_mode=None if entry.bytes <= MAX_READ_BYTES else "r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise IndexBroken(f"{path} is not an array of numbers; build the index again") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise IndexBroken(f"{path} is not an array of numbers; build the index again")
    array.flags.writeable = False
    return array


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_ours(name: str) -> bool:
    """True for names that this module gives."""
    return name == LOCK or name.startswith(PART) or bool(_NAMES.fullmatch(name))


def sweep(folder: Path, keep: set[str]) -> None:
    """Delete temporary files of dead writers and files that no manifest names. Call it under the lock only."""
    for path in folder.iterdir():
        if is_ours(path.name) and path.name not in keep and path.name != LOCK:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


@contextmanager
def writer_lock(folder: Path, wait: float) -> Iterator[None]:
    """Admit one writer at a time. The kernel releases the lock when its holder dies."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; an index is a folder")
    with disk_room(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise IndexBusy(
                        f"another process is writing to {folder}; waited {wait:g} s, nothing was changed"
                    ) from error
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)
