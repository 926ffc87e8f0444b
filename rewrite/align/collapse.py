"""Detects a collapsed policy: unparseable, repetitive, far too long or short, or far from its reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rewrite.align.settings import CollapseLimits
from rewrite.sft.callbacks import TrainingWatch


def collapse_reason(limits: CollapseLimits, row: Mapping[str, Any], start: Mapping[str, float]) -> str:
    """Reason why a row of metrics shows a collapse, in one clause; empty where it does not."""
    if (parsed := row.get("eval_parsed")) is not None and parsed < limits.min_parsed:
        return f"only {parsed:.0%} of the dev answers can be parsed (collapse.min_parsed {limits.min_parsed:g})"
    # Where few answers are right, few differed at the start.
    distinct, threshold = row.get("eval_distinct"), min(limits.min_distinct, start.get("eval_distinct", 1.0) / 2)
    if distinct is not None and distinct < threshold:
        return f"only {distinct:.0%} of the dev answers differ (collapse.min_distinct {limits.min_distinct:g})"
    tokens, before = row.get("eval_tokens"), start.get("eval_tokens")
    if tokens is not None and before and not limits.min_length_ratio <= tokens / before <= limits.max_length_ratio:
        return (
            f"answers went from {before:.0f} to {tokens:.0f} tokens (collapse.min_length_ratio "
            f"{limits.min_length_ratio:g}, collapse.max_length_ratio {limits.max_length_ratio:g})"
        )
    if limits.max_kl and (kl := row.get("kl")) is not None and kl > limits.max_kl:
        return f"the policy is {kl:.0f} nats per answer away from its reference (collapse.max_kl {limits.max_kl:g})"
    return ""


def last_collapse(limits: CollapseLimits, history: Sequence[Mapping[str, Any]], start: Mapping[str, float]) -> str:
    """Collapse at the last step of a stopped run's metrics; empty where there was none."""
    steps = [int(row.get("step", 0)) for row in history]
    final = [row for row, step in zip(history, steps, strict=True) if step == max(steps)]
    return next((reason for row in final if (reason := collapse_reason(limits, row, start))), "")


class CollapseWatch(TrainingWatch):
    """Stops training with a checkpoint when the policy has collapsed."""

    def __init__(self, limits: CollapseLimits) -> None:
        self._limits = limits

    def stop_reason(self, history: Sequence[Mapping[str, Any]]) -> str:
        """Reason why the resumed run had been stopped."""
        return last_collapse(self._limits, history, self.start) if history else ""

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Checks the metrics of training and dev. The first step is too early to judge."""
        reason = collapse_reason(self._limits, logs or {}, self.start) if state.global_step > 1 else ""
        if reason and not self.reason:
            self.reason = reason
            control.should_training_stop = control.should_save = True
            control.should_evaluate = control.should_evaluate or "eval_parsed" not in (logs or {})
