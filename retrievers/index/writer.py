"""Everything that changes an index folder: build, add, remove, confirm.

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
from retrievers.files import PART, is_ours, put_folder, sweep, writer_lock
from retrievers.index import confirmed_queries as confirmed
from retrievers.index import manifest as manifests
from retrievers.index import tools as tool_lines
from retrievers.index.manifest import Manifest, Part
from retrievers.index.reader import blocks, check_identity, live_mask, open_kind, segment_tools
from retrievers.index.segments import bury, fold, introduce, make_segment, untidy
from retrievers.index.unknown_ids import unknown
from retrievers.kind import Context, KeepsCodes, Kind, NeedsTools, Trainable
from retrievers.registry import RetrieverSettings, check_names, make_kind, settings_to_json
from retrievers.text import FIELDS, document
from retrievers.training_set import TrainingSet
from retrievers.types import Tool, ToolId

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
    confirmed: int = 0


def build(
    folder: Path,
    tools: Sequence[Tool],
    retrievers: Mapping[str, RetrieverSettings],
    context: Context,
    text: Sequence[str] = FIELDS,
    wait: float = WAIT,
    training: Mapping[str, Sequence[TrainingSet]] | None = None,
    resume: bool = False,
) -> Change:
    """A new index, in place of the one that may be there. Retrievers named in `training` are trained first.

    `resume`: they start from what they have learned for the index that is there, not from the model as it came.
    """
    check_names(retrievers)
    check_tools(tools)
    unknown = [field for field in text if field not in FIELDS]
    if unknown or not text:
        raise BadInput(f"text is made of {', '.join(FIELDS)}, not {', '.join(unknown) or 'nothing'}")
    _refuse_foreign(folder)
    tools = [storable(tool) for tool in tools]
    learned = _learned(folder, {name: retrievers[name] for name in training or {}}) if resume else {}
    kinds = {name: make_kind(settings, context, learned.get(name)) for name, settings in retrievers.items()}
    _keep(folder, {name: kinds[name] for name in learned})
    work = folder.absolute().parent / f"{folder.absolute().name}-training"
    trained = {
        name: _train(kinds[name], tools, text, sets, work / name, wait) for name, sets in (training or {}).items()
    }
    with writer_lock(folder, wait), _tidy(folder):
        before = _manifest_or_none(folder)
        parts = {}
        for name, settings in retrievers.items():
            model, files = put_folder(folder, f"{name}-model", trained[name]) if name in trained else ("", {})
            if model:
                kinds[name] = make_kind(settings, context, folder / model)
            parts[name] = Part(settings_to_json(settings), kinds[name].identity(), model, files)
        segment = make_segment(folder, tools, tuple(text), kinds)
        fingerprint = _commit(folder, before, Manifest(tuple(text), parts, (segment,)))
    for name in trained:
        shutil.rmtree(work / name, ignore_errors=True)
    if trained and not any(work.iterdir()):
        work.rmdir()
    return Change(fingerprint, added=len(tools))


def seal(
    folder: Path, tools: Sequence[Tool] | None, like: Manifest, models: Path, context: Context, wait: float = WAIT
) -> Change:
    """An index of these tools with the retrievers of another one, whose trained models lie in `models`.

    None: the tools that the folder has when this is the one writer, so that none that came meanwhile is lost.
    """
    if tools is not None:
        check_tools(tools)
        _refuse_foreign(folder)
    else:
        manifests.read(folder)  # before the lock, which would create the folder
    with writer_lock(folder, wait), _tidy(folder):
        before = _manifest_or_none(folder)
        if tools is None:
            tools = list(_live_tools(folder, manifests.read(folder)[0])[1].values())
        parts = {}
        for name, part in like.retrievers.items():
            model, files = put_folder(folder, f"{name}-model", models / part.model) if part.model else ("", {})
            parts[name] = replace(part, model=model, files=files, extras={})  # a new start, as after a build
        manifest = Manifest(like.text, parts)
        segment = make_segment(folder, tools, like.text, _kinds(folder, manifest, context))
        fingerprint = _commit(folder, before, replace(manifest, segments=(segment,)))
    return Change(fingerprint, added=len(tools))


def _train(
    kind: Kind, tools: Sequence[Tool], text: Sequence[str], sets: Sequence[TrainingSet], work: Path, wait: float
) -> Path:
    if isinstance(kind, NeedsTools):
        with writer_lock(work, wait):
            return kind.train_tools(tools, [document(tool, text) for tool in tools], sets, work)
    if not isinstance(kind, Trainable):
        raise BadInput(f"a retriever of this kind does not learn: {type(kind).__name__}")
    with writer_lock(work, wait):
        return kind.train(sets, work)


def _learned(folder: Path, retrievers: Mapping[str, RetrieverSettings]) -> dict[str, Path]:
    """The folders of the models that the index there has been given by training."""
    manifest, _ = manifests.read(folder)
    parts = {name: part for name, part in manifest.retrievers.items() if part.model and name in retrievers}
    return {name: folder / part.model for name, part in parts.items() if part.settings["kind"] == retrievers[name].kind}


def _keep(folder: Path, kinds: Mapping[str, Kind]) -> None:
    """Reminds the kinds that are trained further of what their index has given its tools."""
    keepers = {name: kind for name, kind in kinds.items() if isinstance(kind, KeepsCodes)}
    if keepers:
        manifest, _ = manifests.read(folder)
        ids = [tool for lines in _live_tools(folder, manifest)[0] for tool in lines.ids]
        for name, kind in keepers.items():
            kind.keep_codes(ids, blocks(folder, manifest.segments, name))


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
        introduce(kinds, lambda name: blocks(folder, manifest.segments, name))
        segment = make_segment(folder, fresh, manifest.text, kinds)
        segments = (*bury(manifest, held, updated), segment)
        fingerprint = _commit(folder, manifest, fold(folder, replace(manifest, segments=segments), kinds))
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
            raise BadInput(unknown(folder, strangers, known))
        if len(wanted) == len(known):
            raise BadInput(f"removing all {len(known)} tools would leave {folder} empty; delete the folder instead")
        changed = replace(manifest, segments=bury(manifest, held, wanted))
        if untidy(changed):
            changed = fold(folder, changed, _kinds(folder, manifest, context))
        fingerprint = _commit(folder, manifest, changed)
    return Change(fingerprint, removed=len(wanted))


def confirm(
    folder: Path, pairs: Sequence[tuple[str, Sequence[ToolId]]], context: Context, wait: float = WAIT
) -> Change:
    """Adds queries whose tools are known to be right, to be found for the next query like them. Trains nothing."""
    manifests.read(folder)
    with writer_lock(folder, wait), _tidy(folder):
        manifest, _ = manifests.read(folder)
        fresh = confirmed.checked(pairs, _live_tools(folder, manifest)[1], folder)
        changed = confirmed.write(folder, manifest, _kinds(folder, manifest, context), fresh)
        fingerprint = _commit(folder, manifest, changed)
    return Change(fingerprint, confirmed=len(fresh))


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


def _commit(folder: Path, before: Manifest | None, after: Manifest) -> str:
    """Seals the new version. The files of the one before stay until the next commit, for readers just opening it."""
    fingerprint = manifests.write(folder, after)
    sweep(folder, after.files() | (before.files() if before else set()))
    return fingerprint
