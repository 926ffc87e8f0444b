"""One environment variable turns all speedups off."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rewrite.sft.models import load_policy
from rewrite.speedups.decoding import can_record
from rewrite.speedups.right_padding import drop_padding_mask, needs_mask, pad_right
from rewrite.speedups.shared_prompts import can_share, share_prompts


def _hooks(model: Any) -> int:
    return len(model._forward_pre_hooks) + len(model._forward_hooks)


@pytest.mark.parametrize("word", ["off", "0", "OFF"])
def test_all_speedups_are_off_together(untied_lm: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    model = load_policy(untied_lm, None)
    args = SimpleNamespace(device=torch.device("cpu"), gradient_checkpointing=False)
    trainer = SimpleNamespace(model=model, ref_model=None, args=args)
    assert can_share(model)
    assert not needs_mask(trainer)
    monkeypatch.setenv("TOOLREWRITE_SPEEDUPS", word)
    assert needs_mask(trainer)
    assert not can_share(model)
    assert not share_prompts(trainer)
    pad_right(trainer)
    drop_padding_mask(trainer)
    assert _hooks(model) == 0
    monkeypatch.setattr(type(model), "device", property(lambda _: SimpleNamespace(type="cuda")))
    assert not can_record(model)
    monkeypatch.delenv("TOOLREWRITE_SPEEDUPS")
    assert can_record(model)
