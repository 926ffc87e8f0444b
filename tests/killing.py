"""Real kills: a process that dies by SIGKILL before its n-th step on the disk, or from outside after some time."""

from __future__ import annotations

import builtins
import io
import itertools
import os
import signal
import time
from collections.abc import Callable


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
            work()
            code = 0
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
