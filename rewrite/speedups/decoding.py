"""Answers token by token with a cache of fixed size, so that a GPU can be handed a whole step at once.

A small model's step is hundreds of small operations, and starting them costs more than what they do. `generate` of
transformers starts each of them for every token; here the second step is recorded (a CUDA graph), and all that follow
are that record played again. Only the last places of the cache are unlike from step to step, and a mask tells them.
What is left is reading that cache, so heads that share keys and values read them together.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, StaticCache
from transformers.cache_utils import StaticLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rewrite.settings import Sampling

AT_ONCE = 1024
"""Answers that trainers write together where steps are recorded: more take memory and save no time."""
LOOK = 16
"""Steps between two looks at how many answers have ended."""
WARM = 2
"""Steps before one is recorded."""
EVEN = 64
"""Places of the cache come in multiples of this: fast attention wants its mask so."""

ONE_AT_A_TIME = Lock()
"""A process records one step at a time."""
TOGETHER = "heads-together"
"""The name by which transformers knows `attend`."""


def can_record(model: Any, copied: bool = False) -> bool:
    """True for a model on a CUDA device whose layers all attend to all that came before, by PyTorch's attention: not
    one that accelerate has compute in mixed precision, unless it will be `copied` (`half_copy`), nor one that tells
    places by its mask (ALiBi)."""
    if model.device.type != "cuda" or (model.config._attn_implementation != "sdpa" and not (copied and _plain(model))):
        return False
    if ("forward" in vars(model) and not copied) or getattr(model.config, "alibi", False):
        return False
    cache = StaticCache(config=model.config, max_cache_len=1)
    return all(type(layer) is StaticLayer for layer in cache.layers)


def _plain(model: Any) -> bool:
    """True for a model that attends by plain matrix products, and could by PyTorch's attention."""
    able = getattr(model, "_supports_sdpa", False) and model._can_set_attn_implementation()
    return model.config._attn_implementation == "eager" and bool(able)


def half_copy(model: Any) -> Any:
    """The model as it is now, in half precision and apart from its training. Where that wants plain matrix products,
    for the gradient's sake (`training.attention: eager`), the copy attends by PyTorch's attention: it has none."""
    halves: dict[int, Any] = {
        id(weight): torch.nn.Parameter(weight.detach().to(torch.bfloat16), requires_grad=False)
        for weight in model.parameters()
    }
    copy = deepcopy(model, halves)
    for module in copy.modules():
        for name in ("forward", "_original_forward"):  # accelerate's: mixed precision, and a ring that keeps the copy
            module.__dict__.pop(name, None)
    if _plain(copy):
        copy.set_attn_implementation("sdpa")
    return copy


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    """Attention of one token an answer. With a mask transformers copies the whole cache for every head of a group; as
    several questions to the same keys they need no copies."""
    groups = getattr(module, "num_key_value_groups", 1)
    rows, heads, tokens, width = query.shape
    if tokens > 1 or groups == 1 or settings.get("position_bias") is not None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
        return plain
    asked = query.reshape(rows, heads // groups, groups, width)
    found = scaled_dot_product_attention(asked, key, value, attention_mask, scale=settings.get("scaling"))
    return found.reshape(rows, 1, heads, value.shape[-1]), None


AttentionInterface.register(TOGETHER, attend)


@contextmanager
def _heads_together(model: Any) -> Iterator[None]:
    model.set_attn_implementation(TOGETHER)
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")


class Decoding:
    """One batch of prompts, padded on the left, and the answers so far. Those that have ended are left out."""

    def __init__(
        self, model: Any, prompts: Tensor, mask: Tensor, sampling: Sampling, ends: Sequence[int], pad: int
    ) -> None:
        (rows, width), device = prompts.shape, prompts.device
        self._model, self._sampling, self._ends, self._pad = model, sampling, ends, pad
        room = -(-(width + sampling.most_tokens) // EVEN) * EVEN
        self._cache = StaticCache(config=model.config, max_cache_len=room)
        self._next = torch.tensor([width], device=device)
        """The place of the cache that the next token takes."""
        self._step = torch.zeros(1, dtype=torch.long, device=device)
        self._done = torch.full((rows, sampling.most_tokens), pad, device=device)
        self._rows = torch.arange(rows, device=device)
        """Those of `_done` that are still written; what follows has as many."""
        self._written = self._done.clone()
        self._ended = torch.zeros(rows, dtype=torch.bool, device=device)
        self._seen = torch.zeros(rows, 1, 1, room, dtype=torch.bool, device=device)
        self._seen[:, 0, 0, :width] = mask.bool()
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        self._place, self._token = places[:, -1:].clone(), prompts[:, -1:].clone()
        once, which = different(torch.cat([prompts, mask], 1))
        logits = self._forward(prompts[once], mask[once], places[once])
        if len(once) < rows:
            self._keep(which)
        self._take(logits[which])

    def run(self, record: bool) -> Tensor:
        """The tokens of all answers, padding after their ends."""
        with _heads_together(self._model):
            return self._run(record)

    def _run(self, record: bool) -> Tensor:
        play, alike = self._advance, 0
        for step in range(self._sampling.most_tokens - 1):
            if step % LOOK == 0:
                going = len(self._ended) - int(self._ended.sum())
                if not going:
                    break
                if 2 * going <= len(self._ended):
                    play, alike = self._advance, 0
                    self._leave_out()
            if record and alike == WARM:
                play = self._recorded()
            play()
            alike += 1
        self._done[self._rows] = self._written
        return self._done

    def _leave_out(self) -> None:
        """Goes on with the answers alone that have not ended."""
        self._done[self._rows] = self._written
        kept = (~self._ended).nonzero().flatten()
        for name in ("_rows", "_written", "_ended", "_seen", "_place", "_token"):
            setattr(self, name, getattr(self, name)[kept])
        self._keep(kept)

    def _keep(self, rows: Tensor) -> None:
        """The cache of these rows alone, as often as they are named."""
        layers: list[Any] = self._cache.layers
        for layer in layers:
            layer.keys, layer.values = layer.keys[rows], layer.values[rows]
            layer.batch_size = len(rows)

    def _recorded(self) -> Callable[[], None]:
        """A step as a record, after the steps that warmed up what is not to be in it. A model whose step waits for the
        device somewhere cannot be recorded: it goes on step by step."""
        graph: Any = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        here = torch.cuda.current_stream()
        try:
            with ONE_AT_A_TIME, torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._advance()
        except RuntimeError as error:
            torch.cuda.set_stream(here)  # a record that fails does not come back from its own
            if isinstance(error, torch.OutOfMemoryError):
                raise
            warnings.warn(f"answers are written slowly: this model's step cannot be recorded ({error})", stacklevel=2)
            return self._advance
        play: Callable[[], None] = graph.replay
        return play

    def _advance(self) -> None:
        self._seen.index_fill_(3, self._next, value=True)
        self._next.add_(1)
        self._place.add_(1)
        self._take(self._forward(self._token, self._seen, self._place))

    def _forward(self, tokens: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        output = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=places,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _take(self, logits: Tensor) -> None:
        """Chooses the next token of every answer that has not ended."""
        chosen = torch.where(self._ended, self._pad, choose(logits, self._sampling))
        for end in self._ends:
            self._ended.logical_or_(chosen == end)
        self._written.index_copy_(1, self._step, chosen[:, None])
        self._token.copy_(chosen[:, None])
        self._step.add_(1)


def different(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The places of the rows that differ, in their order, and for every row which of those it is: a prompt that gets
    several answers is read once."""
    _, group = torch.unique(rows, dim=0, return_inverse=True)
    places = torch.arange(len(rows), device=rows.device)
    first = torch.full_like(places, len(rows)).scatter_reduce(0, group, places, "amin")
    once = first[first < len(rows)].sort().values
    return once, torch.searchsorted(once, first[group])


def choose(logits: Tensor, sampling: Sampling) -> Tensor:
    """The likeliest token of every row, or one that is drawn; nothing here waits for the device."""
    if sampling.temperature <= 0:
        return logits.argmax(-1)
    logits = logits / sampling.temperature
    if sampling.top_p < 1:
        ordered, places = logits.sort(-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        kept = torch.zeros_like(before, dtype=torch.bool).scatter(-1, places, before < sampling.top_p)
        logits = logits.masked_fill(~kept, -torch.inf)
    # The first to arrive of many that wait, each at its own rate, is a fair draw by those rates.
    return (logits.softmax(-1) / torch.empty_like(logits).exponential_()).argmax(-1)
