"""Checks every byte of an index against its manifest."""

from __future__ import annotations

from pathlib import Path

from retrievers.errors import IndexBroken
from retrievers.files import get_array, hash_of
from retrievers.index import manifest as manifests
from retrievers.index.reader import segment_tools
from retrievers.registry import settings_from_json


def verify(folder: Path) -> list[str]:
    """Complaints about an index, one sentence each; none: it is intact."""
    manifest, fingerprint = manifests.read(folder)
    complaints = []
    for entry in manifest.entries():
        path = folder / entry.file
        try:
            sha256 = hash_of(path)
        except FileNotFoundError:
            if manifests.read(folder)[1] != fingerprint:
                return verify(folder)  # a writer has deleted it: look at the newer index
            complaints.append(f"{path} is missing")
            continue
        if sha256 != entry.sha256:
            complaints.append(
                f"{path} was changed after it was written (sha256 {sha256[:12]}…, not {entry.sha256[:12]}…)"
            )
    for part in manifest.retrievers.values():
        settings_from_json(part.settings)
    if not complaints:
        for number, segment in enumerate(manifest.segments, 1):
            complaints.extend(_shape_complaints(folder, number, manifest, segment))
    return complaints


def _shape_complaints(folder: Path, number: int, manifest: manifests.Manifest, segment: manifests.Segment) -> list[str]:
    """Complaints about a manifest that does not fit its files, which hashes cannot show."""
    try:
        list(segment_tools(folder, segment))  # decodes every one
        for named in segment.arrays.values():
            for entry in named.values():
                get_array(folder, entry)
    except IndexBroken as error:
        return [str(error)]
    if segment.arrays.keys() != manifest.retrievers.keys():
        return [f"segment {number} of {folder} does not hold every retriever of the index"]
    if any(not 0 <= row < segment.count for row in segment.dead):
        return [f"segment {number} of {folder} lists removed rows that it does not have"]
    return []
