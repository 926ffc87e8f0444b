"""The model in this process, by transformers: batches padded on the left, long prompts first.

Of the model's generation_config only the end tokens count. Its temperature, top_k or repetition_penalty would make two
backends of the same model answer differently, and a score depend on a file that nobody looked at.
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
from safetensors import SafetensorError
from tqdm import tqdm
from transformers import GenerationConfig
from transformers.utils import logging as transformers_logging

from rewrite.backends.model_folder import (
    adapter_config,
    encode,
    in_short,
    is_full,
    load_model,
    load_tokenizer,
    misfit,
    must_chat,
    must_fit,
    no_memory,
)
from rewrite.errors import Unfit
from rewrite.settings import Sampling, TransformersSettings
from rewrite.speedups.decoding import Decoding, can_record, half_copy
from rewrite.types import Answer, Prompt


class TransformersBackend:
    """Answers by `generate` of transformers; on CUDA by steps that are recorded, where the model allows it."""

    tells_too_long = False

    def __init__(
        self, settings: TransformersSettings, model: Path, adapter: Path | None = None, device: str | None = None
    ) -> None:
        target = _device(device)
        tokenizer = load_tokenizer(model)
        loaded = _load(model, _dtype(settings.dtype, target))
        if adapter is not None:
            loaded = _adapted(loaded, adapter, model)
        try:
            loaded = loaded.to(target).eval()
        except RuntimeError as error:
            if (full := no_memory(error, model)) is not None:
                raise full from error
            raise
        self._hold(loaded, tokenizer, settings.batch_size)

    @classmethod
    def around(cls, model: Any, tokenizer: Any, batch_size: int, half: bool = False) -> Self:
        """A backend for a model that is loaded already, in the midst of its training perhaps: it stays as it is.
        `half`: a copy answers, in half precision."""
        made = cls.__new__(cls)
        made._hold(half_copy(model) if half else model, tokenizer, batch_size)
        return made

    def _hold(self, model: Any, tokenizer: Any, batch_size: int) -> None:
        must_chat(tokenizer)
        self._model, self._tokenizer, self._batch_size = model, tokenizer, batch_size
        self.fitted = batch_size
        """Answers at a time for which the last call found memory. The next one tries as many as it was told to again:
        a neighbour may have gone."""
        self._ends = _ends(model, tokenizer)
        self._turn = Lock()  # one batch at a time: random numbers are the whole process's
        pads = [tokenizer.pad_token_id, *self._ends, 0]
        self._pad: int = next(token for token in pads if token is not None)

    @property
    def context(self) -> int | None:
        """Tokens that prompt and answer may have together, as the model's config has it."""
        most = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        return None if most is None else int(most)

    def count(self, prompts: Sequence[Prompt]) -> list[int]:
        """Tokens of each prompt, chat template and all."""
        return [len(tokens) for tokens in encode(self._tokenizer, prompts)]

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        """Answers in the prompts' order. The same seed, prompts and batch size give the same answers, on a GPU as far
        as its arithmetic is the same each time.

        A model in training is in training again afterwards, and the caller's random numbers go on as if nothing was.
        """
        encoded = encode(self._tokenizer, prompts)
        must_fit(encoded, sampling.most_tokens, self.context)
        return [[self._read(tokens) for tokens in each] for each in self.write(encoded, sampling, show_progress)]

    def write(
        self, encoded: Sequence[Sequence[int]], sampling: Sampling, show_progress: bool = False
    ) -> list[list[list[int]]]:
        """The same in tokens, the one that ends an answer included."""
        # Long prompts first: memory runs out at once or never, and a batch is padded little.
        rows = sorted(range(len(encoded)), key=lambda place: (-len(encoded[place]), place))
        rows = [place for place in rows for _ in range(sampling.answers)]
        found: list[list[list[int]]] = [[] for _ in encoded]
        most = self.fitted = self._batch_size
        # No bar rather than a hidden one: even that takes a lock which a killed sibling process may hold for ever.
        bar = tqdm(total=len(rows), unit="answer", desc="answering") if show_progress else None
        with self._turn, _answering(self._model, self._how(sampling)), _seeded(sampling.seed, self._model.device):
            while rows:
                batch = rows[:most]
                written = self._tried([encoded[place] for place in batch], sampling)
                if written is None:
                    most = self.fitted = len(batch) // 2
                    continue
                rows = rows[len(batch) :]
                for place, tokens in zip(batch, written, strict=True):
                    found[place].append(self._to_end(tokens))
                if bar is not None:
                    bar.update(len(batch))
        if bar is not None:
            bar.close()
        return found

    def _tried(self, encoded: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]] | None:
        """What the model adds to each prompt; None where memory ran out, and half as many should be tried.

        Who trains is judged by such answers before the first checkpoint, and would lose all for a number too high.
        """
        device = self._model.device
        drawn = torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        try:
            return self._written(encoded, sampling)
        except (MemoryError, RuntimeError) as error:
            if not is_full(error):
                raise
            if len(encoded) == 1:
                raise Unfit("no memory for even one answer; free some, or take a smaller model") from error
        gc.collect()  # not before the error is gone, which holds what was tried
        torch.set_rng_state(drawn[0])
        if drawn[1] is not None:
            torch.cuda.empty_cache()
            torch.cuda.set_rng_state(drawn[1], device)
        told = f"no memory for {len(encoded)} answers at a time: half as many are tried; a smaller batch_size spares it"
        warnings.warn(told, stacklevel=2)
        return None

    def _written(self, encoded: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]]:
        """The tokens that the model adds to each prompt, end token and padding included."""
        width = max(map(len, encoded))
        tokens = torch.full((len(encoded), width), self._pad)
        mask = torch.zeros_like(tokens)
        for row, some in enumerate(encoded):
            tokens[row, width - len(some) :] = torch.tensor(some)
            mask[row, width - len(some) :] = 1
        tokens, mask = tokens.to(self._model.device), mask.to(self._model.device)
        if can_record(self._model):
            with torch.no_grad():
                answers = Decoding(self._model, tokens, mask, sampling, self._ends, self._pad).run(record=True)
        else:
            answers = self._model.generate(input_ids=tokens, attention_mask=mask)[:, width:]
        added: list[list[int]] = answers.tolist()
        return added

    def _how(self, sampling: Sampling) -> Any:
        config: Any = GenerationConfig
        chosen: dict[str, Any] = {"do_sample": False}
        if sampling.temperature > 0:
            chosen = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        return config(
            **chosen,
            max_new_tokens=sampling.most_tokens,
            eos_token_id=self._ends or None,
            pad_token_id=self._pad,
            use_cache=True,
        )

    def _to_end(self, tokens: list[int]) -> list[int]:
        """Up to the first end token, which counts as written; padding comes after it, even where both are one token."""
        end = next((place for place, token in enumerate(tokens) if token in self._ends), None)
        return tokens if end is None else tokens[: end + 1]

    def _read(self, tokens: Sequence[int]) -> Answer:
        ended = bool(tokens) and tokens[-1] in self._ends
        text: str = self._tokenizer.decode(tokens[:-1] if ended else tokens, skip_special_tokens=True)
        return Answer(text, len(tokens), ended)


@contextmanager
def _answering(model: Any, how: Any) -> Iterator[None]:
    """Has a model answer in a way of ours, without dropout and the like; afterwards it is as it was, module by module.

    The way takes the place of the model's generation_config: what is merely passed is filled up from there.
    """
    training = [module for module in model.modules() if module.training]
    owner = model.get_base_model() if hasattr(model, "get_base_model") else model
    owner.generation_config, own = how, owner.generation_config
    model.eval()
    try:
        yield
    finally:
        owner.generation_config = own
        for module in training:
            module.training = True


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from a seed, without touching the caller's."""
    other = device.type != "cpu"
    with torch.random.fork_rng([device] if other else [], device_type=device.type if other else "cuda"):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":  # this one alone: torch.manual_seed would seed the other GPUs too
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif other:
            torch.manual_seed(seed)
        yield


def _ends(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends an answer: the model's, of which there may be several, and the tokenizer's."""
    named = model.generation_config.eos_token_id
    several = named if isinstance(named, list) else [named]
    return sorted({token for token in [*several, tokenizer.eos_token_id] if token is not None})


def _device(wanted: str | None) -> torch.device:
    name = wanted or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        if is_full(error):
            raise Unfit(f"the device {name} has no memory left ({in_short(error)[:120]}); free some") from error
        raise Unfit(f"this machine has no device {name}: {in_short(error)}; give another, for example cpu") from error
    return device


def _dtype(wanted: str, device: torch.device) -> torch.dtype:
    if wanted != "auto":
        dtype: torch.dtype = getattr(torch, wanted)
        return dtype
    has_it = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if has_it else torch.float32


def _load(folder: Path, dtype: torch.dtype) -> Any:
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return load_model(folder, dtype)


def _adapted(model: Any, adapter: Path, base: Path) -> Any:
    """The model with a LoRA adapter on it."""
    try:
        from peft import PeftModel
    except ModuleNotFoundError as error:
        raise Unfit("a LoRA adapter needs peft; run `pip install 'toolrewrite[train]'`") from error

    adapter_config(adapter, base)
    try:
        joined: Any = PeftModel.from_pretrained(model, str(adapter))
    except (OSError, ValueError, TypeError, KeyError, MemoryError, RuntimeError, SafetensorError) as error:
        raise no_memory(error, adapter) or misfit(adapter, base) from error
    # Merged it is faster; with half the digits the merge would round small changes away.
    return joined.merge_and_unload() if model.dtype == torch.float32 else joined
