"""Puts a candidate in the live one's place in one step that a server takes up, and takes it back.

An index keeps its folder and its tools, those that came during the round too; its retrievers are exchanged by one new
manifest. A rewriter's live path is a link, which is replaced by another one. Whoever reads meets the old or the new.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from pipelines.renew.retrain import CANDIDATE
from pipelines.renew.settings import RenewConfig, RetrainIndex
from retrievers.errors import BadInput
from retrievers.files import Entry, disk_room, sync_folder, writer_lock
from retrievers.index import manifest as manifests
from retrievers.index import seal
from retrievers.index.manifest import Manifest
from retrievers.kind import Context

LIVE = "live"
BEFORE = "rewriter-before"
"""A link to the rewriter that was live before the round; missing: there was none."""


def snapshot(live: Path, target: Path, wait: float) -> None:
    """The live index as it is now, under another name: what the round is compared with, and the way back.

    Files of an index are never changed, so links to them are as good as copies.
    """
    if (target / manifests.NAME).exists():
        return
    manifests.read(live)  # before the lock, which would create the folder
    part = target.with_name(f".part-{target.name}")
    shutil.rmtree(part, ignore_errors=True)
    with disk_room(target), writer_lock(live, wait):
        manifest, _ = manifests.read(live)
        for entry in manifest.entries():
            place = part / entry.file
            place.parent.mkdir(parents=True, exist_ok=True)
            _link(live / entry.file, place)
        (part / manifests.NAME).write_bytes((live / manifests.NAME).read_bytes())
        os.replace(part, target)
        sync_folder(target.parent)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(source, target)


def promote(config: RenewConfig, folder: Path, context: Context) -> None:
    """Makes the round's candidate the live one. Done twice, it is done once."""
    if isinstance(config.retrain, RetrainIndex):
        _exchange(config, folder / CANDIDATE, folder / LIVE, context)
        return
    live, target = _rewriter_path(config), (folder / CANDIDATE / "rewriter").absolute()
    before = folder / BEFORE
    if _points_to(live, target):
        return
    if not before.is_symlink() and (live.is_symlink() or live.exists()):
        old = live.resolve()
        if not live.is_symlink():  # a folder as training left it: it gets a name of its own, and its name to a link
            old = live.absolute().with_name(f"{live.name}-before-{folder.name}")
        before.symlink_to(old)
    if before.is_symlink() and live.exists() and not live.is_symlink():
        os.rename(live, os.readlink(before))
    _point(live, target)


def take_back(config: RenewConfig, folder: Path, context: Context) -> None:
    """Makes what was live before the round the live one again."""
    if isinstance(config.retrain, RetrainIndex):
        _exchange(config, folder / LIVE, folder / CANDIDATE, context)
        return
    live, before = _rewriter_path(config), folder / BEFORE
    if before.is_symlink():
        _point(live, Path(os.readlink(before)))
    elif live.is_symlink():
        live.unlink()


def _exchange(config: RenewConfig, new: Path, old: Path, context: Context) -> None:
    """Gives the live index the retrievers of `new`, if it has those of `old` now."""
    live = Path(config.live.index)
    wanted, expected = (manifests.read(each)[0] for each in (new, old))
    now = manifests.read(live)[0]
    if _retrievers(now) == _retrievers(wanted):
        return
    if _retrievers(now) != _retrievers(expected):
        raise BadInput(
            f"the retrievers of {live} were replaced by somebody else since this round began; what it found does not "
            "hold for them: remove the round, and start another"
        )
    seal(live, None, wanted, new, context, config.wait)


def _retrievers(manifest: Manifest) -> dict[str, object]:
    """What makes an index answer as it does, but for its tools."""
    parts = manifest.retrievers.items()
    return {name: (replace(part, model="", files={}, extras={}), _weights(part.files)) for name, part in parts}


def _weights(files: dict[str, Entry]) -> dict[str, str]:
    return {name: entry.sha256 for name, entry in files.items()}


def _rewriter_path(config: RenewConfig) -> Path:
    assert config.live.rewriter is not None
    assert config.live.rewriter.path is not None
    return Path(config.live.rewriter.path).expanduser()


def _points_to(link: Path, target: Path) -> bool:
    return link.is_symlink() and Path(os.readlink(link)) == target


def _point(link: Path, target: Path) -> None:
    """A link in the place of the one before, in one step."""
    link.parent.mkdir(parents=True, exist_ok=True)
    part = link.with_name(f".part-{link.name}")
    part.unlink(missing_ok=True)
    part.symlink_to(target)
    os.replace(part, link)
    sync_folder(link.parent)
