"""Callbacks: logging, evaluation schedule, graceful stop."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch
from transformers import ProgressCallback, TrainerCallback

from rewrite.sft.distributed import is_main_process
from rewrite.sft.examples import Example
from rewrite.sft.metrics_log import MetricsLog
from rewrite.types import Rewrite

PRINTED = ("loss", "eval_loss", "learning_rate", "grad_norm")
REPEATED_SIGNAL = 1.0
"""Seconds within which a second signal repeats the first: a launcher passes on a Ctrl-C that all processes got."""


class MetricsRecorder(TrainerCallback):
    """Writes all metrics to the log, and the main ones to the terminal."""

    def __init__(self, metrics_log: MetricsLog) -> None:
        self.metrics_log = metrics_log
        self.dev_rewrites: dict[int, list[Rewrite]] = {}
        """Rewrites of dev, by step."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Writes one line per log entry."""
        self.metrics_log.write(state.global_step, logs or {})
        text = ", ".join(f"{name} {logs[name]:.4g}" for name in PRINTED if logs and name in logs)
        if text:
            log_line(f"step {state.global_step} of {state.max_steps}: {text}")

    def write_samples(
        self, step: int, metrics: Mapping[str, float], examples: Sequence[Example], rewrites: Sequence[Rewrite]
    ) -> None:
        """Writes a table of the model's current rewrites."""
        summary = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())
        rows = [summary, "", "| utterance | rewrite | target |", "|---|---|---|"]
        for example, rewrite in zip(examples, rewrites, strict=True):
            text = "; ".join(rewrite.lines) or rewrite.status
            cells = (example.utterance, text, "; ".join(example.lines) or "none")
            rows.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
        table = "\n".join(rows) + "\n"
        self.metrics_log.write_samples(step, table)
        log_line(f"dev at step {step}: {table}")


class ProgressBar(ProgressCallback):
    """The library's progress bar without its metrics, which would appear among the command's results."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Prints nothing: the recorder does."""


class EvaluationSchedule(TrainerCallback):
    """Spreads evaluations evenly over the run, the last one at its end; each with a checkpoint."""

    def __init__(self, evaluations: int, every: int = 1) -> None:
        """Takes the number of steps that belong together as `every`; an evaluation waits for the last of them."""
        self._evaluations, self._every = evaluations, every

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Requests an evaluation and a checkpoint at the steps that are due."""
        even = [-(-number * state.max_steps // self._evaluations) for number in range(1, self._evaluations + 1)]
        due = {min(state.max_steps, -(-step // self._every) * self._every) for step in even}
        if state.global_step in due:
            control.should_evaluate = control.should_save = True


class TrainingWatch(TrainerCallback):
    """A callback that knows dev's metrics before the first step, and may end a run that cannot succeed."""

    start: Mapping[str, float] = {}
    reason: str = ""
    """Reason for ending the run."""

    def stop_reason(self, history: Sequence[Mapping[str, Any]]) -> str:
        """Reason why this callback ended the run with these metrics; empty where it did not."""
        return ""


class GracefulStop(TrainerCallback):
    """Ends the run with a checkpoint after the current step on SIGINT or SIGTERM; a second signal ends it at once."""

    def __init__(self, every: int = 1) -> None:
        """Takes the number of steps that belong together as `every`; the run ends after the last of them."""
        self.stopped = False
        """True where the run was ended early."""
        self._every = every
        self._signalled = 0.0
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> GracefulStop:
        try:
            self._handlers = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread, which alone gets signals
            self._handlers = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._signalled:
            self._signalled = now
            after = "this step" if self._every == 1 else f"these {self._every} steps, which learn from the same answers"
            log_line(f"stopping after {after}; press again to stop at once")
        elif now - self._signalled > REPEATED_SIGNAL:
            raise KeyboardInterrupt

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Saves and stops after a signal, in all processes after the same step."""
        should_stop = bool(self._signalled)
        if torch.distributed.is_initialized():
            flag = torch.tensor(float(should_stop), device=args.device)
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
            should_stop = bool(flag.item())
        if should_stop and state.global_step < state.max_steps and state.global_step % self._every == 0:
            self.stopped = control.should_save = control.should_training_stop = True


def log_line(text: str) -> None:
    """Prints a line to standard error, in the main process only."""
    if is_main_process():
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def _cell(text: str) -> str:
    short = text if len(text) <= 160 else text[:159] + "…"
    return " ".join("".join(char if char.isprintable() else " " for char in short).split()).replace("|", "\\|")
