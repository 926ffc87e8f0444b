"""The model in this process, run by transformers: batches padded on the left, long prompts first.

Of the model's generation_config only the end tokens are used. Its temperature, top_k or repetition_penalty would make
two backends of the same model answer differently, and scores depend on a file that is easily overlooked.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Self

import torch
from tqdm import tqdm
from transformers import GenerationConfig
from transformers.utils import logging as transformers_logging

from rewrite.backends.model_folder import (
    check_chat_template,
    check_fit,
    encode,
    in_short,
    is_out_of_memory,
    load_adapter,
    load_model,
    load_tokenizer,
    no_memory,
)
from rewrite.errors import RewriteError
from rewrite.settings import Sampling, TransformersSettings
from rewrite.speedups.decoding import Decoding, can_record, half_copy
from rewrite.types import Answer, Prompt


class TransformersBackend:
    """Answers by `generate` of transformers; on CUDA by recorded steps, where the model allows it."""

    rejects_long_prompts = False

    def __init__(
        self, settings: TransformersSettings, model: Path, adapter: Path | None = None, device: str | None = None
    ) -> None:
        target = _find_device(device)
        tokenizer = load_tokenizer(model)
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        dtype = _find_dtype(settings.dtype, target)
        loaded = load_model(model, dtype)
        if adapter is not None:
            loaded = load_adapter(loaded, adapter, model)
            # A merged model is faster; in half precision the merge would round small changes away.
            loaded = loaded.merge_and_unload() if dtype == torch.float32 else loaded
        try:
            loaded = loaded.to(target).eval()
        except RuntimeError as error:
            if (full := no_memory(error, model)) is not None:
                raise full from error
            raise
        self._hold(loaded, tokenizer, settings.batch_size)

    @classmethod
    def around(cls, model: Any, tokenizer: Any, batch_size: int, half: bool = False) -> Self:
        """A backend for a loaded model, which may be in training and stays as it is. With `half` a copy in half
        precision answers."""
        made = cls.__new__(cls)
        made._hold(half_copy(model) if half else model, tokenizer, batch_size)
        return made

    def _hold(self, model: Any, tokenizer: Any, batch_size: int) -> None:
        check_chat_template(tokenizer)
        self._model, self._tokenizer, self._batch_size = model, tokenizer, batch_size
        self.fitting_batch = batch_size
        """Answers at a time that fitted into memory in the last call. The next call tries the full batch size again:
        memory may be free by then."""
        self._ends = _end_tokens(model, tokenizer)
        self._lock = Lock()  # one batch at a time: random numbers belong to the whole process
        pads = [tokenizer.pad_token_id, *self._ends, 0]
        self._pad: int = next(token for token in pads if token is not None)

    @property
    def context(self) -> int | None:
        """Tokens of prompt and answer together, by the model's config."""
        tokens = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        return None if tokens is None else int(tokens)

    def count(self, prompts: Sequence[Prompt]) -> list[int]:
        return [len(tokens) for tokens in encode(self._tokenizer, prompts)]

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        """Answers in the prompts' order. The same seed, prompts and batch size give the same answers, on a GPU as far
        as its arithmetic is deterministic.

        Afterwards the model's training mode and the caller's random numbers are as before.
        """
        encoded = encode(self._tokenizer, prompts)
        check_fit(encoded, sampling.max_tokens, self.context)
        answers = self.generate_tokens(encoded, sampling, show_progress)
        return [[self._decode(tokens) for tokens in row] for row in answers]

    def generate_tokens(
        self, encoded: Sequence[Sequence[int]], sampling: Sampling, show_progress: bool = False
    ) -> list[list[list[int]]]:
        """The same for tokens; an answer includes its end token."""
        # Long prompts first: memory runs out at once or never, and batches need little padding.
        order = sorted(range(len(encoded)), key=lambda index: (-len(encoded[index]), index))
        rows = [index for index in order for _ in range(sampling.answers)]
        answers: list[list[list[int]]] = [[] for _ in encoded]
        size = self.fitting_batch = self._batch_size
        # No bar instead of a disabled one: that too takes a lock which a killed sibling process may hold forever.
        bar = tqdm(total=len(rows), unit="answer", desc="answering") if show_progress else None
        config = self._generation_config(sampling)
        with self._lock, _eval_mode(self._model, config), _seeded(sampling.seed, self._model.device):
            while rows:
                batch = rows[:size]
                tokens = self._try_batch([encoded[index] for index in batch], sampling)
                if tokens is None:
                    size = self.fitting_batch = len(batch) // 2
                    continue
                rows = rows[len(batch) :]
                for index, answer in zip(batch, tokens, strict=True):
                    answers[index].append(self._cut_at_end(answer))
                if bar is not None:
                    bar.update(len(batch))
        if bar is not None:
            bar.close()
        return answers

    def _try_batch(self, encoded: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]] | None:
        """Tokens that the model adds to each prompt; None where memory ran out and half as many should be tried.

        Trainers evaluate this way before their first checkpoint; too large a batch must not cost the run.
        """
        device = self._model.device
        state = torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        try:
            return self._generate_batch(encoded, sampling)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if len(encoded) == 1:
                raise RewriteError("no memory for even one answer; free some, or take a smaller model") from error
        gc.collect()  # not before the error is gone, which holds the tensors
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.empty_cache()
            torch.cuda.set_rng_state(state[1], device)
        warnings.warn(
            f"no memory for {len(encoded)} answers at a time, trying half as many; set a smaller batch_size",
            stacklevel=2,
        )
        return None

    def _generate_batch(self, encoded: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]]:
        width = max(map(len, encoded))
        tokens = torch.full((len(encoded), width), self._pad)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(encoded):
            tokens[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        tokens, mask = tokens.to(self._model.device), mask.to(self._model.device)
        if can_record(self._model):
            with torch.no_grad():
                answers = Decoding(self._model, tokens, mask, sampling, self._ends, self._pad).run(record=True)
        else:
            answers = self._model.generate(input_ids=tokens, attention_mask=mask)[:, width:]
        added: list[list[int]] = answers.tolist()
        return added

    def _generation_config(self, sampling: Sampling) -> Any:
        config: Any = GenerationConfig
        options: dict[str, Any] = {"do_sample": False}
        if sampling.temperature > 0:
            options = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        return config(
            **options,
            max_new_tokens=sampling.max_tokens,
            eos_token_id=self._ends or None,
            pad_token_id=self._pad,
            use_cache=True,
        )

    def _cut_at_end(self, tokens: list[int]) -> list[int]:
        """Tokens up to the first end token, inclusive; padding follows it, even where both are the same token."""
        end = next((index for index, token in enumerate(tokens) if token in self._ends), None)
        return tokens if end is None else tokens[: end + 1]

    def _decode(self, tokens: Sequence[int]) -> Answer:
        ended = bool(tokens) and tokens[-1] in self._ends
        text: str = self._tokenizer.decode(tokens[:-1] if ended else tokens, skip_special_tokens=True)
        return Answer(text, len(tokens), ended)


@contextmanager
def _eval_mode(model: Any, config: Any) -> Iterator[None]:
    """Puts a model into evaluation mode with this generation config; restores both afterwards, module by module.

    The config replaces the model's own: a config that is merely passed is filled up from the model's.
    """
    training = [module for module in model.modules() if module.training]
    owner = model.get_base_model() if hasattr(model, "get_base_model") else model
    owner.generation_config, own = config, owner.generation_config
    model.eval()
    try:
        yield
    finally:
        owner.generation_config = own
        for module in training:
            module.training = True


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds the random numbers without touching the caller's."""
    other = device.type != "cpu"
    with torch.random.fork_rng([device] if other else [], device_type=device.type if other else "cuda"):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":  # this one alone: torch.manual_seed would seed the other GPUs too
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif other:
            torch.manual_seed(seed)
        yield


def _end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """All tokens that end an answer: the model's, of which there may be several, and the tokenizer's."""
    named = model.generation_config.eos_token_id
    several = named if isinstance(named, list) else [named]
    return sorted({token for token in [*several, tokenizer.eos_token_id] if token is not None})


def _find_device(wanted: str | None) -> torch.device:
    name = wanted or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = in_short(error)
        if is_out_of_memory(error):
            raise RewriteError(f"the device {name} has no memory left ({reason[:120]}); free some") from error
        raise RewriteError(f"this machine has no device {name}: {reason}; give another, for example cpu") from error
    return device


def _find_dtype(wanted: str, device: torch.device) -> torch.dtype:
    if wanted != "auto":
        dtype: torch.dtype = getattr(torch, wanted)
        return dtype
    has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if has_bfloat16 else torch.float32
