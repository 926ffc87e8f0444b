"""Memory for vLLM, for models and machines of several sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewrite.backends import vllm_memory
from rewrite.backends.vllm_memory import (
    BLOCK,
    GIB,
    DeviceMemory,
    ModelBytes,
    cpu_memory,
    fit_cache,
    memory_options,
    memory_share,
    read_model_bytes,
)
from rewrite.errors import RewriteError

SMOL = {
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "num_hidden_layers": 30,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}
SMALL = ModelBytes(538_000_000, 46_080, 1024)
"""SmolLM2 135M in float32 with a context of 1024."""
HALF = ModelBytes(269_000_000, 23_040, 1024, 900_000_000)
"""The same on a GPU in bfloat16."""
SEVEN_BILLION = ModelBytes(15_200_000_000, 57_344, 32_768, 5_000_000_000)
"""Qwen2.5 7B in bfloat16 with its own context."""


def machine(free: float, total: float | None = None) -> DeviceMemory:
    return DeviceMemory("cpu", round((total or free) * GIB), round(free * GIB))


def card(free: float, total: float) -> DeviceMemory:
    return DeviceMemory("cuda", round(total * GIB), round(free * GIB))


def save(folder: Path, config: dict[str, Any], num_bytes: int = 1_000_000) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"\0" * num_bytes)
    return folder


@pytest.mark.parametrize("free", [4, 8, 24, 512])
def test_a_small_model_takes_the_same_little_memory_on_every_machine(free: float) -> None:
    assert fit_cache(SMALL, machine(free)) == 16 * 1024 * SMALL.token
    assert fit_cache(SMALL, machine(free)) < 0.75 * GIB


def test_with_little_memory_the_cache_shrinks_down_to_one_sequence() -> None:
    longest = SMALL.token * BLOCK * (1024 // BLOCK + 2)
    assert fit_cache(SMALL, machine(2.9)) < 16 * 1024 * SMALL.token
    assert fit_cache(SMALL, machine(2.56)) >= longest
    with pytest.raises(RewriteError, match=r"needs 2.6 GiB .*1024 tokens\), and 2.5 GiB are free; set a smaller `con"):
        fit_cache(SMALL, machine(2.5))


def test_a_long_context_has_room_for_one_sequence() -> None:
    model = SMALL._replace(context=131_072)
    assert fit_cache(model, machine(64)) >= 131_072 * SMALL.token


@pytest.mark.parametrize(
    ("model", "memory", "share"),
    [
        (HALF, card(139, 139), 0.063),  # 256 sequences: 5.6 GiB
        (HALF, card(7.5, 8), 0.918),
        (SEVEN_BILLION, card(139, 139), 0.25),
        (SEVEN_BILLION, card(23.5, 24), 0.959),
        (SEVEN_BILLION, card(20, 80), 0.245),
    ],
)
def test_the_share_of_a_card(model: ModelBytes, memory: DeviceMemory, share: float) -> None:
    assert memory_share(model, memory) == pytest.approx(share, abs=0.006)
    assert memory_share(model, memory) * memory.total < memory.free


def test_a_card_that_others_fill_is_refused() -> None:
    with pytest.raises(RewriteError, match=r"needs 15.9 GiB of memory .* 12.0 GiB are free"):
        memory_share(SEVEN_BILLION, card(12, 24))


def test_the_size_of_a_model_is_read_from_its_folder(tmp_path: Path) -> None:
    folder = save(tmp_path / "smol", SMOL)
    on_cpu = read_model_bytes(folder, "cpu")
    assert on_cpu is not None
    assert on_cpu[:3] == (2_000_000, 46_080, 8192)  # stored in two bytes, run in four
    on_gpu = read_model_bytes(folder, "cuda", context=512)
    assert on_gpu is not None
    assert on_gpu[:3] == (1_000_000, 23_040, 512)
    quantized = read_model_bytes(save(tmp_path / "int4", {**SMOL, "quantization_config": {}}), "cpu")
    assert quantized is not None
    assert quantized.weights == 1_000_000
    nested = save(tmp_path / "vision", {"text_config": SMOL, "dtype": "float32"})
    assert read_model_bytes(nested, "cpu") == on_cpu._replace(weights=1_000_000)


@pytest.mark.parametrize("lost", ["num_hidden_layers", "num_attention_heads", "max_position_embeddings"])
def test_an_unknown_kind_of_model_is_left_to_vllm(tmp_path: Path, lost: str) -> None:
    folder = save(tmp_path / "odd", {name: value for name, value in SMOL.items() if name != lost})
    assert read_model_bytes(folder, "cpu") is None
    assert memory_options(folder, "cpu") == {}
    assert memory_options(tmp_path / "nowhere", "cpu") == {}


def test_the_users_variable_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path / "smol", SMOL)
    monkeypatch.setattr(vllm_memory, "read_memory", lambda _: machine(24))
    assert memory_options(folder, "cpu") == {"kv_cache_memory_bytes": 16 * 1024 * 46_080}
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")
    assert memory_options(folder, "cpu") == {}


def test_memory_of_a_machine_and_of_a_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 24643260 kB\nMemFree: 100 kB\nMemAvailable: 20971520 kB\nHugePages_Total: 0\n")
    assert cpu_memory(meminfo, tmp_path) == DeviceMemory("cpu", 24643260 * 1024, 20 * GIB)
    assert cpu_memory(tmp_path / "nowhere", tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text(f"{3 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 7\ninactive_file {GIB}\n")
    assert cpu_memory(meminfo, tmp_path) == DeviceMemory("cpu", 24643260 * 1024, 20 * GIB)
    (tmp_path / "memory.max").write_text(f"{8 * GIB}\n")
    assert cpu_memory(meminfo, tmp_path) == DeviceMemory("cpu", 8 * GIB, 6 * GIB)
    older = tmp_path / "older" / "memory"
    older.mkdir(parents=True)
    for name, value in (("limit_in_bytes", 4 * GIB), ("usage_in_bytes", 3 * GIB), ("stat", "total_inactive_file 0")):
        (older / f"memory.{name}").write_text(f"{value}\n")
    assert cpu_memory(meminfo, tmp_path / "older") == DeviceMemory("cpu", 4 * GIB, GIB)


def test_this_machine_is_read() -> None:
    memory = vllm_memory.read_memory("cpu")
    assert memory is None or 0 < memory.free <= memory.total
