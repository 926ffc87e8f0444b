"""Folders of models and adapters: loading, and refusing what does not fit before weights are loaded."""

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

from rewrite.errors import RewriteError
from rewrite.types import Prompt

OUT_OF_MEMORY = ("out of memory", "allocate memory", "not enough memory")
"""Messages of torch (GPU and machine), safetensors and the system when memory runs out."""


def load_tokenizer(folder: Path, config_file: str = "config.json") -> Any:
    """The tokenizer of a model folder; one without a chat template is refused."""
    if not (folder / config_file).is_file():
        raise RewriteError(f"{folder} is not a model folder: it holds no {config_file}")
    with loading(folder, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    check_chat_template(tokenizer)
    return tokenizer


@contextmanager
def loading(folder: Path, part: str = "language model") -> Iterator[None]:
    """Turns any exception of transformers about a damaged folder into one sentence."""
    try:
        yield
    except Exception as error:
        raise no_memory(error, folder) or RewriteError(
            f"{folder} holds no {part} that transformers can load: {in_short(error)}"
        ) from error


def load_model(folder: Path, dtype: Any, **options: Any) -> Any:
    """The language model of a folder. One that lacks weights is refused: the library would draw them at random."""
    auto: Any = AutoModelForCausalLM
    with loading(folder):
        model, info = auto.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True, **options
        )
    if missing := sorted(info["missing_keys"]):
        raise RewriteError(
            f"the model in {folder} lacks {len(missing)} of its weights, for example {missing[0]}; copy it again"
        )
    return model


def load_adapter(model: Any, adapter: Path, base: Path, is_trainable: bool = False) -> Any:
    """The model of `base` with a LoRA adapter on it."""
    try:
        from peft import PeftModel
    except ModuleNotFoundError as error:
        raise RewriteError("a LoRA adapter needs peft; run `pip install 'toolrewrite[train]'`") from error

    adapter_config(adapter, base)
    try:
        return PeftModel.from_pretrained(model, str(adapter), is_trainable=is_trainable)
    except (OSError, ValueError, TypeError, KeyError, MemoryError, RuntimeError, SafetensorError) as error:
        raise no_memory(error, adapter) or adapter_mismatch(adapter, base) from error


def check_chat_template(tokenizer: Any) -> None:
    """Refuses a model without a chat template."""
    if not tokenizer.chat_template:
        raise RewriteError(
            f"the model {tokenizer.name_or_path} has no chat template, so it cannot be prompted; "
            "take an instruction-tuned model, or give its tokenizer a chat_template"
        )


@contextmanager
def chat_template_errors(tokenizer: Any) -> Iterator[None]:
    """Explains a chat template's refusal of a prompt."""
    try:
        yield
    except TemplateError as error:
        raise RewriteError(
            f"the chat template of {tokenizer.name_or_path} refuses the prompt: {error}; "
            "some models take no system message: leave `system` of the prompt template empty"
        ) from error


def encode(tokenizer: Any, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Tokens of each prompt, up to where the answer begins."""
    if not prompts:
        return []
    with chat_template_errors(tokenizer):
        encoded = tokenizer.apply_chat_template(list(prompts), add_generation_prompt=True, return_dict=True)
    tokens: list[list[int]] = encoded["input_ids"]
    return tokens


def check_fit(encoded: Sequence[Sequence[int]], max_tokens: int, context: int | None) -> None:
    """Refuses prompts that leave no room for their answers; the caller decides what to cut."""
    longest = max(map(len, encoded), default=0)
    if context is not None and longest + max_tokens > context:
        raise RewriteError(
            f"a prompt of {longest} tokens and an answer of {max_tokens} do not fit into the model's {context}; "
            "shorten the prompt or set a smaller max_tokens"
        )


def adapter_config(adapter: Path, model: Path) -> dict[str, Any]:
    """The config of an adapter. One with other layers than the model is refused: no library checks that."""
    try:
        config: dict[str, Any] = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        facts = json.loads((model / "config.json").read_text(encoding="utf-8"))
        with safe_open(adapter / "adapter_model.safetensors", framework="numpy") as weights:
            numbers = {int(match[1]) for name in weights.keys() if (match := re.search(r"\.(\d+)\.", name))}  # noqa: SIM118
        kind, rank = config["peft_type"], config["r"]
        some_layers = config.get("layers_to_transform") is not None or isinstance(config["target_modules"], str)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise RewriteError(f"{adapter} is not a LoRA adapter: {in_short(error)}") from error
    if kind != "LORA" or type(rank) is not int:
        raise RewriteError(f"{adapter} is not a LoRA adapter: its peft_type is {kind!r}, its rank {rank!r}")
    layers = facts.get("text_config", facts).get("num_hidden_layers")
    if layers and (max(numbers, default=0) >= layers or (len(numbers) < layers and not some_layers)):
        raise adapter_mismatch(adapter, model)
    return config


def adapter_mismatch(adapter: Path, model: Path) -> RewriteError:
    """The error about an adapter of another model."""
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    base = config.get("base_model_name_or_path")
    known = f": {base}" if base else ""
    return RewriteError(
        f"the adapter {adapter} does not fit the model {model}; give the model that it was trained on{known}"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """True where memory ran out, a GPU's or the machine's."""
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in OUT_OF_MEMORY)


def no_memory(error: BaseException, folder: Path) -> RewriteError | None:
    """The error about memory that ran out while a folder was loaded; None where something else failed."""
    if not is_out_of_memory(error):
        return None
    return RewriteError(
        f"memory ran out while {folder} was loaded ({in_short(error)[:120]}); free some, give another device, such as "
        "cpu, or take a smaller model or dtype"
    )


def in_short(error: BaseException) -> str:
    """The error's message in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
