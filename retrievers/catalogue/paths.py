"""Files, folders and globs -> the files and folders that are one catalogue each."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from retrievers.catalogue.detect import detect_format
from retrievers.catalogue.source import CatalogueSource
from retrievers.errors import BadInput

SUFFIXES = (".json", ".jsonl", ".yaml", ".yml", ".csv", ".tsv")
_FOREIGN = {"package.json", "package-lock.json", "node_modules"}  # next to catalogues in a repository


class CataloguePath(NamedTuple):
    """One catalogue: its path, the folder its $refs may not leave, and the source that named it."""

    path: Path
    folder: Path | None
    source: str


def expand(sources: Sequence[str]) -> list[CataloguePath]:
    """The catalogues of all sources, each once, in order; a source without any is an error."""
    paths: dict[Path, CataloguePath] = {}
    for source in sources:
        for path in _expand(source):
            paths.setdefault(path.path.resolve(), path)
    return list(paths.values())


def _expand(source: str) -> list[CataloguePath]:
    if glob.has_magic(source) and not os.path.lexists(source):
        matches = [Path(match) for match in sorted(glob.glob(source, recursive=True))]
        start = Path(*_before_magic(Path(source).parts))
        any_suffix = bool(Path(source).suffix)  # `specs/*.txt` says what it wants, `specs/*` does not
        files = [
            path
            for match in matches
            for path in (_folder(match) if match.is_dir() else [match])
            if path.is_dir() or ((any_suffix or _is_usable(path.name)) and path.name not in _FOREIGN)
        ]
        if not files:
            raise BadInput(f"{source} matches no file; check the pattern")
        return [CataloguePath(path, start, source) for path in files]
    path = CatalogueSource.at(Path(source)).path
    if str(path) == "." and not source.strip():
        raise BadInput("the path of the catalogue is blank; give a file or folder")
    if not path.is_dir():
        return [CataloguePath(path, None, source)]
    inside = [CataloguePath(file, path, source) for file in _folder(path)]
    if not inside:
        raise BadInput(f"{path} holds no catalogue ({', '.join(SUFFIXES)}); check the path")
    return inside


def _before_magic(parts: Sequence[str]) -> Iterator[str]:
    for part in parts[:-1]:
        if glob.has_magic(part):
            return
        yield part


def _folder(folder: Path) -> list[Path]:
    """The folder itself where it is one catalogue, else the files in it and in its folders."""
    if detect_format(CatalogueSource.at(folder, report=lambda sentence: None)) is not None:
        return [folder]
    files: list[Path] = []
    for name, folders, names in os.walk(folder, onerror=_cannot_list):
        folders[:] = sorted(inner for inner in folders if not inner.startswith(".") and inner not in _FOREIGN)
        here = Path(name)
        if "corpus.jsonl" in names:  # a data set: its queries are no tools
            folders.clear()
            names = ["corpus.jsonl"]
        files.extend(here / inner for inner in sorted(names) if _is_usable(inner))
    return files


def _is_usable(name: str) -> bool:
    """True for the name of a file that may be a catalogue."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".") and name not in _FOREIGN


def _cannot_list(error: OSError) -> None:
    raise BadInput(f"{error.filename} cannot be listed ({error.strerror}); check its permissions")
