"""Answers to the same prompt, scored together: the prompt is read once, and its share of the gradient comes back by the
keys and values that it leaves.

Where candidates are shown a prompt has some six hundred tokens and an answer thirty. Eight answers in rows of their own
are 5,000 tokens, sharing their prompt 840: the same scores and the same gradient, but for dropout, of which answers
that share a prompt share the prompt's.
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

from rewrite.sft.run import needs_mask
from rewrite.speedups.right_padding import turn

ELSEWHERE = ("alibi", "attn_config", "attention_types", "window_size", "output_router_logits")
"""Where a config says that tokens are told apart by their distance in columns, or look at some alone, or that a mixture
of experts is to know its padding."""
MOST = 0.75
"""Prompts an answer, from which on sharing them is not worth a second pass."""


@dataclass(frozen=True)
class Shared:
    """A batch of answers with the prompts that they share."""

    prompts: Tensor
    """Each once, its padding behind."""
    lengths: Tensor
    answers: Tensor
    whose: Tensor
    """The number of each answer's prompt."""
    begins: int
    """The column of the batch in which answers begin."""

    @classmethod
    def found(cls, ids: Tensor, mask: Tensor, labels: Tensor) -> Shared | None:
        """Of rows with padding in front of the prompts; None where too few prompts are shared."""
        scored = (labels != -100).any(0)
        begins = int(scored.long().argmax())
        if not begins or not bool(scored[begins]):
            return None
        known = mask[:, :begins].long()
        places, lengths = torch.arange(begins, device=ids.device), known.sum(1)
        turned = turn(ids[:, :begins], known.argmax(1)).masked_fill(places >= lengths[:, None], 0)
        rows, whose = torch.unique(torch.cat([lengths[:, None], turned], 1), dim=0, return_inverse=True)
        if len(rows) > MOST * len(ids) or not bool(lengths.min()):
            return None
        longest = int(lengths.max())
        return cls(rows[:, 1 : longest + 1], rows[:, 0], ids[:, begins:], whose, begins)

    def states(self, read: Callable[..., Any], plain: bool) -> Tensor:
        """The last layer's states of all that is scored: from a prompt's last token, which foretells the first of the
        answer, to the end."""
        prompts = read(input_ids=self.prompts, use_cache=True)
        cache = prompts.past_key_values
        cache.batch_select_indices(self.whose)
        lengths = self.lengths[self.whose]
        places = lengths[:, None] + torch.arange(self.answers.shape[1], device=lengths.device)
        answers = read(
            input_ids=self.answers,
            attention_mask=self._mask(lengths, plain, prompts.last_hidden_state.dtype),
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        last = prompts.last_hidden_state[self.whose, lengths - 1]
        return torch.cat([last[:, None], answers], 1)

    def _mask(self, lengths: Tensor, plain: bool, kind: torch.dtype) -> Tensor:
        """Who sees what: an answer's token its prompt, and of its own answer what is not behind it."""
        tokens, device = self.answers.shape[1], lengths.device
        prompt = torch.arange(self.prompts.shape[1], device=device) < lengths[:, None]
        own = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()
        shape = (len(lengths), tokens, -1)
        seen = torch.cat([prompt[:, None].expand(shape), own[None].expand(shape)], 2)[:, None]
        if not plain:
            return seen
        return torch.zeros(seen.shape, dtype=kind, device=device).masked_fill(~seen, torch.finfo(kind).min)


def share_prompts(trainer: Any) -> bool:
    """From now on the trainer's model scores answers so, and its reference too; False where it cannot. Whatever else
    asks them, to generate say, does as before. Hooked in before rows are turned: what is shared is not turned."""
    models = [model for model in (trainer.model, trainer.ref_model) if model is not None]
    if needs_mask(trainer) or trainer.args.gradient_checkpointing or not all(map(can_share, models)):
        return False
    for model in models:
        _share(model)
    return True


def _causal(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def can_share(model: Any) -> bool:
    """True where it was seen that a model's answers come out the same with their prompt shared. Not where padding would
    count as distance (ALiBi) or in a window, which the few tokens that are tried do not fill."""
    causal = _causal(model)
    config = causal.config
    if config._attn_implementation not in ("sdpa", "eager") or any(getattr(config, each, None) for each in ELSEWHERE):
        return False
    if not all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers):
        return False
    training = causal.training
    try:
        with torch.no_grad():
            return _same(causal.eval())
    except (TypeError, ValueError, AttributeError, RuntimeError, IndexError, KeyError):
        return False  # it reads its arguments otherwise
    finally:
        causal.train(training)


def _same(causal: Any) -> bool:
    """Two answers each to prompts of three lengths, shared and in rows of their own."""
    lengths, tokens = torch.tensor([5, 5, 3, 3, 4, 4]), 3
    device, highest = causal.device, int(causal.config.vocab_size)
    prompts = torch.arange(15).reshape(3, 5).repeat_interleave(2, 0)
    rows = (torch.cat([prompts, 20 + torch.arange(18).reshape(6, tokens)], 1) * 7 % highest).to(device)
    lead = (5 - lengths).to(device)
    mask = (torch.arange(5 + tokens, device=device) >= lead[:, None]).long()
    labels = rows.masked_fill(torch.arange(5 + tokens, device=device) < 5, -100)
    shared = Shared.found(rows, mask, labels)
    assert shared is not None
    read = causal.base_model.forward
    found = shared.states(read, causal.config._attn_implementation == "eager")
    alone = read(input_ids=turn(rows, lead), use_cache=False).last_hidden_state
    places = (4 - lead)[:, None] + torch.arange(tokens + 1, device=device)
    wanted = alone[torch.arange(6, device=device)[:, None], places]
    near = 1e-3 if wanted.dtype == torch.float32 else 5e-2
    return bool((found - wanted).abs().max() <= near * wanted.abs().max())


def _share(model: Any) -> None:
    found: list[Shared] = []
    causal = _causal(model)
    backbone = causal.base_model
    read = backbone.forward

    def before(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        found.clear()
        mask = named.get("attention_mask")
        if named.get("fused_lm_head") and isinstance(mask, Tensor):
            shared = Shared.found(named["input_ids"], mask, named["labels"])
            if shared is not None:
                found.append(shared)
                named = {**named, "attention_mask": None, "labels": named["labels"][:, shared.begins - 1 :]}
        return args, named

    def forward(*args: Any, **named: Any) -> Any:
        if not found:
            return read(*args, **named)
        plain = causal.config._attn_implementation == "eager"
        states: Any = found.pop().states(read, plain)
        return BaseModelOutput(last_hidden_state=states)

    model.register_forward_pre_hook(before, with_kwargs=True)
    backbone.forward = forward


def regrouped(batches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows in as many batches, with the answers to a prompt beside one another. TRL shuffles all answers; now
    it is the prompts that stand in that order."""
    rows = torch.cat([torch.cat([batch["prompt_mask"], batch["prompt_ids"]], 1) for batch in batches])
    whose = torch.unique(rows, dim=0, return_inverse=True)[1]
    first = torch.full_like(whose, len(whose)).scatter_reduce(
        0, whose, torch.arange(len(whose), device=whose.device), "amin"
    )
    order = first[whose].argsort(stable=True)
    sizes = [len(batch["prompt_ids"]) for batch in batches]
    parts = {key: _ordered([batch[key] for batch in batches], order, sizes) for key in batches[0]}
    return [{key: values[number] for key, values in parts.items()} for number in range(len(batches))]


def _ordered(values: list[Any], order: Tensor, sizes: list[int]) -> Sequence[Any]:
    if isinstance(values[0], Tensor) and values[0].ndim:
        return torch.split(torch.cat(values)[order], sizes)
    if isinstance(values[0], list):
        flat = [each for value in values for each in value]
        again = iter([flat[number] for number in order.tolist()])
        return [[next(again) for _ in range(size)] for size in sizes]
    return values
