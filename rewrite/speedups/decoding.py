"""Generation with a static cache and CUDA graphs.

A step of a small model is hundreds of small operations whose launches cost more than the work. `generate` of
transformers launches each of them for every token; here one step is recorded as a CUDA graph, and all later steps
replay it. Only the next column of the cache changes between steps, and the mask follows it. What remains is the time to
read the cache, so heads that share keys and values read them together.
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
from rewrite.speedups.switch import speedups_enabled

MAX_ANSWERS = 1024
"""Answers that trainers generate together with CUDA graphs: more take memory and save no time."""
CHECK_STEPS = 16
"""Steps between two checks for finished answers."""
WARMUP_STEPS = 2
"""Steps before one is recorded."""
CACHE_MULTIPLE = 64
"""The cache's length is a multiple of this: fast attention requires it of its mask."""
GRAPH_LOCK = Lock()
"""A process records one graph at a time."""
GROUPED_ATTENTION = "grouped-heads"
"""Name of `attend_grouped` in transformers."""


def can_record(model: Any, copied: bool = False) -> bool:
    """True for a model on CUDA whose layers all attend to the whole past with PyTorch's attention. False for one in
    accelerate's mixed precision, unless it will be `copied` by half_copy, and for ALiBi, which takes positions from the
    mask."""
    if not speedups_enabled() or model.device.type != "cuda":
        return False
    if model.config._attn_implementation != "sdpa" and not (copied and _is_eager(model)):
        return False
    if ("forward" in vars(model) and not copied) or getattr(model.config, "alibi", False):
        return False
    cache = StaticCache(config=model.config, max_cache_len=1)
    return all(type(layer) is StaticLayer for layer in cache.layers)


def _is_eager(model: Any) -> bool:
    """True for a model with eager attention that also supports PyTorch's."""
    able = getattr(model, "_supports_sdpa", False) and model._can_set_attn_implementation()
    return model.config._attn_implementation == "eager" and bool(able)


def half_copy(model: Any) -> Any:
    """A copy of the model in half precision, apart from its training. An eager model's copy takes PyTorch's attention:
    eager is there for the gradient's sake (`training.attention: eager`), and the copy has none."""
    halves: dict[int, Any] = {
        id(weight): torch.nn.Parameter(weight.detach().to(torch.bfloat16), requires_grad=False)
        for weight in model.parameters()
    }
    copy = deepcopy(model, halves)
    for module in copy.modules():
        for name in ("forward", "_original_forward"):  # accelerate's: mixed precision, and a cycle that keeps the copy
            module.__dict__.pop(name, None)
    if _is_eager(copy):
        copy.set_attn_implementation("sdpa")
    return copy


def attend_grouped(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    """Attention of one token per answer. With a mask transformers copies the whole cache for every head of a group; as
    several queries to the same keys the heads need no copies."""
    groups = getattr(module, "num_key_value_groups", 1)
    rows, heads, tokens, width = query.shape
    if tokens > 1 or groups == 1 or settings.get("position_bias") is not None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
        return plain
    grouped = query.reshape(rows, heads // groups, groups, width)
    output = scaled_dot_product_attention(grouped, key, value, attention_mask, scale=settings.get("scaling"))
    return output.reshape(rows, 1, heads, value.shape[-1]), None


AttentionInterface.register(GROUPED_ATTENTION, attend_grouped)


@contextmanager
def _grouped_attention(model: Any) -> Iterator[None]:
    model.set_attn_implementation(GROUPED_ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")


class Decoding:
    """One batch of left-padded prompts and their answers so far. Finished answers are dropped from the batch."""

    def __init__(
        self, model: Any, prompts: Tensor, mask: Tensor, sampling: Sampling, ends: Sequence[int], pad: int
    ) -> None:
        (rows, width), device = prompts.shape, prompts.device
        self._model, self._sampling, self._ends, self._pad = model, sampling, ends, pad
        columns = -(-(width + sampling.max_tokens) // CACHE_MULTIPLE) * CACHE_MULTIPLE
        self._cache = StaticCache(config=model.config, max_cache_len=columns)
        self._column = torch.tensor([width], device=device)
        """Column of the cache that the next token takes."""
        self._step = torch.zeros(1, dtype=torch.long, device=device)
        self._done = torch.full((rows, sampling.max_tokens), pad, device=device)
        self._rows = torch.arange(rows, device=device)
        """Rows of `_done` that are still generated; the tensors below have as many rows."""
        self._written = self._done.clone()
        self._ended = torch.zeros(rows, dtype=torch.bool, device=device)
        self._visible = torch.zeros(rows, 1, 1, columns, dtype=torch.bool, device=device)
        self._visible[:, 0, 0, :width] = mask.bool()
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        self._position, self._token = positions[:, -1:].clone(), prompts[:, -1:].clone()
        once, which = unique_rows(torch.cat([prompts, mask], 1))
        logits = self._forward(prompts[once], mask[once], positions[once])
        if len(once) < rows:
            self._select(which)
        self._choose(logits[which])

    def run(self, record: bool) -> Tensor:
        """Tokens of all answers, padded after their ends."""
        with _grouped_attention(self._model):
            return self._run(record)

    def _run(self, record: bool) -> Tensor:
        play, warm = self._advance, 0
        for step in range(self._sampling.max_tokens - 1):
            if step % CHECK_STEPS == 0:
                unfinished = len(self._ended) - int(self._ended.sum())
                if not unfinished:
                    break
                if 2 * unfinished <= len(self._ended):
                    play, warm = self._advance, 0
                    self._drop_finished()
            if record and warm == WARMUP_STEPS:
                play = self._record()
            play()
            warm += 1
        self._done[self._rows] = self._written
        return self._done

    def _drop_finished(self) -> None:
        self._done[self._rows] = self._written
        kept = (~self._ended).nonzero().flatten()
        for name in ("_rows", "_written", "_ended", "_visible", "_position", "_token"):
            setattr(self, name, getattr(self, name)[kept])
        self._select(kept)

    def _select(self, rows: Tensor) -> None:
        """Keeps these rows of the cache, each as often as it is named."""
        layers: list[Any] = self._cache.layers
        for layer in layers:
            layer.keys, layer.values = layer.keys[rows], layer.values[rows]
            layer.batch_size = len(rows)

    def _record(self) -> Callable[[], None]:
        """Records a step as a graph. A model whose step waits for the device cannot be recorded and runs step by
        step."""
        graph: Any = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        stream = torch.cuda.current_stream()
        try:
            with GRAPH_LOCK, torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._advance()
        except RuntimeError as error:
            torch.cuda.set_stream(stream)  # a failed recording leaves its own stream behind
            if isinstance(error, torch.OutOfMemoryError):
                raise
            warnings.warn(f"generation is slow: this model's step cannot be recorded ({error})", stacklevel=2)
            return self._advance
        play: Callable[[], None] = graph.replay
        return play

    def _advance(self) -> None:
        self._visible.index_fill_(3, self._column, value=True)
        self._column.add_(1)
        self._position.add_(1)
        self._choose(self._forward(self._token, self._visible, self._position))

    def _forward(self, tokens: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        output = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _choose(self, logits: Tensor) -> None:
        """Chooses the next token of every unfinished answer."""
        chosen = torch.where(self._ended, self._pad, choose_tokens(logits, self._sampling))
        for end in self._ends:
            self._ended.logical_or_(chosen == end)
        self._written.index_copy_(1, self._step, chosen[:, None])
        self._token.copy_(chosen[:, None])
        self._step.add_(1)


def unique_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the distinct rows, in order, and for every row the number of its distinct row. A prompt with several
    answers is thereby read once."""
    _, group = torch.unique(rows, dim=0, return_inverse=True)
    indices = torch.arange(len(rows), device=rows.device)
    first = torch.full_like(indices, len(rows)).scatter_reduce(0, group, indices, "amin")
    once = first[first < len(rows)].sort().values
    return once, torch.searchsorted(once, first[group])


def choose_tokens(logits: Tensor, sampling: Sampling) -> Tensor:
    """The likeliest token of every row, or a sampled one, without waiting for the device."""
    if sampling.temperature <= 0:
        return logits.argmax(-1)
    logits = logits / sampling.temperature
    if sampling.top_p < 1:
        ordered, indices = logits.sort(-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        kept = torch.zeros_like(before, dtype=torch.bool).scatter(-1, indices, before < sampling.top_p)
        logits = logits.masked_fill(~kept, -torch.inf)
    # The first arrival of exponential waiting times samples in proportion to their rates.
    return (logits.softmax(-1) / torch.empty_like(logits).exponential_()).argmax(-1)
