"""Conversion of a language model for ONNX Runtime GenAI: adapter merged, weights quantised in blocks.

The library's own converter runs in a process of its own, which gives its memory back.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from rewrite.errors import RewriteError

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Models that are converted; SmolLM2 is a Llama."""
CONVERTER = "onnxruntime_genai.models.builder"
CONVERSION_SECONDS = 1800.0


def find_obstacle(model: Path) -> str:
    """The reason why ONNX Runtime GenAI cannot run the model of a folder here; "" if there is none."""
    if find_spec("onnxruntime_genai") is None:
        return "ONNX Runtime GenAI is not installed; run `pip install 'toolrewrite[cpu]'`"
    try:
        architectures = json.loads((model / "config.json").read_text(encoding="utf-8")).get("architectures") or [""]
    except (OSError, ValueError) as error:
        return f"{model} is not a model folder ({error}); copy it again"
    if architectures[0] not in ARCHITECTURES:
        return f"ONNX Runtime GenAI is not used for {architectures[0] or 'a model without architecture'}, only for " + (
            ", ".join(ARCHITECTURES)
        )
    return ""


def convert_model(model: Path, adapter: Path | None, target: Path, bits: int) -> None:
    """Writes the model with its adapter, quantised, and its tokenizer into the folder `target`."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".part-") as scratch:
        merged = model if adapter is None else _merge(model, adapter, Path(scratch) / "merged")
        options = ["-m", "model", "-i", str(merged), "-o", str(target), "-p", f"int{bits}", "-e", "cpu"]
        options += ["-c", scratch, "--extra_options", "prune_lm_head=true"]
        try:
            done = subprocess.run(
                [sys.executable, "-m", CONVERTER, *options],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CONVERSION_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise RewriteError(f"the conversion of {model} took more than {CONVERSION_SECONDS:.0f} s") from error
    if done.returncode != 0 or not (target / "genai_config.json").is_file():
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RewriteError(f"{model} cannot be converted for ONNX Runtime GenAI: {lines[-1][:200]}")


def _merge(model: Path, adapter: Path, target: Path) -> Path:
    import torch

    from rewrite.backends.model_folder import load_adapter, load_model, load_tokenizer

    load_adapter(load_model(model, torch.float32), adapter, model).merge_and_unload().save_pretrained(target)
    load_tokenizer(model).save_pretrained(target)
    return target
