"""A model's folder and an adapter's: what can be told, and refused, before the weights are loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from rewrite.errors import Unfit
from rewrite.types import Prompt

FULL = ("out of memory", "allocate memory", "not enough memory")
"""How torch (of a GPU, of the machine), safetensors and the system say that memory ran out."""


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder; one without a chat template is refused."""
    if not (folder / "config.json").is_file():
        raise Unfit(f"{folder} is not a model folder: it holds no config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # of a damaged file the library makes whatever it trips over first
        raise no_memory(error, folder) or Unfit(
            f"{folder} holds no tokenizer that transformers can load: {in_short(error)}"
        ) from error
    must_chat(tokenizer)
    return tokenizer


@contextmanager
def loading(folder: Path) -> Iterator[None]:
    """Turns whatever transformers makes of a folder that holds no language model into one sentence."""
    try:
        yield
    except Exception as error:
        raise no_memory(error, folder) or Unfit(
            f"{folder} holds no language model that transformers can load: {in_short(error)}"
        ) from error


def load_model(folder: Path, dtype: Any, **how: Any) -> Any:
    """The language model of a folder. One that lacks weights is refused: the library would draw them at random."""
    auto: Any = AutoModelForCausalLM
    with loading(folder):
        model, told = auto.from_pretrained(folder, dtype=dtype, local_files_only=True, output_loading_info=True, **how)
    if missing := sorted(told["missing_keys"]):
        raise Unfit(f"the model in {folder} lacks {len(missing)} of its weights, {missing[0]} for one; copy it again")
    return model


def must_chat(tokenizer: Any) -> None:
    """Refuses a model that does not say how it is to be asked."""
    if not tokenizer.chat_template:
        raise Unfit(
            f"the model {tokenizer.name_or_path} has no chat template, so it cannot be asked; "
            "take an instruction-tuned model, or give its tokenizer a chat_template"
        )


def encode(tokenizer: Any, prompts: Sequence[Prompt]) -> list[list[int]]:
    """The tokens of each prompt, up to where the answer begins."""
    if not prompts:
        return []
    try:
        encoded = tokenizer.apply_chat_template(list(prompts), add_generation_prompt=True, return_dict=True)
    except TemplateError as error:
        raise Unfit(
            f"the chat template of {tokenizer.name_or_path} refuses the prompt: {error}; "
            "some models take no system message: leave `system` of the prompt template empty"
        ) from error
    tokens: list[list[int]] = encoded["input_ids"]
    return tokens


def must_fit(encoded: Sequence[Sequence[int]], most_tokens: int, context: int | None) -> None:
    """Refuses prompts that leave no room for their answers; what should be cut is for the caller to say."""
    longest = max(map(len, encoded), default=0)
    if context is not None and longest + most_tokens > context:
        raise Unfit(
            f"a prompt of {longest} tokens and an answer of {most_tokens} do not fit into the model's {context}; "
            "shorten the prompt or set a smaller most_tokens"
        )


def adapter_config(adapter: Path, model: Path) -> dict[str, Any]:
    """What an adapter says of itself. One that has other layers than the model is refused: nobody else looks."""
    try:
        config: dict[str, Any] = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        facts = json.loads((model / "config.json").read_text(encoding="utf-8"))
        with safe_open(adapter / "adapter_model.safetensors", framework="numpy") as weights:
            numbers = {int(found[1]) for name in weights.keys() if (found := re.search(r"\.(\d+)\.", name))}  # noqa: SIM118
        kind, rank = config["peft_type"], config["r"]
        chosen = config.get("layers_to_transform") is not None or isinstance(config["target_modules"], str)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise Unfit(f"{adapter} is not a LoRA adapter: {in_short(error)}") from error
    if kind != "LORA" or type(rank) is not int:
        raise Unfit(f"{adapter} is not a LoRA adapter: its peft_type is {kind!r}, its rank {rank!r}")
    layers = facts.get("text_config", facts).get("num_hidden_layers")
    if layers and (max(numbers, default=0) >= layers or (len(numbers) < layers and not chosen)):
        raise misfit(adapter, model)
    return config


def misfit(adapter: Path, model: Path) -> Unfit:
    """The complaint about an adapter that was made for another model."""
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    base = config.get("base_model_name_or_path")
    known = f": {base}" if base else ""
    return Unfit(f"the adapter {adapter} does not fit the model {model}; give the model that it was trained on{known}")


def is_full(error: BaseException) -> bool:
    """True where memory ran out, a GPU's or the machine's."""
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in FULL)


def no_memory(error: BaseException, folder: Path) -> Unfit | None:
    """The complaint where memory ran out while a folder was loaded, which says nothing against the folder; None: it is
    another trouble."""
    if not is_full(error):
        return None
    return Unfit(
        f"memory ran out while {folder} was loaded ({in_short(error)[:120]}); free some, give another device, such as "
        "cpu, or take a smaller model or dtype"
    )


def in_short(error: BaseException) -> str:
    """What went wrong, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
