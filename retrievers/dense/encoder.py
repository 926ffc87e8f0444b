"""A sentence-transformers model, identified by the hash of its weights, loaded on first use."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrievers.dense.cpu.folder import NoCpuRuntime
from retrievers.errors import BadInput, ModelMissing, OutOfMemory
from retrievers.files import hash_unchanged
from retrievers.out_of_memory import is_out_of_memory, report_out_of_memory, shorten

if TYPE_CHECKING:
    from retrievers.kind import Context

log = logging.getLogger("toolrewrite")
MAX_RECENT = 4_096  # query vectors that are cached: 6 MB of the usual size
GPU_FILES = ("nvidia*", "nvhost*", "nvgpu*", "kfd", "dxg")  # under /dev, where Linux has a GPU that torch could use
RUNTIME = "TOOLREWRITE_ENCODER"
"""Environment variable: `auto` (the default), `float32` or `pytorch`, the runtime of encoders on a CPU."""
_WEIGHTS = {".safetensors", ".bin", ".pt", ".onnx"}
_NOTES = {".md", ".gitattributes", ".lock"}


def fingerprint(folder: Path) -> str:
    """Hash of everything in a model folder that can change a vector; an unchanged file is hashed once."""
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    names = [name for name in names if name.suffix not in _NOTES and not any(p.startswith(".") for p in name.parts)]
    if not any(name.suffix in _WEIGHTS for name in names):
        raise ModelMissing(f"{folder} holds no model weights; give the folder of a whole model")
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name.as_posix()}\0".encode() + bytes.fromhex(hash_unchanged(folder / name)))
    return digest.hexdigest()[:16]


class Encoder:
    """Texts to unit vectors."""

    def __init__(self, folder: Path, batch_size: int, device: str | None = None, cache: Path | None = None) -> None:
        """`cache`: folder that keeps the model's graph for a CPU."""
        self.folder, self.batch_size, self.device, self._cache = folder, batch_size, device, cache
        self.fingerprint = fingerprint(folder)
        self._model: Any = None
        self._recent: dict[str, np.ndarray] = {}

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """(texts, dimensions), each row of length 1. Recent queries are cached: a hybrid repeats them."""
        known = {text: vector for text in texts if (vector := self._recent.get(text)) is not None}
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            fresh = dict(zip(missing, self._encode("encode_query", missing), strict=True))
            known.update(fresh)
            # A new dict each time: another thread may be reading the old one.
            room = MAX_RECENT - len(fresh)
            kept = self._recent if len(self._recent) <= room else {}
            self._recent = {**kept, **fresh} if room >= 0 else kept
        return np.stack([known[text] for text in texts])

    def clear_cache(self) -> None:
        """Empty the cache of recent queries, so that a search can be timed."""
        self._recent = {}

    def release_pages(self) -> None:
        """Give back the pages of the model's file that texts have read, where it is mapped."""
        if hasattr(self._model, "release_pages"):
            self._model.release_pages()

    def documents(self, texts: Sequence[str]) -> np.ndarray:
        """(texts, dimensions), each row of length 1."""
        return self._encode("encode_document", texts)

    def _encode(self, method: str, texts: Sequence[str]) -> np.ndarray:
        if self._model is None:
            self._model = self._load()
        vectors: np.ndarray = getattr(self._model, method)(
            list(texts), batch_size=self.batch_size, normalize_embeddings=True, show_progress_bar=False
        )
        return vectors.astype(np.float32, copy=False)

    def _load(self) -> Any:
        """The model on ONNX Runtime where the device is a CPU, else, or where that fails, on PyTorch."""
        runtime = os.environ.get(RUNTIME, "auto")
        if runtime not in ("auto", "float32", "pytorch"):
            raise BadInput(f"{RUNTIME} is {runtime!r}; set it to auto, float32 or pytorch")
        reason = ""
        if runtime != "pytorch" and check_device(self.device) == "cpu":
            try:
                from retrievers.dense.cpu.model import load_cpu_model

                with report_out_of_memory(self.folder):
                    return load_cpu_model(self.folder, self.fingerprint, self._cache, runtime)
            except NoCpuRuntime as error:
                reason = f", as {error}"
            except ModuleNotFoundError as error:
                reason = f", as {error.name} is not installed"
        if find_spec("sentence_transformers") is None:
            raise ModelMissing(
                f"the encoder in {self.folder} needs PyTorch{reason}; run `pip install 'toolrewrite[torch]'`"
            )
        if reason:
            log.warning("the encoder in %s runs on PyTorch%s", self.folder, reason)
        return _load_pytorch(self.folder, self.device)


def _load_pytorch(folder: Path, device: str | None) -> Any:
    import torch
    from safetensors import SafetensorError
    from transformers.utils import logging as transformers_logging

    from retrievers.dense.model_loading import load_model

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    device = check_device(device)
    # Half precision is ten times slower on a CPU.
    kwargs = {"dtype": torch.float32} if device == "cpu" else {}
    try:
        with report_out_of_memory(folder):
            return load_model(folder, device, **kwargs)
    except ModelMissing:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).split("\n")[0]
        raise ModelMissing(f"the model in {folder} cannot be loaded ({reason}); is it a whole model folder?") from error


def release_pages(context: Context) -> None:
    """Give back the pages of all encoders that a context has loaded."""
    for model in list(context.encoders.values()):  # language models are among them
        if isinstance(model, Encoder):
            model.release_pages()


def check_device(device: str | None) -> str:
    """The device, once it is certain that it exists; the best one where none is named."""
    if device == "cpu" or (device is None and not _may_have_gpu()):
        return "cpu"
    try:
        import torch
    except ModuleNotFoundError as error:
        if device is None:
            return "cpu"
        raise BadInput(f"the device {device!r} needs torch; run `pip install 'toolrewrite[torch]'`") from error

    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        if is_out_of_memory(error):
            raise OutOfMemory(
                f"the device {device!r} has no memory left ({shorten(error)}); free some, or name another --device"
            ) from error
        raise BadInput(f"there is no device {device!r} here; leave --device out, or name cpu, cuda or mps") from error
    return device


def _may_have_gpu() -> bool:
    """False where a GPU is out of the question, so that torch, which takes seconds to import, need not be asked."""
    return sys.platform == "win32" or any(True for name in GPU_FILES for _ in Path("/dev").glob(name))
