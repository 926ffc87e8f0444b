"""Promotes a candidate in one atomic step that a server notices, and undoes it.

An index keeps its folder and its tools, including those added during the round; one new manifest replaces its
retrievers. A rewriter's live path is a link, which is replaced. A reader sees either the old or the new version.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from pipelines.index.folds import copy_folds
from pipelines.renew.rounds import CANDIDATE, LIVE
from pipelines.renew.settings import RenewConfig, RetrainIndex
from retrievers.errors import BadInput
from retrievers.files import disk_room, sync_folder, writer_lock
from retrievers.index import build_like
from retrievers.index import manifest as manifests
from retrievers.index.manifest import Manifest
from retrievers.index.writer import WAIT
from retrievers.kind import Context

BEFORE = "rewriter-before"
"""Link to the rewriter that was live before the round; missing: there was none."""


def snapshot(live: Path, target: Path) -> None:
    """Keep the live index under another name. Files of an index never change, so links are as good as copies."""
    if (target / manifests.NAME).exists():
        return
    manifests.read(live)  # before the lock, which would create the folder
    part = target.with_name(f".part-{target.name}")
    shutil.rmtree(part, ignore_errors=True)
    with disk_room(target), writer_lock(live, WAIT):
        manifest, _ = manifests.read(live)
        for entry in manifest.entries():
            copy = part / entry.file
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(live / entry.file, copy)
            except OSError:  # another disk, or one without links
                shutil.copyfile(live / entry.file, copy)
        (part / manifests.NAME).write_bytes((live / manifests.NAME).read_bytes())
        os.replace(part, target)
        sync_folder(target.parent)


def promote(config: RenewConfig, folder: Path, context: Context) -> None:
    """Make the round's candidate live. Repeating it changes nothing."""
    if isinstance(config.retrain, RetrainIndex):
        _replace_retrievers(config, folder / CANDIDATE, folder / LIVE, context)
        return
    live, target = _rewriter_path(config), (folder / CANDIDATE / "rewriter").absolute()
    before = folder / BEFORE
    if live.is_symlink() and Path(os.readlink(live)) == target:
        return
    if not before.is_symlink() and (live.is_symlink() or live.exists()):
        old = live.resolve()
        if not live.is_symlink():  # a folder: it gets a name of its own, and a link takes its place
            old = live.absolute().with_name(f"{live.name}-before-{folder.name}")
        before.symlink_to(old)
    if before.is_symlink() and live.exists() and not live.is_symlink():
        os.rename(live, os.readlink(before))
    _replace_link(live, target)


def restore_previous(config: RenewConfig, folder: Path, context: Context) -> None:
    """Make the version before the round live again."""
    if isinstance(config.retrain, RetrainIndex):
        _replace_retrievers(config, folder / LIVE, folder / CANDIDATE, context)
        return
    live, before = _rewriter_path(config), folder / BEFORE
    if before.is_symlink():
        _replace_link(live, Path(os.readlink(before)))
    elif live.is_symlink():
        live.unlink()


def _replace_retrievers(config: RenewConfig, new: Path, old: Path, context: Context) -> None:
    """Give the live index the retrievers of `new`, if it still has those of `old`."""
    live = Path(config.live.index)
    wanted, expected, current = (manifests.read(folder)[0] for folder in (new, old, live))
    if _retrievers(current) == _retrievers(wanted):
        return
    if _retrievers(current) != _retrievers(expected):
        raise BadInput(
            f"the retrievers of {live} were replaced by another process since this round began, so that its "
            f"comparison no longer holds: remove {new.parent}, and start another round"
        )
    build_like(live, None, wanted, new, context, WAIT)
    copy_folds(new, live, context)


def _retrievers(manifest: Manifest) -> dict[str, object]:
    """Settings and weights of an index, without its tools."""
    return {
        name: (
            replace(part, model="", files={}, extras={}, calibration={}),
            {file: entry.sha256 for file, entry in part.files.items()},
        )
        for name, part in manifest.retrievers.items()
    }


def _rewriter_path(config: RenewConfig) -> Path:
    assert config.live.rewriter is not None
    assert config.live.rewriter.path is not None
    return Path(config.live.rewriter.path).expanduser()


def _replace_link(link: Path, target: Path) -> None:
    """Point a link to another target, atomically."""
    link.parent.mkdir(parents=True, exist_ok=True)
    part = link.with_name(f".part-{link.name}")
    part.unlink(missing_ok=True)
    part.symlink_to(target)
    os.replace(part, link)
    sync_folder(link.parent)
