"""What stands beside a training: figures as they come, the rhythm of evaluations, and a hand on the brake."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch
from transformers import ProgressCallback, TrainerCallback

from rewrite.sft.distributed import first
from rewrite.sft.examples import Example
from rewrite.sft.metrics_log import Journal
from rewrite.types import Rewrite

TOLD = ("loss", "eval_loss", "learning_rate", "grad_norm")
AT_ONCE = 1.0
"""Seconds in which a second signal is the first one again: a launcher passes on the Ctrl-C that everyone heard."""


class Recorder(TrainerCallback):
    """Every figure into the journal, and what matters most to the terminal."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.written: dict[int, list[Rewrite]] = {}
        """What was written for dev, by step."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """One line a log entry."""
        self.journal.figures(state.global_step, logs or {})
        told = ", ".join(f"{name} {logs[name]:.4g}" for name in TOLD if logs and name in logs)
        if told:
            say(f"step {state.global_step} of {state.max_steps}: {told}")

    def samples(
        self, step: int, metrics: Mapping[str, float], examples: Sequence[Example], rewrites: Sequence[Rewrite]
    ) -> None:
        """A table of what the model now writes."""
        figures = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())
        rows = [figures, "", "| utterance | rewrite | target |", "|---|---|---|"]
        for example, rewrite in zip(examples, rewrites, strict=True):
            written = "; ".join(rewrite.lines) or rewrite.status
            cells = (example.utterance, written, "; ".join(example.lines) or "none")
            rows.append("| " + " | ".join(_cell(text) for text in cells) + " |")
        table = "\n".join(rows) + "\n"
        self.journal.samples(step, table)
        say(f"dev at step {step}: {table}")


class Bar(ProgressCallback):
    """The library's progress bar without its figures, which it would print among the command's results."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Nothing: the recorder tells."""


class Rhythm(TrainerCallback):
    """Evaluations evenly over the run, the last one at its end; each with a checkpoint."""

    def __init__(self, evaluations: int, every: int = 1) -> None:
        """`every`: the steps that belong together; what falls between them waits for their last."""
        self._evaluations, self._every = evaluations, every

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Asks for both at the steps that are due."""
        even = [-(-number * state.max_steps // self._evaluations) for number in range(1, self._evaluations + 1)]
        due = {min(state.max_steps, -(-step // self._every) * self._every) for step in even}
        if state.global_step in due:
            control.should_evaluate = control.should_save = True


class Watch(TrainerCallback):
    """A listener who is told the figures of dev before the first step, and who may find a model beyond hope."""

    start: Mapping[str, float] = {}
    reason: str = ""
    """Why the model is beyond hope."""

    def over(self, history: Sequence[Mapping[str, Any]]) -> str:
        """Why the run that left these figures was ended by this listener; empty where it was not."""
        return ""


class Stopper(TrainerCallback):
    """Ctrl-C or a polite kill ends the run after the step under way, with a checkpoint; the second one ends it now."""

    def __init__(self, every: int = 1) -> None:
        """`every`: the steps that belong together; the run ends after the last of them."""
        self.stopped = False
        """True where the run was ended before its time."""
        self._every = every
        self._asked = 0.0
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
        now = time.monotonic()
        if not self._asked:
            self._asked = now
            after = "this step" if self._every == 1 else f"these {self._every} steps, which learn from the same answers"
            say(f"stopping after {after}; once more to stop at once")
        elif now - self._asked > AT_ONCE:
            raise KeyboardInterrupt

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Saves and stops when it was asked, in all processes after the same step."""
        asked = bool(self._asked)
        if torch.distributed.is_initialized():
            heard = torch.tensor(float(asked), device=args.device)
            torch.distributed.all_reduce(heard, torch.distributed.ReduceOp.MAX)
            asked = bool(heard.item())
        if asked and state.global_step < state.max_steps and state.global_step % self._every == 0:
            self.stopped = control.should_save = control.should_training_stop = True


def say(text: str) -> None:
    """A line in the log that the user watches, once however many processes train."""
    if first():
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def _cell(text: str) -> str:
    short = text if len(text) <= 160 else text[:159] + "…"
    return " ".join("".join(each if each.isprintable() else " " for each in short).split()).replace("|", "\\|")
