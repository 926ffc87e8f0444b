"""Shared prompts: answers to the same prompt are scored together, with the prompt read once.

With candidates a prompt has some six hundred tokens and an answer thirty. Eight answers in rows of their own are 5,000
tokens, with a shared prompt 840. Scores and gradient are the same, except for dropout, which answers then share on
their prompt; the prompt's part of the gradient flows back through its keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutput

from rewrite.speedups.right_padding import needs_mask, rotate_rows
from rewrite.speedups.switch import speedups_enabled

UNSUPPORTED = ("alibi", "attn_config", "attention_types", "window_size", "output_router_logits")
"""Keys of a config that counts distance in columns, attends to a window, or balances a mixture of experts."""
MAX_PROMPTS = 0.75
"""Prompts per answer above which a second pass is not worth it."""


@dataclass(frozen=True)
class SharedPrompts:
    """A batch of answers and the prompts that they share."""

    prompts: Tensor
    """Each prompt once, padded on the right."""
    lengths: Tensor
    answers: Tensor
    prompt_of: Tensor
    """Index of each answer's prompt."""
    begin: int
    """Column of the batch in which answers begin."""

    @classmethod
    def from_batch(cls, ids: Tensor, mask: Tensor, labels: Tensor) -> SharedPrompts | None:
        """Splits rows with prompts padded on the left; None where too few prompts are shared."""
        scored = (labels != -100).any(0)
        begin = int(scored.long().argmax())
        if not begin or not bool(scored[begin]):
            return None
        known = mask[:, :begin].long()
        columns, lengths = torch.arange(begin, device=ids.device), known.sum(1)
        rotated = rotate_rows(ids[:, :begin], known.argmax(1)).masked_fill(columns >= lengths[:, None], 0)
        rows, prompt_of = torch.unique(torch.cat([lengths[:, None], rotated], 1), dim=0, return_inverse=True)
        if len(rows) > MAX_PROMPTS * len(ids) or not bool(lengths.min()):
            return None
        longest = int(lengths.max())
        return cls(rows[:, 1 : longest + 1], rows[:, 0], ids[:, begin:], prompt_of, begin)

    def states(self, read: Callable[..., Any], eager: bool) -> Tensor:
        """Last hidden states of all scored tokens: from the prompt's last token, which predicts the first of the
        answer, to the end."""
        prompts = read(input_ids=self.prompts, use_cache=True)
        cache = prompts.past_key_values
        cache.batch_select_indices(self.prompt_of)
        lengths = self.lengths[self.prompt_of]
        positions = lengths[:, None] + torch.arange(self.answers.shape[1], device=lengths.device)
        answers = read(
            input_ids=self.answers,
            attention_mask=self._mask(lengths, eager, prompts.last_hidden_state.dtype),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        last = prompts.last_hidden_state[self.prompt_of, lengths - 1]
        return torch.cat([last[:, None], answers], 1)

    def _mask(self, lengths: Tensor, eager: bool, dtype: torch.dtype) -> Tensor:
        """Lets an answer's token attend to its prompt and to the answer up to itself."""
        tokens, device = self.answers.shape[1], lengths.device
        prompt = torch.arange(self.prompts.shape[1], device=device) < lengths[:, None]
        own = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()
        shape = (len(lengths), tokens, -1)
        visible = torch.cat([prompt[:, None].expand(shape), own[None].expand(shape)], 2)[:, None]
        if not eager:
            return visible
        return torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill(~visible, torch.finfo(dtype).min)


def share_prompts(trainer: Any) -> bool:
    """Makes a trainer's model and reference share prompts when they score answers; False where they cannot. Other
    calls, such as generation, stay as they are. Call it before pad_right: shared batches are not rotated."""
    models = [model for model in (trainer.model, trainer.ref_model) if model is not None]
    if needs_mask(trainer) or trainer.args.gradient_checkpointing or not all(map(can_share, models)):
        return False
    for model in models:
        _share(model)
    return True


def _causal(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def can_share(model: Any) -> bool:
    """True where a trial shows that a model's states are the same with a shared prompt. False where padding counts as
    distance (ALiBi) or in a window, which the trial's few tokens do not fill."""
    causal = _causal(model)
    config = causal.config
    if not speedups_enabled() or config._attn_implementation not in ("sdpa", "eager"):
        return False
    if any(getattr(config, key, None) for key in UNSUPPORTED):
        return False
    if not all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers):
        return False
    training = causal.training
    try:
        with torch.no_grad():
            return _is_equal(causal.eval())
    except (TypeError, ValueError, AttributeError, RuntimeError, IndexError, KeyError):
        return False  # the model reads its arguments differently
    finally:
        causal.train(training)


def _is_equal(causal: Any) -> bool:
    """Compares two answers to each of three prompts, shared and in rows of their own."""
    lengths, tokens = torch.tensor([5, 5, 3, 3, 4, 4]), 3
    device, highest = causal.device, int(causal.config.vocab_size)
    prompts = torch.arange(15).reshape(3, 5).repeat_interleave(2, 0)
    rows = (torch.cat([prompts, 20 + torch.arange(18).reshape(6, tokens)], 1) * 7 % highest).to(device)
    lead = (5 - lengths).to(device)
    mask = (torch.arange(5 + tokens, device=device) >= lead[:, None]).long()
    labels = rows.masked_fill(torch.arange(5 + tokens, device=device) < 5, -100)
    shared = SharedPrompts.from_batch(rows, mask, labels)
    assert shared is not None
    read = causal.base_model.forward
    states = shared.states(read, causal.config._attn_implementation == "eager")
    alone = read(input_ids=rotate_rows(rows, lead), use_cache=False).last_hidden_state
    positions = (4 - lead)[:, None] + torch.arange(tokens + 1, device=device)
    expected = alone[torch.arange(6, device=device)[:, None], positions]
    tolerance = 1e-3 if expected.dtype == torch.float32 else 5e-2
    return bool((states - expected).abs().max() <= tolerance * expected.abs().max())


def _share(model: Any) -> None:
    pending: list[SharedPrompts] = []
    causal = _causal(model)
    backbone = causal.base_model
    read = backbone.forward

    def before(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        pending.clear()
        mask = named.get("attention_mask")
        if named.get("fused_lm_head") and isinstance(mask, Tensor):
            shared = SharedPrompts.from_batch(named["input_ids"], mask, named["labels"])
            if shared is not None:
                pending.append(shared)
                named = {**named, "attention_mask": None, "labels": named["labels"][:, shared.begin - 1 :]}
        return args, named

    def forward(*args: Any, **named: Any) -> Any:
        if not pending:
            return read(*args, **named)
        states: Any = pending.pop().states(read, causal.config._attn_implementation == "eager")
        return BaseModelOutput(last_hidden_state=states)

    model.register_forward_pre_hook(before, with_kwargs=True)
    backbone.forward = forward


def group_by_prompt(batches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows in as many batches, ordered so that answers to a prompt are adjacent. TRL shuffles all answers;
    here the prompts keep that order."""
    rows = torch.cat([torch.cat([batch["prompt_mask"], batch["prompt_ids"]], 1) for batch in batches])
    prompt_of = torch.unique(rows, dim=0, return_inverse=True)[1]
    first = torch.full_like(prompt_of, len(prompt_of)).scatter_reduce(
        0, prompt_of, torch.arange(len(prompt_of), device=prompt_of.device), "amin"
    )
    order = first[prompt_of].argsort(stable=True)
    sizes = [len(batch["prompt_ids"]) for batch in batches]
    parts = {key: _reorder([batch[key] for batch in batches], order, sizes) for key in batches[0]}
    return [{key: values[number] for key, values in parts.items()} for number in range(len(batches))]


def _reorder(values: list[Any], order: Tensor, sizes: list[int]) -> Sequence[Any]:
    if isinstance(values[0], Tensor) and values[0].ndim:
        return torch.split(torch.cat(values)[order], sizes)
    if isinstance(values[0], list):
        flat = [item for value in values for item in value]
        ordered = iter([flat[index] for index in order.tolist()])
        return [[next(ordered) for _ in range(size)] for size in sizes]
    return values
