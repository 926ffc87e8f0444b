"""The folder of a training run: one run per folder, one process at a time, resumed with the same inputs only."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
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
from rewrite.sft.distributed import is_main_process, wait_for_all

LOCK = ".lock"


def is_finished(output: Path) -> bool:
    """True if the run in a folder is complete."""
    return (output / "rewriter" / CARD_FILE).exists()


@contextmanager
def alone(output: Path) -> Iterator[None]:
    """Lock a run's folder: a second process would take a checkpoint that is being written for a torn one.

    The lock belongs to the process, so that no child of a killed one keeps it.
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
            if output.is_dir() and [path.name for path in output.iterdir()] == [LOCK]:  # the run was refused
                lock.unlink()
                output.rmdir()


@contextmanager
def room_to_train(output: Path) -> Iterator[None]:
    """Turn a full disk into an error that names the way out."""
    try:
        with disk_room(output):
            yield
    except OutOfDisk as error:
        raise OutOfDisk(
            f"no room left to write in {output}; its last complete checkpoint is kept: make room, then continue with "
            "`--resume`"
        ) from error


def close_run(output: Path, training: SftSettings) -> Path:
    """Wait for all processes, remove the checkpoints unless they are kept, and return the rewriter's folder."""
    wait_for_all()
    if is_main_process() and not training.keep_checkpoints:
        for folder in (output / "checkpoints", *output.glob("round-*/checkpoints")):
            shutil.rmtree(folder, ignore_errors=True)  # the rewriter is complete even if they stay
    return output / "rewriter"


def begin_run(output: Path, config: Any, input_hashes: Mapping[str, str], resume: bool) -> None:
    """Refuse to mix two runs in one folder, and write the config and the hashes of this one."""
    stored = output / "run.json"
    used = is_finished(output) or _has_work(output)
    if used and not resume:
        raise BadInput(f"{output} holds a run already; continue it with `--resume`, or name another output")
    if used and stored.exists():
        before = configs.load(output / "config.yaml", type(config))
        if _without_harmless(before) != _without_harmless(config):
            raise BadInput(f"the run in {output} was started with another config; resume it with {output}/config.yaml")
        changed = [name for name, value in json.loads(stored.read_text()).items() if input_hashes[name] != value]
        if changed:
            raise BadInput(f"the {changed[0]} of the run in {output} changed since it was started; name another output")
    if not is_finished(output):
        files = {"config.yaml": configs.dump(config), "environment.json": as_json(environment())}
        write_files(output, files | {"run.json": as_json(dict(input_hashes))})


def _without_harmless(config: Any) -> Any:
    """The config without settings that do not change the weights."""
    evaluation = replace(config.evaluation, batch_size=1)
    training = replace(config.training, report_to=(), keep_checkpoints=False)
    return replace(config, output="", evaluation=evaluation, training=training)


def begin_samples(output: Path, config: Any) -> None:
    """Write the config of a folder of samples; samples of another config are not mixed with these."""
    before = output / "config.yaml"
    if before.is_file() and _has_work(output) and configs.load(before, type(config)) != config:
        raise BadInput(f"{output} holds samples of another config; continue with {before}, or name another output")
    write_files(output, {"config.yaml": configs.dump(config), "environment.json": as_json(environment())})


def _has_work(output: Path) -> bool:
    return any(any(output.glob(pattern)) for pattern in ("**/checkpoint-*", "**/samples-*.jsonl"))


def hash_text(text: str) -> str:
    """A short hash, to notice inputs that changed between two starts of a run."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
