"""Answers that share their prompt: the same scores and the same gradient as in rows of their own, from fewer tokens."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MptConfig,
    MptForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    OPTConfig,
    OPTForCausalLM,
)
from trl.trainer.utils import add_fused_lm_head

from rewrite.sft.models import load_policy
from rewrite.speedups.right_padding import pad_right
from rewrite.speedups.shared_prompts import SharedPrompts, can_share, group_by_prompt, share_prompts

WIDTH, KEPT = 7, 4
PROMPTS = [7, 3, 7, 3, 7, 5]
"""Tokens of each row's prompt: three answers to one, two to another, one to the last."""
WHOSE = [0, 1, 0, 1, 0, 2]
ANSWERS = [4, 1, 2, 3, 0, 4]
"""One of them counts for nothing: it was cut, say."""


def _rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    prompts = (torch.arange(3 * WIDTH).reshape(3, WIDTH) * 7 + 5) % 60 + 3
    answers = (torch.arange(6 * KEPT).reshape(6, KEPT) * 11 + 1) % 60 + 3
    ids = torch.cat([prompts[torch.tensor(WHOSE)], answers], 1)
    places = torch.arange(WIDTH + KEPT)
    begins = WIDTH - torch.tensor(PROMPTS)[:, None]
    mask = ((places >= begins) & (places < WIDTH + torch.tensor(ANSWERS)[:, None])).long()
    return ids, mask, ids.masked_fill((mask == 0) | (places < WIDTH), -100)


def _trainer(model: Any, reference: Any = None, **settings: Any) -> Any:
    args = SimpleNamespace(device=torch.device("cpu"), gradient_checkpointing=False, **settings)
    return SimpleNamespace(model=model, ref_model=reference, args=args)


def _outcome(model: Any) -> list[torch.Tensor]:
    ids, mask, labels = _rows()
    model.zero_grad()
    found = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    scores = found.log_probs[:, -KEPT:]
    (scores * torch.linspace(-2, 1, 6)[:, None]).sum().backward()
    grads = [each.grad.clone() for each in model.parameters() if each.requires_grad]
    return [scores.detach(), found.entropy[:, -KEPT:], *grads]


@pytest.mark.parametrize("attention", ["auto", "eager"])
@pytest.mark.parametrize("adapter", [False, True])
def test_scores_and_gradient_stay_and_a_prompt_is_read_once(untied_lm: Path, attention: str, adapter: bool) -> None:
    torch.manual_seed(0)
    plain = load_policy(untied_lm, None, attention).train()
    add_fused_lm_head(plain, outputs=("log_probs", "entropy"))
    lora = LoraConfig(r=2, init_lora_weights=False, target_modules="all-linear")
    model = get_peft_model(plain, lora) if adapter else plain
    read: list[int] = []
    plain.model.embed_tokens.register_forward_pre_hook(lambda _, args: read.append(args[0].numel()))
    alone = _outcome(model)
    assert share_prompts(_trainer(model))
    pad_right(_trainer(model))
    read.clear()
    for one, other in zip(alone, _outcome(model), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(one.abs().max()))
    assert alone[0].abs().sum() > 0
    assert read == [3 * WIDTH, 6 * KEPT]
    ids, mask, _ = _rows()
    with torch.no_grad():  # whoever writes answers is not concerned
        model(input_ids=ids, attention_mask=mask)
    assert read[2:] == [6 * (WIDTH + KEPT)]


def test_a_model_that_learns_every_place_and_its_reference() -> None:
    torch.manual_seed(0)
    policy = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2)).train()
    for rate in (each for each in policy.modules() if isinstance(each, torch.nn.Dropout)):
        rate.p = 0.0
    reference = deepcopy(policy).eval()
    for model in (policy, reference):
        add_fused_lm_head(model)
    ids, mask, labels = _rows()
    with torch.no_grad():
        assert share_prompts(_trainer(policy, reference))
        one, other = (
            model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs[:, -KEPT:]
            for model in (policy, reference)
        )
        alone = policy(input_ids=ids[3:4, 4:], labels=labels[3:4, 4:], fused_lm_head=True).log_probs
    assert torch.allclose(one, other, atol=1e-6)
    assert alone.abs().sum() > 0
    assert torch.allclose(one[3:4], alone[:, -KEPT:], atol=1e-5)  # as if nothing stood beside it


SMALL: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}

NEO: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16, "num_layers": 2, "num_heads": 2}


@pytest.mark.parametrize(
    ("kind", "config", "able"),
    [
        (MistralForCausalLM, MistralConfig(**SMALL, intermediate_size=16, num_key_value_heads=1, sliding_window=4), 0),
        (MptForCausalLM, MptConfig(vocab_size=64, d_model=16, n_heads=2, n_layers=1, max_seq_len=16), 0),  # ALiBi
        (BloomForCausalLM, BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2), 0),
        (GPTNeoForCausalLM, GPTNeoConfig(**NEO, attention_types=[[["global", "local"], 1]]), 0),  # a window by columns
        (OpenAIGPTLMHeadModel, OpenAIGPTConfig(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2), 0),
        (OPTForCausalLM, OPTConfig(**SMALL, ffn_dim=16, word_embed_proj_dim=16, max_position_embeddings=16), 1),
        (GPTNeoXForCausalLM, GPTNeoXConfig(**SMALL, intermediate_size=16), 1),
    ],
    ids=lambda each: getattr(each, "model_type", ""),
)
def test_a_model_shares_if_it_was_seen_to_come_out_the_same(kind: Any, config: Any, able: int) -> None:
    torch.manual_seed(0)
    model = kind(config).train()
    assert share_prompts(_trainer(model)) is bool(able)
    assert ("forward" in vars(model.base_model)) is bool(able)
    assert model.training


def test_who_forgets_on_the_way_keeps_rows_of_their_own(untied_lm: Path) -> None:
    model = load_policy(untied_lm, None)
    assert can_share(model)
    trainer = _trainer(model)
    trainer.args.gradient_checkpointing = True
    assert not share_prompts(trainer)
    assert "forward" not in vars(model.base_model)


def test_a_batch_without_company_is_not_shared() -> None:
    ids, mask, labels = _rows()
    one_each = torch.tensor([0, 1, 5])
    assert SharedPrompts.from_batch(ids[one_each], mask[one_each], labels[one_each]) is None
    assert SharedPrompts.from_batch(ids, mask, torch.full_like(labels, -100)) is None  # nothing is scored
    shared = SharedPrompts.from_batch(ids, mask, labels)
    assert shared is not None
    assert sorted(shared.lengths.tolist()) == [3, 5, 7]
    assert shared.lengths[shared.prompt_of].tolist() == PROMPTS


def test_a_pass_that_failed_leaves_nothing_behind(untied_lm: Path) -> None:
    model = load_policy(untied_lm, None).train()
    add_fused_lm_head(model)
    ids, mask, labels = _rows()
    with torch.no_grad():
        plain = model(input_ids=ids, attention_mask=mask).logits
    share_prompts(_trainer(model))
    with pytest.raises(IndexError):
        model(input_ids=ids + 10**6, attention_mask=mask, labels=labels, fused_lm_head=True)
    with torch.no_grad():
        assert torch.equal(plain, model(input_ids=ids, attention_mask=mask).logits)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6).map(lambda whose: whose * 2), st.randoms())
def test_answers_to_a_prompt_come_to_stand_together_and_keep_what_is_theirs(whose: list[int], luck: Any) -> None:
    luck.shuffle(whose)
    rows = list(range(len(whose)))
    prompts = torch.tensor(whose)[:, None].expand(-1, 2)
    whole = {"prompt_ids": prompts, "prompt_mask": torch.ones_like(prompts), "advantages": torch.tensor(rows) * 1.0}
    half = len(rows) // 2
    batches = [
        {key: value[part] for key, value in whole.items()} | {"names": rows[part], "total": torch.tensor(5), "no": None}
        for part in (slice(0, half), slice(half, None))
    ]
    found = group_by_prompt(batches)
    assert [len(batch["names"]) for batch in found] == [half, half]
    names = [name for batch in found for name in batch["names"]]
    assert sorted(names) == rows
    assert [int(each) for batch in found for each in batch["advantages"]] == names
    theirs = [int(each) for batch in found for each in batch["prompt_ids"][:, 0]]
    assert theirs == [whose[name] for name in names]
    assert theirs == [each for each in dict.fromkeys(whose) for _ in range(whose.count(each))]  # in the order they came
    assert all(int(batch["total"]) == 5 and batch["no"] is None for batch in found)
