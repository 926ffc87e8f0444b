"""manifest.json: the content of an index. Written last and atomically; its hash is the index's fingerprint.

segments     tools written at one time, with every retriever's arrays; never changed once written
dead         rows of a segment that were removed or replaced later
retrievers   name -> settings and identity (facts, such as the hash of the encoder's weights, that must hold on opening)
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from retrievers.errors import IndexBroken, IndexMissing
from retrievers.files import PART, Entry, disk_room, is_confined, sync_folder

NAME = "manifest.json"
FORMAT = 1


class OtherFormat(Exception):
    """A manifest of another format, which it names."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tools that were written at one time."""

    count: int
    tools: Entry
    arrays: dict[str, dict[str, Entry]]
    """retriever name -> array name -> file"""
    dead: tuple[int, ...] = ()

    def entries(self) -> list[Entry]:
        """All files of the segment."""
        return [self.tools, *(entry for named in self.arrays.values() for entry in named.values())]


@dataclass(frozen=True, slots=True)
class Part:
    """One retriever of the index."""

    settings: dict[str, Any]
    identity: dict[str, str] = field(default_factory=dict)
    model: str = ""
    """Folder of the model that was trained for this index; "": none was."""
    files: dict[str, Entry] = field(default_factory=dict)
    """The model's files, by their path inside its folder."""
    extras: dict[str, Entry] = field(default_factory=dict)
    """Files added to the retriever later, such as confirmed queries."""
    calibration: dict[str, Any] = field(default_factory=dict)
    """Calibration of its scores on labelled queries; empty: the one that ships, or none."""

    def __post_init__(self) -> None:
        if self.model and not is_confined(self.model):
            raise IndexBroken(f"the manifest names {self.model!r}, a model outside of the index; build the index again")


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of an index."""

    text: tuple[str, ...]
    retrievers: dict[str, Part]
    segments: tuple[Segment, ...] = ()

    def entries(self) -> list[Entry]:
        """All files this manifest needs."""
        parts = self.retrievers.values()
        models = [entry for part in parts for entry in (*part.files.values(), *part.extras.values())]
        return models + [entry for segment in self.segments for entry in segment.entries()]

    def files(self) -> set[str]:
        """Names of the files and folders this manifest needs."""
        return {entry.file.partition("/")[0] for entry in self.entries()}

    def live(self) -> int:
        """Number of live tools."""
        return sum(segment.count - len(segment.dead) for segment in self.segments)

    def encode(self) -> bytes:
        """The bytes on disk, the same for the same content. The last line is the hash of those before it."""
        whole = {  # by hand: `asdict` copies everything, which takes as long as to write it
            "text": self.text,
            "retrievers": {name: _part_facts(part) for name, part in self.retrievers.items()},
            "segments": [
                {
                    "count": segment.count,
                    "tools": _entry_facts(segment.tools),
                    "arrays": {name: _entries_facts(named) for name, named in segment.arrays.items()},
                    "dead": segment.dead,
                }
                for segment in self.segments
            ],
        }
        facts = json.dumps({"format": FORMAT, **whole}, indent=1, sort_keys=True, ensure_ascii=False)
        body = facts.encode("utf-8", "replace")
        return body[:-2] + f',\n "seal": "{hashlib.sha256(body[:-2]).hexdigest()}"\n}}\n'.encode()


def _part_facts(part: Part) -> dict[str, Any]:
    facts = {
        "settings": part.settings,
        "identity": part.identity,
        "model": part.model,
        "files": _entries_facts(part.files),
    }
    later = {"extras": _entries_facts(part.extras), "calibration": part.calibration}
    # An index without them keeps its fingerprint of before there were any.
    return facts | {name: value for name, value in later.items() if value}


def _entries_facts(entries: dict[str, Entry]) -> dict[str, Any]:
    return {name: _entry_facts(entry) for name, entry in entries.items()}


def _entry_facts(entry: Entry) -> dict[str, Any]:
    return {"file": entry.file, "bytes": entry.bytes, "sha256": entry.sha256}


def write(folder: Path, manifest: Manifest) -> str:
    """Write the manifest once everything else is on the disk; return the fingerprint."""
    data = manifest.encode()
    part = folder / f"{PART}manifest-{os.getpid()}"
    with disk_room(folder):
        sync_folder(folder)
        try:
            with part.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, folder / NAME)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        sync_folder(folder)
    return fingerprint_of(data)


def fingerprint_of(data: bytes) -> str:
    """Short hash that every reward, run, model card and response carries."""
    return hashlib.sha256(data).hexdigest()[:16]


def read(folder: Path) -> tuple[Manifest, str]:
    """The manifest and its fingerprint."""
    path = folder / NAME
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise IndexMissing(f"no finished index in {folder}; build one with `rewrite-index build`") from error
    except OSError as error:
        raise IndexBroken(f"{path} cannot be read ({error.strerror})") from error
    try:
        return _decode_sealed(data), fingerprint_of(data)
    except OtherFormat as error:
        raise IndexBroken(
            f"{path} is of format {error.args[0]}, this version reads {FORMAT}; build the index again"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IndexBroken(f"{path} is damaged; build the index again") from error


@lru_cache(maxsize=4)
def _decode_sealed(data: bytes) -> Manifest:
    """A manifest out of its bytes, checked; a change of an index reads the same ones three times."""
    facts = json.loads(data)
    if facts["format"] != FORMAT:
        raise OtherFormat(facts["format"])
    manifest = decode(facts)
    if manifest.encode() != data or not manifest.segments:
        raise ValueError("the seal is broken")
    return manifest


def decode(facts: dict[str, Any]) -> Manifest:
    """A manifest out of JSON."""
    return Manifest(
        text=tuple(facts["text"]),
        retrievers={
            name: Part(**{**part, "files": _entries(part["files"]), "extras": _entries(part.get("extras", {}))})
            for name, part in facts["retrievers"].items()
        },
        segments=tuple(
            Segment(
                count=segment["count"],
                tools=Entry(**segment["tools"]),
                arrays={name: _entries(named) for name, named in segment["arrays"].items()},
                dead=tuple(segment["dead"]),
            )
            for segment in facts["segments"]
        ),
    )


def _entries(named: dict[str, Any]) -> dict[str, Entry]:
    return {name: Entry(**entry) for name, entry in named.items()}
