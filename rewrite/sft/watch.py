"""What stands beside a training: figures and samples as they come, and a hand on the brake."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from transformers import TrainerCallback

from rewrite.sft.examples import Example
from rewrite.types import Rewrite


class Writer(TrainerCallback):
    """Every figure into metrics.jsonl, every evaluation with some rewrites to the terminal and into samples.md."""

    def __init__(self, path: Path, progress: bool) -> None:
        self._path, self.progress = path, progress

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """One line of JSON a log entry."""
        if state.is_world_process_zero and logs:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"step": state.global_step, **logs}) + "\n")

    def samples(
        self, step: int, metrics: Mapping[str, float], examples: Sequence[Example], rewrites: Sequence[Rewrite]
    ) -> None:
        """A table of what the model now writes."""
        figures = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())
        rows = [f"\n## step {step}: {figures}\n", "| utterance | rewrite | target |", "|---|---|---|"]
        for example, rewrite in zip(examples, rewrites, strict=True):
            written = "; ".join(rewrite.lines) or rewrite.status
            cells = (example.utterance, written, "; ".join(example.lines) or "none")
            rows.append("| " + " | ".join(_cell(text) for text in cells) + " |")
        table = "\n".join(rows) + "\n"
        with (self._path.parent / "samples.md").open("a", encoding="utf-8") as stream:
            stream.write(table)
        print(table, file=sys.stderr, flush=True)  # noqa: T201 - the log that the user watches


def _cell(text: str) -> str:
    short = text if len(text) <= 160 else text[:159] + "…"
    return " ".join(short.split()).replace("|", "\\|")


class Stopper(TrainerCallback):
    """Ctrl-C or a polite kill ends the run after the step under way, with a checkpoint; the second one ends it now."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stopper:
        try:
            self._before = {each: signal.signal(each, self._ask) for each in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: nobody can press Ctrl-C on it
            self._before = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("stopping after this step; once more to stop at once", file=sys.stderr, flush=True)  # noqa: T201

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Saves and stops when it was asked."""
        if self.asked:
            control.should_save = control.should_training_stop = True
