"""Memory for vLLM: weights, and a cache for a bounded number of sequences, within the free memory of the device.

vLLM's own default is 92 % of the device for any model, and it ends if less is free.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rewrite.errors import RewriteError

Device = Literal["cpu", "cuda"]
GIB = 1 << 30
SEQUENCES: dict[Device, int] = {"cpu": 16, "cuda": 256}
"""Sequences of `SEQUENCE_TOKENS` that the cache holds at the same time; further ones wait."""
SEQUENCE_TOKENS = 1024
"""Tokens of a usual prompt and its answer; the cache holds at least one sequence of the whole context."""
BLOCK = 128
"""Tokens per block of the cache."""
OWN_MEMORY = 2 * GIB
"""vLLM itself: its libraries and processes, on a GPU the driver's context and recorded graphs."""
MAX_SHARE_OF_FREE = 0.98
CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
"""vLLM's own variable for the cache of a CPU, in GiB; where a user sets it, it decides."""


class ModelBytes(NamedTuple):
    """Bytes that a model needs."""

    weights: int
    token: int
    """The cache per token."""
    context: int
    """Tokens of the longest sequence."""
    activations: int = 0
    """The largest step on a GPU, with vLLM's own limits of tokens and sequences per step."""


class DeviceMemory(NamedTuple):
    """Bytes of a device."""

    device: Device
    total: int
    free: int


def fit_cache(model: ModelBytes, memory: DeviceMemory) -> int:
    """Bytes of the cache; refuses a model that does not fit with one sequence of the whole context."""
    blocks = math.ceil(model.context / BLOCK) + 2  # one of them holds no tokens
    longest = model.token * BLOCK * blocks
    usual = model.token * min(model.context, SEQUENCE_TOKENS) * SEQUENCES[memory.device]
    own = OWN_MEMORY if memory.device == "cpu" else 0  # that of a GPU is a generous guess
    if model.weights + longest + own > memory.free:
        raise RewriteError(
            f"vLLM needs {(model.weights + longest + own) / GIB:.1f} GiB of memory ({model.weights / GIB:.1f} for the "
            f"weights, {longest / GIB:.1f} for a context of {model.context} tokens), and {memory.free / GIB:.1f} GiB "
            "are free; set a smaller `context`, free some memory or take a smaller model"
        )
    room = memory.free - model.weights - OWN_MEMORY - model.activations
    return max(longest, min(usual, room))


def memory_share(model: ModelBytes, memory: DeviceMemory) -> float:
    """Share of the device for weights, cache and vLLM itself; never more than is free."""
    needed = model.weights + fit_cache(model, memory) + OWN_MEMORY + model.activations
    share = min(needed, MAX_SHARE_OF_FREE * memory.free) / memory.total
    return max(0.001, math.floor(1000 * share) / 1000)


def memory_options(folder: Path, device: Device, dtype: str = "auto", context: int = 0) -> dict[str, float]:
    """vLLM's options for the memory of a model; none where a user or an unknown model leaves it to vLLM.

    On a CPU only the size of the cache counts: vLLM then reserves nothing else.
    """
    if device == "cpu" and os.environ.get(CACHE_VARIABLE):
        return {}
    model, memory = read_model_bytes(folder, device, dtype, context), read_memory(device)
    if model is None or memory is None:
        return {}
    if device == "cpu":
        return {"kv_cache_memory_bytes": fit_cache(model, memory)}
    return {"gpu_memory_utilization": memory_share(model, memory)}


def read_model_bytes(folder: Path, device: Device, dtype: str = "auto", context: int = 0) -> ModelBytes | None:
    """The size of a model by its config and the size of its files; None where the config does not tell."""
    try:
        whole: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config: dict[str, Any] = whole.get("text_config") or whole
        hidden = _number(config, "hidden_size", "n_embd")
        heads = _number(config, "num_attention_heads", "n_head")
        head_size = config.get("head_dim") or hidden // heads
        kv_heads = config.get("num_key_value_heads") or heads
        width = _width(dtype if dtype != "auto" else "float32" if device == "cpu" else "bfloat16")
        stored = _width(str(whole.get("dtype") or whole.get("torch_dtype") or "float32"))
        scale = 1.0 if "quantization_config" in whole else width / stored
        steps = 16_384 * 8 * int(config.get("intermediate_size") or 4 * hidden) + 1_024 * 16 * int(config["vocab_size"])
        return ModelBytes(
            weights=round(scale * _file_bytes(folder)),
            token=2 * _number(config, "num_hidden_layers", "n_layer") * int(kv_heads) * int(head_size) * width,
            context=context or _number(config, "max_position_embeddings", "n_positions"),
            activations=steps if device == "cuda" else 0,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None


def read_memory(device: Device) -> DeviceMemory | None:
    """Total and free memory of this machine or its first visible GPU; None where they are unknown."""
    if device == "cuda":
        return _gpu_memory()
    return cpu_memory(Path("/proc/meminfo"), Path("/sys/fs/cgroup"))


def cpu_memory(meminfo: Path, cgroup: Path) -> DeviceMemory | None:
    """The machine's memory, within the limit of this container."""
    try:
        rows = (line.split() for line in meminfo.read_text().splitlines())
        facts = {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) > 1 and row[1].isdigit()}
        total, free = facts["MemTotal"], facts["MemAvailable"]
    except (OSError, KeyError):
        return None
    for limit, usage, reclaimable in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            allowed = int((cgroup / limit).read_text())
            used = int((cgroup / usage).read_text())
            stat = dict(line.split() for line in (cgroup / usage).with_name("memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # "max": no limit
            continue
        if allowed < total:
            total, free = allowed, min(free, max(0, allowed - used + int(stat.get(reclaimable, 0))))
    return DeviceMemory("cpu", total, free)


def _gpu_memory() -> DeviceMemory | None:
    import torch

    try:
        total = torch.cuda.get_device_properties(0).total_memory
        try:
            free = total - torch.cuda.device_memory_used(0)  # asks the driver: needs no context on the GPU
        except (ModuleNotFoundError, RuntimeError):
            free = torch.cuda.mem_get_info(0)[0]
    except (RuntimeError, AssertionError):
        return None
    return DeviceMemory("cuda", total, max(0, free))


def _number(config: dict[str, Any], *names: str) -> int:
    return next((int(config[name]) for name in names if config.get(name)), 0) or _missing(names[0])


def _missing(name: str) -> int:
    raise KeyError(name)


def _width(dtype: str) -> int:
    """Bytes per value."""
    return 4 if dtype.endswith("float32") else 8 if dtype.endswith("float64") else 2


def _file_bytes(folder: Path) -> int:
    for pattern in ("model*.safetensors", "*.safetensors", "*.bin"):
        if files := list(folder.glob(pattern)):
            return sum(path.stat().st_size for path in files)
    raise FileNotFoundError(folder)
