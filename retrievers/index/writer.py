"""Everything that changes an index folder: build, add, remove.

An index is a list of segments that are never changed. `add` writes one more segment, `remove` marks rows dead; both
then replace the manifest in one step. When small segments or dead rows pile up they are folded together, which copies
rows and computes nothing anew. A writer that dies at any moment leaves the old manifest, and so the old index.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from retrievers.errors import BadInput, IndexMissing
from retrievers.index import manifest as manifests
from retrievers.index import tools as tool_lines
from retrievers.index.files import PART, is_ours, put_array, put_bytes, put_folder, sweep, writer_lock
from retrievers.index.manifest import Manifest, Part, Segment
from retrievers.index.reader import blocks, check_identity, live_mask, open_kind, segment_tools
from retrievers.kinds import Arrays, Context, Kind, Learner, check_names, make_kind, settings_to_json
from retrievers.settings import RetrieverSettings
from retrievers.text import FIELDS, document
from retrievers.tuning.examples import TrainingSet
from retrievers.types import Tool, ToolId

MOST_SEGMENTS = 12
"""More than this many segments are folded: each costs a search a little."""
WAIT = 60.0
"""Seconds to wait for another writer."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a writer did."""

    fingerprint: str
    added: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0


def build(
    folder: Path,
    tools: Sequence[Tool],
    retrievers: Mapping[str, RetrieverSettings],
    context: Context,
    text: Sequence[str] = FIELDS,
    wait: float = WAIT,
    training: Mapping[str, Sequence[TrainingSet]] | None = None,
) -> Change:
    """A new index, in place of the one that may be there. Retrievers named in `training` are trained first."""
    check_names(retrievers)
    check_tools(tools)
    unknown = [field for field in text if field not in FIELDS]
    if unknown or not text:
        raise BadInput(f"text is made of {', '.join(FIELDS)}, not {', '.join(unknown) or 'nothing'}")
    _refuse_foreign(folder)
    tools = [storable(tool) for tool in tools]
    kinds = {name: make_kind(settings, context) for name, settings in retrievers.items()}
    work = folder.absolute().parent / f"{folder.absolute().name}-training"
    trained = {name: _train(kinds[name], sets, work / name, wait) for name, sets in (training or {}).items()}
    with writer_lock(folder, wait), _tidy(folder):
        before = _manifest_or_none(folder)
        parts = {}
        for name, settings in retrievers.items():
            model, files = put_folder(folder, f"{name}-model", trained[name]) if name in trained else ("", {})
            if model:
                kinds[name] = make_kind(settings, context, folder / model)
            parts[name] = Part(settings_to_json(settings), kinds[name].identity(), model, files)
        segment = _segment(folder, tools, tuple(text), kinds)
        fingerprint = _commit(folder, before, Manifest(tuple(text), parts, (segment,)))
    for name in trained:
        shutil.rmtree(work / name, ignore_errors=True)
    if trained and not any(work.iterdir()):
        work.rmdir()
    return Change(fingerprint, added=len(tools))


def _train(kind: Kind, sets: Sequence[TrainingSet], work: Path, wait: float) -> Path:
    if not isinstance(kind, Learner):
        raise BadInput(f"a retriever of this kind does not learn: {type(kind).__name__}")
    with writer_lock(work, wait):
        return kind.train(sets, work)


def add(folder: Path, tools: Sequence[Tool], context: Context, wait: float = WAIT) -> Change:
    """Adds tools; a known id with other content is replaced, with the same content left alone."""
    check_tools(tools)
    manifests.read(folder)  # before the lock, which would create the folder
    tools = [storable(tool) for tool in tools]
    with writer_lock(folder, wait), _tidy(folder):
        manifest, fingerprint = manifests.read(folder)
        held, known = _live_tools(folder, manifest)
        fresh = [tool for tool in tools if known.get(tool.id) != tool]
        updated = {tool.id for tool in fresh if tool.id in known}
        if not fresh:
            return Change(fingerprint, unchanged=len(tools))
        kinds = _kinds(folder, manifest, context)
        segment = _segment(folder, fresh, manifest.text, kinds)
        segments = (*_bury(manifest, held, updated), segment)
        fingerprint = _commit(folder, manifest, _fold(folder, replace(manifest, segments=segments), kinds))
    return Change(
        fingerprint,
        added=len(fresh) - len(updated),
        updated=len(updated),
        unchanged=len(tools) - len(fresh),
    )


def remove(folder: Path, ids: Iterable[ToolId], context: Context, wait: float = WAIT) -> Change:
    """Takes tools out. An id that is not there is refused, and then nothing is removed."""
    wanted = set(ids)
    manifests.read(folder)
    with writer_lock(folder, wait), _tidy(folder):
        manifest, _ = manifests.read(folder)
        held, known = _live_tools(folder, manifest)
        strangers = sorted(wanted - known.keys())
        if strangers:
            raise BadInput(
                f"{folder} has no tool {strangers[0]!r}" + f" (and {len(strangers) - 1} more)" * (len(strangers) > 1)
            )
        if len(wanted) == len(known):
            raise BadInput(f"removing all {len(known)} tools would leave {folder} empty; delete the folder instead")
        changed = replace(manifest, segments=_bury(manifest, held, wanted))
        if _untidy(changed):
            changed = _fold(folder, changed, _kinds(folder, manifest, context))
        fingerprint = _commit(folder, manifest, changed)
    return Change(fingerprint, removed=len(wanted))


def check_tools(tools: Sequence[Tool]) -> None:
    """Refuses an empty catalogue and ids that stand twice."""
    if not tools:
        raise BadInput("the catalogue is empty; an index needs at least one tool")
    seen: set[ToolId] = set()
    for tool in tools:
        if tool.id in seen:
            raise BadInput(f"the tool id {tool.id!r} stands twice in the catalogue; ids must be unique")
        seen.add(tool.id)


def storable(tool: Tool) -> Tool:
    """The tool as it comes back from the disk: half characters, which sloppy JSON holds, are replaced."""
    return tool_lines.decode_lines(tool_lines.encode([tool]))[0]


def _refuse_foreign(folder: Path) -> None:
    """An index folder holds nothing else, so that no writer ever meets somebody's files."""
    if not folder.is_dir() or _manifest_or_none(folder) is not None:
        return
    strangers = sorted(path.name for path in folder.iterdir() if not is_ours(path.name))
    if strangers == [manifests.NAME] and _may_be_ours(folder / manifests.NAME):
        return  # an index whose manifest is damaged, or of another version
    if strangers:
        raise BadInput(f"{folder} is not an index and holds other files ({strangers[0]}); name an empty folder")


def _may_be_ours(manifest: Path) -> bool:
    """False for a manifest.json that is whole and says nothing of an index: a web page's, say."""
    try:
        facts = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError):
        return True
    return isinstance(facts, dict) and "format" in facts


@contextmanager
def _tidy(folder: Path) -> Iterator[None]:
    """A writer that fails takes with it what it had already written, and nothing else.

    It may fail after its manifest was sealed, too: what that one names is kept, and so is what was there before,
    whether or not this version can read it.
    """
    there = {path.name for path in folder.iterdir() if not path.name.startswith(PART)}
    try:
        yield
    except BaseException:
        now = _manifest_or_none(folder)
        sweep(folder, there | (now.files() if now else set()))
        raise


def _manifest_or_none(folder: Path) -> Manifest | None:
    """What is there before a build. A damaged manifest is no reason not to build anew."""
    try:
        return manifests.read(folder)[0]
    except (IndexMissing, OSError):
        return None


def _live_tools(folder: Path, manifest: Manifest) -> tuple[list[tool_lines.Lines], tool_lines.LiveTools]:
    """The tools of every segment, and the live ones by id."""
    held = [segment_tools(folder, segment) for segment in manifest.segments]
    return held, tool_lines.LiveTools(held, np.concatenate([live_mask(segment) for segment in manifest.segments]))


def _kinds(folder: Path, manifest: Manifest, context: Context) -> dict[str, Kind]:
    kinds = {}
    for name, part in manifest.retrievers.items():
        kinds[name] = open_kind(folder, part, context)
        check_identity(folder, name, part.identity, kinds[name].identity())
    return kinds


def _segment(folder: Path, tools: Sequence[Tool], text: tuple[str, ...], kinds: Mapping[str, Kind]) -> Segment:
    documents = [document(tool, text) for tool in tools]
    return _store(folder, tools, {name: kind.rows(documents) for name, kind in kinds.items()})


def _store(folder: Path, tools: Sequence[Tool], arrays: Mapping[str, Arrays]) -> Segment:
    return Segment(
        count=len(tools),
        tools=put_bytes(folder, "tools", "jsonl", tool_lines.encode(tools)),
        arrays={
            name: {label: put_array(folder, f"{name}-{label}", array) for label, array in named.items()}
            for name, named in arrays.items()
        },
    )


def _bury(manifest: Manifest, held: Sequence[tool_lines.Lines], ids: set[ToolId]) -> tuple[Segment, ...]:
    """The segments with the live rows of these tools marked dead."""
    if not ids:
        return manifest.segments
    segments = []
    for segment, lines in zip(manifest.segments, held, strict=True):
        dead = set(segment.dead) | {row for row, tool in enumerate(lines.ids) if tool in ids}
        segments.append(replace(segment, dead=tuple(sorted(dead))))
    return tuple(segments)


def _untidy(manifest: Manifest) -> bool:
    dead = sum(len(segment.dead) for segment in manifest.segments)
    return len(manifest.segments) > MOST_SEGMENTS or dead > max(16, manifest.live() // 4)


def _fold(folder: Path, manifest: Manifest, kinds: Mapping[str, Kind]) -> Manifest:
    """Folds small segments into one once they are many, or everything once a quarter is dead."""
    if not _untidy(manifest):
        return manifest
    dead = sum(len(segment.dead) for segment in manifest.segments)
    base = manifest.segments[0]
    tail = sum(segment.count for segment in manifest.segments[1:])
    # The first segment is the large one; it is only copied when what came after has grown to a quarter of it.
    keep_base = dead <= max(16, manifest.live() // 4) and tail * 4 < base.count
    kept = (base,) if keep_base else ()
    chosen = manifest.segments[len(kept) :]
    tools = [
        tool
        for segment in chosen
        for tool, alive in zip(segment_tools(folder, segment), live_mask(segment), strict=True)
        if alive
    ]
    merged = {name: kind.merge(blocks(folder, chosen, name)) for name, kind in kinds.items()}
    return replace(manifest, segments=(*kept, _store(folder, tools, merged)))


def _commit(folder: Path, before: Manifest | None, after: Manifest) -> str:
    """Seals the new version. The files of the one before stay until the next commit, for readers just opening it."""
    fingerprint = manifests.write(folder, after)
    sweep(folder, after.files() | (before.files() if before else set()))
    return fingerprint
