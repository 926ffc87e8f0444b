"""A tuned encoder as a small difference from its base model: `adapter.safetensors` and `card.json`.

A matrix is stored as whole numbers, either its difference from the base (8 or 4 bits per weight, one scale per row) or
two thin factors of that difference (`rank`). Products of whole numbers are exact, so that a merged model has the same
bytes, and the same fingerprint, on every machine. Vectors (biases, norms, the head
of one score) are stored in half precision.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from retrievers.errors import ModelMismatch, ModelMissing
from retrievers.files import hash_of, hash_unchanged

ADAPTER, CARD = "adapter.safetensors", "card.json"
MIN_CHANGE = 1e-9  # a tensor that moved less than this is left out
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "F64": np.dtype("<f8")}


def is_adapter(folder: Path) -> bool:
    """True for the folder of an adapter, damaged or not."""
    return (folder / ADAPTER).is_file() or ((folder / CARD).is_file() and not (folder / "modules.json").exists())


def weights_hash(folder: Path) -> str:
    """Hash of the weights of a model folder, without its other files."""
    digest = hashlib.sha256()
    for path in _weight_files(folder):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{hash_of(path)}\0".encode())
    return digest.hexdigest()[:16]


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.safetensors"))
    if not files:
        raise ModelMissing(f"{folder} holds no .safetensors weights; give the folder of a whole model")
    return files


def compact(base: Path, tuned: Path, share: float, rank: int, bits: int) -> dict[str, np.ndarray]:
    """The arrays of an adapter: `share` of the way from the base to the tuned model, both whole model folders.

    `rank`: of the factors of every matrix; 0: the whole difference.
    """
    arrays: dict[str, np.ndarray] = {}
    for file in _weight_files(base):
        name = file.relative_to(base).as_posix()
        before, after = load_file(file), load_file(tuned / name)
        for tensor, value in before.items():
            if value.dtype.kind != "f" or tensor not in after:
                continue
            delta = share * (after[tensor].astype(np.float32) - value.astype(np.float32))
            if np.abs(delta).max(initial=0.0) >= MIN_CHANGE:
                arrays |= {f"{name}|{tensor}|{part}": array for part, array in _parts(delta, rank, bits).items()}
    return arrays


def _parts(delta: np.ndarray, rank: int, bits: int) -> dict[str, np.ndarray]:
    if delta.ndim < 2 or len(delta) == 1:
        return {"plain": delta.astype(np.float16)}
    delta = delta.reshape(len(delta), -1)  # the kernel of a convolution counts as a matrix
    if 0 < rank < min(delta.shape):
        left, sizes, right = np.linalg.svd(delta, full_matrices=False)
        roots = np.sqrt(sizes[:rank])
        columns, column_scale = _quantise(left[:, :rank] * roots, 8)
        rows, row_scale = _quantise((right[:rank] * roots[:, None]).T, 8)
        return {"left": columns, "left_scale": column_scale, "right": rows, "right_scale": row_scale}
    numbers, scale = _quantise(delta, bits)
    return {"delta" if bits == 8 else "delta4": numbers if bits == 8 else _pack(numbers), "scale": scale}


def _quantise(matrix: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers of `bits` bits, and one scale per row."""
    largest = 2 ** (bits - 1) - 1
    scale = np.maximum(np.abs(matrix).max(axis=1), 1e-12).astype(np.float32) / np.float32(largest)
    return np.clip(np.rint(matrix / scale[:, None]), -largest, largest).astype(np.int8), scale


def _pack(numbers: np.ndarray) -> np.ndarray:
    """Two numbers of 4 bits per byte."""
    flat = (numbers.reshape(-1) + 8).astype(np.uint8)
    flat = np.append(flat, np.uint8(8)) if len(flat) % 2 else flat
    packed: np.ndarray = flat[::2] | (flat[1::2] << 4)
    return packed


def _unpack(packed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    flat = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[: int(np.prod(shape))]
    return flat.astype(np.int8).reshape(shape[0], -1) - np.int8(8)


def _difference(parts: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """The difference of one tensor from its base, in single precision, as a matrix."""
    if "plain" in parts:
        plain: np.ndarray = parts["plain"].astype(np.float32)
        return plain
    if "left" in parts:
        numbers = parts["left"].astype(np.float64) @ parts["right"].astype(np.float64).T  # exact
        product: np.ndarray = numbers * parts["left_scale"][:, None] * parts["right_scale"][None, :]
        return product.astype(np.float32)
    numbers = _unpack(parts["delta4"], shape) if "delta4" in parts else parts["delta"]
    scaled: np.ndarray = numbers.astype(np.float32) * parts["scale"][:, None]
    return scaled


def write_adapter(folder: Path, arrays: Mapping[str, np.ndarray], card: Mapping[str, Any]) -> int:
    """Write an adapter, its card last; return the bytes of the adapter."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CARD).unlink(missing_ok=True)
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / ADAPTER)
    (folder / ADAPTER).chmod(0o644)  # the library writes files that only their owner reads
    facts = dict(card) | {"adapter_sha256": hash_of(folder / ADAPTER), "bytes": (folder / ADAPTER).stat().st_size}
    part = folder / f".part-{CARD}"
    part.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(folder / CARD)
    return int(facts["bytes"])


def read_card(folder: Path) -> dict[str, Any]:
    """The card of an adapter, once the adapter's bytes are checked."""
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        base, weights, sha256 = card["base"], card["base_weights"], card["adapter_sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelMissing(f"the adapter in {folder} has no readable {CARD}; install or train it again") from error
    if not all(isinstance(value, str) for value in (base, weights, sha256)):
        raise ModelMissing(f"the adapter in {folder} has no readable {CARD}; install or train it again")
    if not (folder / ADAPTER).is_file():
        raise ModelMissing(f"{folder} has a {CARD}, but no {ADAPTER}; install or train it again")
    if hash_unchanged(folder / ADAPTER) != sha256:
        raise ModelMissing(f"{folder / ADAPTER} is damaged; install or train it again")
    return dict(card)


def merge(base: Path, adapter: Path, target: Path) -> None:
    """Write the whole model of an adapter: the files of its base, with the differences added to the weights."""
    check_base(base, adapter)
    try:
        differences = group_by_file(load_file(adapter / ADAPTER))
        shutil.copytree(base, target, dirs_exist_ok=True)
        for file, tensors in differences.items():
            add_differences(target / file, tensors)
    except (SafetensorError, KeyError, ValueError, IndexError) as error:
        raise ModelMissing(f"{adapter / ADAPTER} cannot be read ({error}); install or train it again") from error


def check_base(base: Path, adapter: Path) -> None:
    """Refuse an adapter of other weights."""
    card = read_card(adapter)
    if weights_hash(base) != card["base_weights"]:
        raise ModelMismatch(
            f"the adapter in {adapter} was trained on other weights than {card['base']} in {base}; "
            "install the model that its card names, or train the adapter again"
        )


def group_by_file(arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, dict[str, np.ndarray]]]:
    """File -> tensor -> the parts of its difference."""
    files: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for name, array in arrays.items():
        file, tensor, part = name.split("|")
        files.setdefault(file, {}).setdefault(tensor, {})[part] = array
    return files


def add_differences(file: Path, tensors: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Add differences in place: the header keeps its bytes, whichever version of the library wrote it."""
    file.chmod(0o644)
    for tensor, values in map_tensors(file, "r+"):
        if tensor in tensors:
            difference = _difference(tensors[tensor], values.shape)
            changed = values.astype(np.float32) + difference.reshape(values.shape)
            values[...] = changed.astype(values.dtype)


def map_tensors(file: Path, mode: Literal["r", "r+"]) -> Iterator[tuple[str, np.ndarray]]:
    """The float tensors of a safetensors file, mapped for reading or writing."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if size > file.stat().st_size:
            raise ValueError(f"{file} is no safetensors file")
        header = json.loads(stream.read(size))
    for name, facts in header.items():
        if name != "__metadata__" and facts["dtype"] in _DTYPES:
            shape, offset = tuple(facts["shape"]), 8 + size + facts["data_offsets"][0]
            if np.prod(shape):
                yield name, np.memmap(file, _DTYPES[facts["dtype"]], mode, offset, shape)
