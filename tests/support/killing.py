"""Real kills: a process that dies by SIGKILL before its n-th step on the disk, from outside after some time, or with
the test that started it."""

from __future__ import annotations

import builtins
import io
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil
from tqdm import tqdm


class _Raw(io.FileIO):
    """A file whose every write to the disk may be the last thing its process does."""

    step: Callable[[Callable[[], object]], None]

    def write(self, data: bytes) -> int:  # type: ignore[override]
        half = bytes(data)[: len(data) // 2]
        self.step(lambda: super(_Raw, self).write(half))
        return super().write(data)


def die_before_step(number: int) -> None:
    """From here on this process kills itself when it is about to touch the disk for the n-th time."""
    steps = itertools.count(1)

    def step(last_act: Callable[[], object] = lambda: None) -> None:
        if next(steps) == number:
            last_act()
            os.kill(os.getpid(), signal.SIGKILL)

    def stepping(function: Callable[..., object]) -> Callable[..., object]:
        def stepped(*args: object, **kwargs: object) -> object:
            step()
            return function(*args, **kwargs)

        return stepped

    plain_open = io.open

    def stepped_open(file: object, mode: str = "r", *args: object, **kwargs: object) -> object:
        if mode not in ("wb", "ab", "r+b"):
            return plain_open(file, mode, *args, **kwargs)  # type: ignore[call-overload]
        step()
        raw = _Raw(file, mode)  # type: ignore[arg-type]
        return io.BufferedRandom(raw) if mode == "r+b" else io.BufferedWriter(raw)

    _Raw.step = staticmethod(step)  # type: ignore[assignment]
    io.open = builtins.open = stepped_open  # type: ignore[assignment]
    for name in ("mkdir", "open", "fsync", "replace", "unlink", "rmdir"):
        setattr(os, name, stepping(getattr(os, name)))


def in_a_child(work: Callable[[], object], kill_after: float | None = None) -> int:
    """Forks, works there, and gives the exit code: 0, or -9 where it was killed."""
    child = os.fork()
    if not child:
        code = 1
        try:
            _unshare_bars(tqdm)
            work()
            code = 0
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _unshare_bars(kind: type[tqdm[Any]]) -> None:
    """A lock of its own for every kind of progress bar. The usual one is shared with the process that forked, and taken
    even for a bar that is switched off: a process that dies with it would leave the other waiting for ever."""
    kind.set_lock(threading.RLock())
    for item in kind.__subclasses__():
        _unshare_bars(item)


@contextmanager
def started(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that does not outlive the block, however that ends; nor do its children."""
    process: subprocess.Popen[Any] = subprocess.Popen(words, **options)
    try:
        yield process
    finally:
        kill_family(process)


def kill_family(process: subprocess.Popen[Any]) -> None:
    """kill -9 of a process and of all that it has started; nothing where it has ended already."""
    family: list[psutil.Process] = []
    if process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    for item in family:
        with suppress(psutil.NoSuchProcess):
            item.kill()
    process.wait()
    psutil.wait_procs(family, timeout=30)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):  # what was still to be written has no reader any more
                stream.close()
