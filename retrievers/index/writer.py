"""Writers of an index folder: build, add, remove, confirm.

An index is a list of segments that are never changed. `add` writes one more segment, `remove` marks rows dead; both
then replace the manifest in one step. When segments or dead rows are many they are merged, which copies rows and
computes nothing again. A writer that dies at any moment leaves the old manifest, and so the old index.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from retrievers.calibration.logistic import Calibration
from retrievers.errors import BadInput, IndexMissing
from retrievers.files import PART, is_ours, put_folder, sweep, writer_lock
from retrievers.index import confirmed_queries as confirmed
from retrievers.index import manifest as manifests
from retrievers.index import tools as tool_lines
from retrievers.index.manifest import Manifest, Part
from retrievers.index.reader import blocks, live_mask, open_kinds, segment_tools
from retrievers.index.segments import make_segment, mark_dead, merge_segments, needs_merge, show_existing_rows
from retrievers.kind import Context, KeepsCodes, Kind, NeedsTools, Trainable
from retrievers.lint.limits import complaint, describe_refusal
from retrievers.progress import say
from retrievers.registry import RetrieverSettings, check_names, make_kind, settings_to_json
from retrievers.text import FIELDS, document
from retrievers.training_set import TrainingSet
from retrievers.types import Tool, ToolId

WAIT = 60.0  # seconds to wait for another writer


@dataclass(frozen=True, slots=True)
class Change:
    """Result of a writer."""

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
    """Build an index, in place of an existing one. Retrievers named in `training` are trained first.

    `resume`: they start from the models that the existing index has trained, not from the original ones.
    """
    check_names(retrievers)
    check_tools(tools)
    wrong = [field for field in text if field not in FIELDS]
    if wrong or not text:
        raise BadInput(f"text is made of {', '.join(FIELDS)}, not {', '.join(wrong) or 'nothing'}")
    refuse_foreign(folder)
    tools = [as_stored(tool) for tool in tools]
    models = _trained_models(folder, {name: retrievers[name] for name in training or {}}) if resume else {}
    kinds = {name: make_kind(settings, context, models.get(name)) for name, settings in retrievers.items()}
    _keep_codes(folder, {name: kinds[name] for name in models})
    work = folder.absolute().parent / f"{folder.absolute().name}-training"
    trained = {}
    for name, sets in (training or {}).items():
        say(f"training {name} on {sum(len(data.train) for data in sets):,} queries", context.show_progress)
        trained[name] = _train(kinds[name], tools, text, sets, work / name, wait)
    with writer_lock(folder, wait), _clean_up_on_failure(folder):
        before = _manifest_or_none(folder)
        parts = {}
        for name, settings in retrievers.items():
            model, files = put_folder(folder, f"{name}-model", trained[name]) if name in trained else ("", {})
            if model:
                kinds[name] = make_kind(settings, context, folder / model)
            parts[name] = Part(settings_to_json(settings), kinds[name].identity(), model, files)
        say(f"indexing {len(tools):,} tools for {', '.join(retrievers)}", context.show_progress)
        segment = make_segment(folder, tools, tuple(text), kinds)
        fingerprint = _commit(folder, before, Manifest(tuple(text), parts, (segment,)))
    for name in trained:
        shutil.rmtree(work / name, ignore_errors=True)
    if trained and not any(work.iterdir()):
        work.rmdir()
    return Change(fingerprint, added=len(tools))


def build_like(
    folder: Path, tools: Sequence[Tool] | None, like: Manifest, models: Path, context: Context, wait: float = WAIT
) -> Change:
    """Build an index of these tools with the retrievers of another one, whose trained models are in `models`.

    `tools` None: those of the folder once the lock is held, so that tools added meanwhile are not lost.
    """
    if tools is not None:
        check_tools(tools)
        refuse_foreign(folder)
    else:
        manifests.read(folder)  # before the lock, which would create the folder
    with writer_lock(folder, wait), _clean_up_on_failure(folder):
        before = _manifest_or_none(folder)
        if tools is None:
            tools = list(_read_tools(folder, manifests.read(folder)[0])[1].values())
        parts = {}
        for name, part in like.retrievers.items():
            model, files = put_folder(folder, f"{name}-model", models / part.model) if part.model else ("", {})
            parts[name] = replace(part, model=model, files=files, extras={})  # a new start, as after a build
        manifest = Manifest(like.text, parts)
        segment = make_segment(folder, tools, like.text, open_kinds(folder, folder, manifest, context))
        fingerprint = _commit(folder, before, replace(manifest, segments=(segment,)))
    return Change(fingerprint, added=len(tools))


def _train(
    kind: Kind, tools: Sequence[Tool], text: Sequence[str], sets: Sequence[TrainingSet], work: Path, wait: float
) -> Path:
    if not isinstance(kind, (NeedsTools, Trainable)):
        raise BadInput(f"a retriever of this kind does not learn: {type(kind).__name__}")
    with writer_lock(work, wait):
        if isinstance(kind, NeedsTools):
            return kind.train_tools(tools, [document(tool, text) for tool in tools], sets, work)
        return kind.train(sets, work)


def _trained_models(folder: Path, retrievers: Mapping[str, RetrieverSettings]) -> dict[str, Path]:
    """Folders of the models that the existing index has trained for these retrievers."""
    manifest, _ = manifests.read(folder)
    parts = {name: part for name, part in manifest.retrievers.items() if part.model and name in retrievers}
    return {name: folder / part.model for name, part in parts.items() if part.settings["kind"] == retrievers[name].kind}


def _keep_codes(folder: Path, kinds: Mapping[str, Kind]) -> None:
    """Pass the codes of the existing index to the kinds that keep them in further training."""
    keepers = {name: kind for name, kind in kinds.items() if isinstance(kind, KeepsCodes)}
    if keepers:
        manifest, _ = manifests.read(folder)
        ids = [tool for lines in _read_tools(folder, manifest)[0] for tool in lines.ids]
        for name, kind in keepers.items():
            kind.keep_codes(ids, blocks(folder, manifest.segments, name))


def add(folder: Path, tools: Sequence[Tool], context: Context, wait: float = WAIT) -> Change:
    """Add tools; a known id with other content is replaced, with the same content left alone."""
    check_tools(tools)
    manifests.read(folder)  # before the lock, which would create the folder
    tools = [as_stored(tool) for tool in tools]
    with writer_lock(folder, wait), _clean_up_on_failure(folder):
        manifest, fingerprint = manifests.read(folder)
        lines, known = _read_tools(folder, manifest)
        fresh = [tool for tool in tools if known.get(tool.id) != tool]
        updated = {tool.id for tool in fresh if tool.id in known}
        if not fresh:
            return Change(fingerprint, unchanged=len(tools))
        kinds = open_kinds(folder, folder, manifest, context)
        show_existing_rows(kinds, lambda name: blocks(folder, manifest.segments, name))
        segment = make_segment(folder, fresh, manifest.text, kinds)
        segments = (*mark_dead(manifest, lines, updated), segment)
        fingerprint = _commit(folder, manifest, merge_segments(folder, replace(manifest, segments=segments), kinds))
    return Change(fingerprint, len(fresh) - len(updated), len(updated), unchanged=len(tools) - len(fresh))


def remove(folder: Path, ids: Iterable[ToolId], context: Context, wait: float = WAIT) -> Change:
    """Remove tools. If an id is unknown, nothing is removed."""
    wanted = set(ids)
    manifests.read(folder)
    with writer_lock(folder, wait), _clean_up_on_failure(folder):
        manifest, _ = manifests.read(folder)
        lines, known = _read_tools(folder, manifest)
        missing = sorted(wanted - known.keys())
        if missing:
            raise BadInput(tool_lines.unknown_ids(folder, missing, known))
        if len(wanted) == len(known):
            raise BadInput(f"removing all {len(known)} tools would leave {folder} empty; delete the folder instead")
        changed = replace(manifest, segments=mark_dead(manifest, lines, wanted))
        if needs_merge(changed):
            changed = merge_segments(folder, changed, open_kinds(folder, folder, manifest, context))
        fingerprint = _commit(folder, manifest, changed)
    return Change(fingerprint, removed=len(wanted))


def confirm(
    folder: Path, pairs: Sequence[tuple[str, Sequence[ToolId]]], context: Context, wait: float = WAIT
) -> Change:
    """Add queries whose tools are confirmed, for retrievers that learn from feedback. Trains nothing."""
    manifests.read(folder)
    with writer_lock(folder, wait), _clean_up_on_failure(folder):
        manifest, _ = manifests.read(folder)
        fresh = confirmed.check_pairs(pairs, _read_tools(folder, manifest)[1], folder)
        changed = confirmed.write(folder, manifest, open_kinds(folder, folder, manifest, context), fresh)
        fingerprint = _commit(folder, manifest, changed)
    return Change(fingerprint, confirmed=len(fresh))


def calibrate(folder: Path, calibrations: Mapping[str, Calibration], wait: float = WAIT) -> Change:
    """Store calibrations of retrievers by name. Rankings stay as they are."""
    manifests.read(folder)
    with writer_lock(folder, wait):
        manifest, _ = manifests.read(folder)
        parts = {
            name: replace(part, calibration=asdict(calibrations[name])) if name in calibrations else part
            for name, part in manifest.retrievers.items()
        }
        return Change(_commit(folder, manifest, replace(manifest, retrievers=parts)))


def check_tools(tools: Sequence[Tool]) -> None:
    """Refuse an empty catalogue, duplicate ids, and tools beyond the limits."""
    if not tools:
        raise BadInput("the catalogue is empty; an index needs at least one tool")
    seen: set[ToolId] = set()
    for tool in tools:
        if tool.id in seen:
            raise BadInput(f"the tool id {tool.id!r} is in the catalogue twice; ids must be unique")
        seen.add(tool.id)
        if why := complaint(tool):
            raise BadInput(f"a tool cannot be stored: {describe_refusal(tool, why)}")


def as_stored(tool: Tool) -> Tool:
    """The tool as it is read back from the disk: lone surrogates, which sloppy JSON holds, are replaced."""
    return tool_lines.decode(tool_lines.encode([tool]))


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder with other files, so that no writer touches them."""
    if not folder.is_dir() or _manifest_or_none(folder) is not None:
        return
    foreign = sorted(path.name for path in folder.iterdir() if not is_ours(path.name))
    if foreign == [manifests.NAME] and _may_be_ours(folder / manifests.NAME):
        return  # an index whose manifest is damaged, or of another version
    if foreign:
        raise BadInput(f"{folder} is not an index and holds other files ({foreign[0]}); name an empty folder")


def _may_be_ours(manifest: Path) -> bool:
    """False for an intact manifest.json of something else, such as a web page."""
    try:
        facts = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError):
        return True
    return isinstance(facts, dict) and "format" in facts


@contextmanager
def _clean_up_on_failure(folder: Path) -> Iterator[None]:
    """Delete what a failing writer has written, and nothing else.

    It may fail after its manifest was written: the files which that one names are kept, like all files of before.
    """
    before = {path.name for path in folder.iterdir() if not path.name.startswith(PART)}
    try:
        yield
    except BaseException:
        now = _manifest_or_none(folder)
        sweep(folder, before | (now.files() if now else set()))
        raise


def _manifest_or_none(folder: Path) -> Manifest | None:
    """The manifest before a build; a damaged one counts as none."""
    try:
        return manifests.read(folder)[0]
    except (IndexMissing, OSError):
        return None


def _read_tools(folder: Path, manifest: Manifest) -> tuple[list[tool_lines.ToolLines], tool_lines.LiveTools]:
    """The tools of every segment, and the live ones by id."""
    lines = [segment_tools(folder, segment) for segment in manifest.segments]
    return lines, tool_lines.LiveTools(lines, np.concatenate([live_mask(segment) for segment in manifest.segments]))


def _commit(folder: Path, before: Manifest | None, after: Manifest) -> str:
    """Write the manifest. Files of the version before stay until the next commit, for readers just opening it."""
    fingerprint = manifests.write(folder, after)
    sweep(folder, after.files() | (before.files() if before else set()))
    return fingerprint
