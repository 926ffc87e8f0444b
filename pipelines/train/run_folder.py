"""The folder of a training: begun once, gone on with, never mixed with another run's."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines import config as configs
from pipelines.runs import as_json, check_output, environment, write_files
from retrievers.errors import BadInput, IndexBusy, OutOfDisk
from retrievers.files import disk_room
from rewrite.folder import CARD_FILE
from rewrite.settings import SftSettings
from rewrite.sft.distributed import is_main_process
from rewrite.types import Rewrite

LOCK = ".lock"


def nobody(rewrites: Sequence[Rewrite]) -> dict[str, float]:
    """The judge in all processes but the first."""
    raise RuntimeError("only the first process judges")


def is_finished(output: Path) -> bool:
    """True where the run in a folder has come to its end."""
    return (output / "rewriter" / CARD_FILE).exists()


@contextmanager
def alone(output: Path) -> Iterator[None]:
    """Keeps a second process out of a run's folder: it would take a checkpoint that is being written for a torn one.

    The lock is the process's own, so that no child of a killed one holds it on.
    """
    check_output(output)
    output.mkdir(parents=True, exist_ok=True)
    lock = output / LOCK
    with lock.open("a") as handle:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise IndexBusy(f"another process is training in {output}; wait for it, or name another output") from error
        try:
            yield
        finally:
            if output.is_dir() and [each.name for each in output.iterdir()] == [LOCK]:  # it was refused before it began
                lock.unlink()
                output.rmdir()


@contextmanager
def room_to_train(output: Path) -> Iterator[None]:
    """Says what is to be done when the disk is full."""
    try:
        with disk_room(output):
            yield
    except OutOfDisk as error:
        raise OutOfDisk(
            f"no room left to write in {output}; its last whole checkpoint is kept: make room, then go on with "
            "`--resume`"
        ) from error


def remove_checkpoints(output: Path, training: SftSettings) -> None:
    """Of a run that has ended, of all its rounds; by the first process, unless they are to be kept."""
    if training.keep_checkpoints or not is_main_process():
        return
    for folder in (output / "checkpoints", *output.glob("round-*/checkpoints")):
        shutil.rmtree(folder, ignore_errors=True)  # who cannot remove them has his rewriter all the same


def begin(output: Path, config: Any, mark: Mapping[str, str], resume: bool) -> None:
    """Refuses to mix two runs in one folder, and notes what this one is."""
    noted = output / "run.json"
    used = is_finished(output) or _has_work(output)
    if used and not resume:
        raise BadInput(f"{output} holds a run already; go on with `--resume`, or name another output")
    if used and noted.exists():
        before = configs.load(output / "config.yaml", type(config))
        if _silent(before) != _silent(config):
            raise BadInput(f"the run in {output} was started with another config; resume it with {output}/config.yaml")
        changed = [what for what, value in json.loads(noted.read_text()).items() if mark[what] != value]
        if changed:
            raise BadInput(f"the {changed[0]} of the run in {output} changed since it was started; name another output")
    if not is_finished(output):
        files = {"config.yaml": configs.dump(config), "environment.json": as_json(environment())}
        write_files(output, files | {"run.json": as_json(dict(mark))})


def _silent(config: Any) -> Any:
    """The config without what changes no weight: where figures go, where the run lies, how many are asked at a time."""
    same = replace(config.evaluation, batch_size=1, samples=0)
    training = replace(config.training, report_to=(), keep_checkpoints=False)
    return replace(config, output="", evaluation=same, training=training)


def begin_drawing(output: Path, config: Any) -> None:
    """Notes what is drawn; samples of another config are not mixed with these."""
    before = output / "config.yaml"
    if before.is_file() and _has_work(output) and configs.load(before, type(config)) != config:
        raise BadInput(f"{output} holds samples of another config; go on with {before}, or name another output")
    write_files(output, {"config.yaml": configs.dump(config), "environment.json": as_json(environment())})


def _has_work(output: Path) -> bool:
    """True where something was done that a run can go on from."""
    return any(any(output.glob(pattern)) for pattern in ("**/checkpoint-*", "**/samples-*.jsonl"))
