"""Memory that runs out while a model or an index is loaded: reported as such, and the folder is not called damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pipelines.data.sample_data import sample_folder
from pipelines.exit_codes import exit_code
from pipelines.models import find_model
from retrievers.errors import ModelMissing, OutOfMemory
from retrievers.generative.decoding import language_model
from retrievers.out_of_memory import report_out_of_memory
from rewrite.backends import model_folder
from rewrite.backends.model_folder import no_memory
from rewrite.errors import RewriteError

CARD = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139 GiB of which 1.00 MiB is free."
)
FULL: list[Exception] = [
    torch.OutOfMemoryError(CARD),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    OSError(12, "Cannot allocate memory"),
    MemoryError(),
]
SHORT_OF_MEMORY = """
import gc, json, resource, sys
from pathlib import Path

import torch
from retrievers.dense.encoder import Encoder
from retrievers.generative.decoding.language_model import LanguageModel
from retrievers.index import manifest
from retrievers.registry import settings_from_json
from retrievers.masstool.artifacts import load_artifacts
from rewrite.backends.model_folder import load_model

encoder, lm, index = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
part = manifest.read(index)[0].retrievers["masstool"]
tries = {
    "encoder": lambda: Encoder(encoder, 8, "cpu").documents(["hello"]),
    "language model": lambda: LanguageModel(lm, "cpu").model,
    "rewriter": lambda: load_model(lm, torch.float32),
    "masstool": lambda: load_artifacts(index / part.model, settings_from_json(part.settings)),
}
for load in tries.values():
    load()  # all is well, and all that is needed is imported
results = {}
for name, load in tries.items():
    gc.collect()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**21, resource.RLIM_INFINITY))
    try:
        load()
    except Exception as error:
        results[name] = [type(error).__name__, str(error)]
print(json.dumps(results))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux does")
def test_a_full_machine_is_not_a_damaged_folder(tiny_lm: Path) -> None:
    folders = [find_model("bundled:minilm"), tiny_lm, sample_folder() / "index"]
    command = [sys.executable, "-c", SHORT_OF_MEMORY, *map(str, folders)]
    returned = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what was let go of is the system's again
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **returned})
    assert done.returncode == 0, done.stderr[-2000:]
    output = json.loads(done.stdout.splitlines()[-1])
    assert {name: kind for name, (kind, _) in output.items()} == {
        "encoder": "OutOfMemory",
        "language model": "OutOfMemory",
        "rewriter": "RewriteError",
        "masstool": "OutOfMemory",
    }
    for name, (_, sentence) in output.items():
        assert sentence.startswith("memory ran out while "), name
        assert "damaged" not in sentence
        assert "free some" in sentence


@pytest.mark.parametrize("error", FULL, ids=lambda error: type(error).__name__)
def test_whatever_a_library_raises_of_a_full_device_is_told_in_one_sentence(error: Exception, tmp_path: Path) -> None:
    def load(guard: Callable[[Path], object]) -> None:
        with guard(tmp_path):  # type: ignore[attr-defined]
            raise error

    for guard in (report_out_of_memory, language_model.loading):
        with pytest.raises(OutOfMemory, match=f"memory ran out while {tmp_path}.*--device") as caught:
            load(guard)
        assert exit_code(caught.value) == 2
        assert "\n" not in str(caught.value)
    with pytest.raises(RewriteError, match=f"memory ran out while {tmp_path}.*device"):
        load(model_folder.loading)


def test_a_folder_that_is_damaged_is_still_told_so(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="holds no causal language model"), language_model.loading(tmp_path):
        raise RuntimeError("size mismatch for model.embed_tokens.weight")
    assert no_memory(RuntimeError("size mismatch for lora_A"), tmp_path) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_full_card_is_not_a_damaged_folder(tiny_lm: Path) -> None:
    code = """
import sys, torch
from pathlib import Path
from retrievers.dense.encoder import Encoder
from retrievers.generative.decoding.language_model import LanguageModel
torch.cuda.set_per_process_memory_fraction(1e-5)
lm, encoder = LanguageModel(Path(sys.argv[1]), "cuda"), Encoder(Path(sys.argv[2]), 8, "cuda")
for load in (lambda: lm.model, lambda: encoder.documents(["a"])):
    try:
        load()
    except Exception as error:
        print(type(error).__name__)
"""
    command = [sys.executable, "-c", code, str(tiny_lm), str(find_model("bundled:minilm"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["OutOfMemory"] * 2
