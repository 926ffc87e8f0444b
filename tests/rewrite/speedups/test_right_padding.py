"""Rows turned so that padding stands behind: the same scores and the same gradient as with a mask."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel
from trl.trainer.utils import add_fused_lm_head

from rewrite.sft.models import load_policy
from rewrite.speedups.right_padding import pad_right, rotate_rows

LEFT, PROMPTS, ANSWERS, WIDTH = [0, 5, 2], [6, 1, 4], [4, 1, 3], 10
"""Padding in front, tokens of the prompt and of the answer, of three rows; answers begin in one column."""
KEPT = 4


def _rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    places = torch.arange(WIDTH)
    begins, ends = (
        torch.tensor(LEFT)[:, None],
        torch.tensor([sum(each) for each in zip(LEFT, PROMPTS, ANSWERS, strict=True)])[:, None],
    )
    mask = ((places >= begins) & (places < ends)).long()
    ids = (torch.arange(3 * WIDTH).reshape(3, WIDTH) * 7 + 5) % 60 + 3
    labels = ids.masked_fill((mask == 0) | (places < WIDTH - KEPT), -100)
    return ids, mask, labels


def _outcome(model: Any) -> list[torch.Tensor]:
    """What a trainer takes of a batch: scores of the answers' tokens, and the gradient of a loss over them."""
    ids, mask, labels = _rows()
    model.zero_grad()
    found = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    scores = found.log_probs[:, -KEPT:]
    (scores * torch.tensor([[1.0], [-2.0], [0.5]])).sum().backward()
    return [
        scores.detach(),
        found.entropy[:, -KEPT:],
        *(each.grad.clone() for each in model.parameters() if each.requires_grad),
    ]


@pytest.mark.parametrize("attention", ["auto", "eager"])
@pytest.mark.parametrize("adapter", [False, True])
def test_scores_and_gradient_stay(untied_lm: Path, attention: str, adapter: bool) -> None:
    torch.manual_seed(0)
    plain = load_policy(untied_lm, None, attention).train()
    add_fused_lm_head(plain, outputs=("log_probs", "entropy"))
    model = (
        get_peft_model(plain, LoraConfig(r=2, init_lora_weights=False, target_modules="all-linear"))
        if adapter
        else plain
    )
    masks: list[bool] = []
    plain.model.register_forward_pre_hook(
        lambda _, args, named: masks.append(named.get("attention_mask") is not None), with_kwargs=True
    )
    masked = _outcome(model)
    trainer = SimpleNamespace(
        model=model, args=SimpleNamespace(device=torch.device("cpu")), aux_loss_enabled=True, ref_model=None
    )
    pad_right(trainer)  # a mixture of experts keeps its mask
    _outcome(model)
    trainer.aux_loss_enabled = False
    pad_right(trainer)
    for one, other in zip(masked, _outcome(model), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(one.abs().max()))
    assert masked[0].abs().sum() > 0
    ids, mask, _ = _rows()
    with torch.no_grad():  # whoever writes answers pads on the left, and needs the mask
        model(input_ids=ids, attention_mask=mask)
    assert masks == [True, True, False, True]


def test_a_pass_that_failed_leaves_nothing_behind(untied_lm: Path) -> None:
    model = load_policy(untied_lm, None).train()
    add_fused_lm_head(model, outputs=("log_probs",))
    ids, mask, labels = _rows()
    with torch.no_grad():
        plain = model(input_ids=ids, attention_mask=mask).logits
    pad_right(SimpleNamespace(model=model, args=SimpleNamespace(device=torch.device("cpu")), ref_model=None))
    with pytest.raises(IndexError):
        model(input_ids=ids + 10**6, attention_mask=mask, labels=labels, fused_lm_head=True)
    with torch.no_grad():
        assert torch.equal(plain, model(input_ids=ids, attention_mask=mask).logits)


def test_a_reference_with_the_same_weights_is_no_distance_away() -> None:
    """Also of a model that learns every place by itself, where padding in front would move all tokens."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    policy = GPT2LMHeadModel(config).train()
    for rate in (each for each in policy.modules() if isinstance(each, torch.nn.Dropout)):
        rate.p = 0.0
    reference = deepcopy(policy).eval()
    for model in (policy, reference):
        add_fused_lm_head(model)
    pad_right(SimpleNamespace(model=policy, args=SimpleNamespace(device=torch.device("cpu")), ref_model=reference))
    ids, mask, labels = _rows()
    with torch.no_grad():
        one, other = (
            model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs
            for model in (policy, reference)
        )
        (begin,) = [place for place in range(WIDTH) if mask[1, place] and not mask[1, :place].any()]
        alone = policy(input_ids=ids[1:2, begin:], labels=labels[1:2, begin:], fused_lm_head=True).log_probs
    assert one[1].abs().sum() > 0
    assert torch.allclose(one, other, atol=1e-5)
    assert torch.allclose(one[1:2, begin:], alone, atol=1e-5)  # as if nothing stood beside it


def test_rows_are_turned_and_turned_back() -> None:
    rows, by = torch.arange(12).reshape(3, 4), torch.tensor([0, 1, 3])
    assert rotate_rows(rows, by).tolist() == [[0, 1, 2, 3], [5, 6, 7, 4], [11, 8, 9, 10]]
    assert torch.equal(rotate_rows(rotate_rows(rows, by), -by), rows)
