"""A policy that has collapsed: unparseable, all alike, far too long or short, or miles from its reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rewrite.align.settings import Limits
from rewrite.sft.callbacks import Watch


def collapsed(limits: Limits, row: Mapping[str, Any], start: Mapping[str, float]) -> str:
    """Why a line of figures tells of a collapse, in one clause; empty where it does not."""
    if (parsed := row.get("eval_parsed")) is not None and parsed < limits.parsed:
        return f"only {parsed:.0%} of the dev answers can be parsed (collapse.parsed {limits.parsed:g})"
    distinct, least = row.get("eval_distinct"), min(limits.distinct, start.get("eval_distinct", 1.0) / 2)
    if distinct is not None and distinct < least:  # where few answers are right, few differed at the start
        return f"only {distinct:.0%} of the dev answers differ (collapse.distinct {limits.distinct:g})"
    tokens, before = row.get("eval_tokens"), start.get("eval_tokens")
    if tokens is not None and before and not limits.shorter <= tokens / before <= limits.longer:
        return f"answers went from {before:.0f} to {tokens:.0f} tokens (collapse.shorter, collapse.longer)"
    if limits.kl and (kl := row.get("kl")) is not None and kl > limits.kl:
        return f"the policy is {kl:.0f} nats an answer away from its reference (collapse.kl {limits.kl:g})"
    return ""


def last_collapse(limits: Limits, history: Sequence[Mapping[str, Any]], start: Mapping[str, float]) -> str:
    """What the end of a run's figures says; for a run that is looked at again after it stopped."""
    steps = [int(row.get("step", 0)) for row in history]
    final = [row for row, step in zip(history, steps, strict=True) if step == max(steps)]
    return next((why for row in final if (why := collapsed(limits, row, start))), "")


class CollapseWatch(Watch):
    """Stops training with a checkpoint when the policy has collapsed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def over(self, history: Sequence[Mapping[str, Any]]) -> str:
        """Why a run that is looked at again had been stopped."""
        return last_collapse(self._limits, history, self.start) if history else ""

    def look(self, row: Mapping[str, Any], control: Any) -> None:
        """One line of figures."""
        why = collapsed(self._limits, row, self.start)
        if why and not self.reason:
            self.reason = why
            control.should_training_stop = control.should_save = True
            control.should_evaluate = control.should_evaluate or "eval_parsed" not in row

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Figures of training, and those of dev, which are logged too. The first step is too early to tell."""
        if state.global_step > 1:
            self.look(logs or {}, control)
