"""Adapters: small differences from a base model, merged into a whole model folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipelines import models
from pipelines.models import find_model
from retrievers.dense.adapter import ADAPTER, CARD, compact, merge, read_card, weights_hash, write_adapter
from retrievers.dense.encoder import fingerprint
from retrievers.errors import ModelMismatch, ModelMissing

RNG = np.random.default_rng(0)


def make_model(folder: Path, weights: dict[str, np.ndarray]) -> Path:
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    (folder / "modules.json").write_text("[]")
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    weights = {
        "matrix": RNG.normal(size=(40, 31)).astype(np.float32),
        "bias": RNG.normal(size=7).astype(np.float32),
        "frozen": RNG.normal(size=(5, 5)).astype(np.float32),
        "half": RNG.normal(size=(6, 5)).astype(np.float16),
        "kernel": RNG.normal(size=(4, 3, 5)).astype(np.float32),
        "ids": np.arange(4),
    }
    return make_model(tmp_path / "base", weights)


@pytest.fixture
def tuned(base: Path, tmp_path: Path) -> Path:
    weights = load_file(base / "model.safetensors")
    left, right = RNG.normal(size=(40, 3)), RNG.normal(size=(3, 31))
    weights["matrix"] = weights["matrix"] + (0.01 * left @ right).astype(np.float32)
    weights["bias"] = weights["bias"] + np.float32(0.5)
    weights["half"] = (weights["half"] + 0.25).astype(np.float16)
    weights["kernel"] = weights["kernel"] * np.float32(1.5)
    return make_model(tmp_path / "tuned", weights)


@pytest.fixture
def adapter(base: Path, tuned: Path, tmp_path: Path) -> Path:
    card = {"base": str(base), "base_weights": weights_hash(base)}
    write_adapter(tmp_path / "adapter", compact(base, tuned, 1.0, 0, 8), card)
    return tmp_path / "adapter"


@pytest.mark.parametrize(("rank", "bits", "error"), [(0, 8, 0.01), (0, 4, 0.15), (3, 8, 0.02), (1, 8, 0.9)])
def test_a_merged_model_is_near_the_tuned_one(
    base: Path, tuned: Path, tmp_path: Path, rank: int, bits: int, error: float
) -> None:
    card = {"base": str(base), "base_weights": weights_hash(base)}
    write_adapter(tmp_path / "adapter", compact(base, tuned, 0.5, rank, bits), card)
    merge(base, tmp_path / "adapter", tmp_path / "merged")
    before, after, merged = (load_file(tmp_path / n / "model.safetensors") for n in ("base", "tuned", "merged"))
    delta = 0.5 * (after["matrix"] - before["matrix"])
    assert np.linalg.norm(merged["matrix"] - before["matrix"] - delta) <= error * np.linalg.norm(delta)
    assert np.allclose(merged["bias"], before["bias"] + 0.25, atol=1e-3)
    assert rank or np.allclose(merged["kernel"], before["kernel"] * 1.25, atol=0.1)
    assert merged["half"].dtype == np.float16
    assert np.array_equal(merged["frozen"], before["frozen"])
    assert np.array_equal(merged["ids"], before["ids"])


def test_an_adapter_holds_only_weights_that_moved(adapter: Path) -> None:
    assert {name.split("|")[1] for name in load_file(adapter / ADAPTER)} == {"matrix", "bias", "half", "kernel"}


def test_an_adapter_is_found_as_a_whole_model_with_its_own_fingerprint(
    adapter: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLREWRITE_CACHE", str(tmp_path / "cache"))
    merged = find_model(str(adapter))
    assert fingerprint(merged) != fingerprint(base)
    assert find_model(str(adapter)) == merged
    (merged / "model.safetensors").write_bytes(b"torn")
    again = load_file(find_model(str(adapter)) / "model.safetensors")
    assert np.allclose(again["bias"], load_file(tmp_path / "tuned" / "model.safetensors")["bias"], atol=1e-3)
    other = tmp_path / "other"
    write_adapter(other, compact(base, tmp_path / "tuned", 0.5, 0, 8), json.loads((adapter / CARD).read_text()))
    assert fingerprint(find_model(str(other))) != fingerprint(merged)
    monkeypatch.setattr(models, "TOOLS", adapter)
    assert find_model("bundled:tools") == merged


@pytest.mark.parametrize(
    ("name", "weights"), [("tools", "3c4a2d4e34645d7c"), ("tools-multilingual", "1692ae90f552d24e")]
)
def test_a_shipped_encoder_is_tuned_on_permissive_sets_and_the_same_everywhere(name: str, weights: str) -> None:
    card = json.loads((models.TOOLS.with_name(name) / CARD).read_text(encoding="utf-8"))
    assert {data["licence"] for data in card["sets"]} == {"MIT", "Apache-2.0", "CC BY 3.0", "CC BY 4.0"}
    figures = card["figures"]["sample"]
    assert figures["dense: tuned"]["recall@5"] > figures["dense: base"]["recall@5"]
    assert fingerprint(find_model(f"bundled:{name}")) == weights


def test_a_damaged_adapter_is_refused(adapter: Path) -> None:
    data = bytearray((adapter / ADAPTER).read_bytes())
    data[-3] ^= 1
    (adapter / ADAPTER).write_bytes(bytes(data))
    with pytest.raises(ModelMissing, match="is damaged; install or train it again"):
        find_model(str(adapter))


def test_a_missing_adapter_or_card_is_refused(adapter: Path, tmp_path: Path) -> None:
    shutil.copytree(adapter, tmp_path / "no-card")
    (tmp_path / "no-card" / CARD).unlink()
    with pytest.raises(ModelMissing, match="no readable card"):
        find_model(str(tmp_path / "no-card"))
    (adapter / CARD).write_text('{"base": 3}')
    with pytest.raises(ModelMissing, match="no readable card"):
        read_card(adapter)
    (tmp_path / "no-weights").mkdir()
    shutil.copy(tmp_path / "no-card" / ADAPTER, adapter / ADAPTER)
    (tmp_path / "no-weights" / CARD).write_text(json.dumps({"base": "a", "base_weights": "b", "adapter_sha256": "c"}))
    with pytest.raises(ModelMissing, match=f"but no {ADAPTER}"):
        find_model(str(tmp_path / "no-weights"))


def test_an_adapter_that_holds_no_tensors_of_ours_is_refused(adapter: Path, base: Path, tmp_path: Path) -> None:
    card = json.loads((adapter / CARD).read_text())
    write_adapter(adapter, {"something": np.ones(3)}, card)
    with pytest.raises(ModelMissing, match="cannot be read"):
        merge(base, adapter, tmp_path / "merged")


def test_an_adapter_of_another_base_is_refused(adapter: Path, base: Path, tmp_path: Path) -> None:
    weights = load_file(base / "model.safetensors")
    weights["bias"] = weights["bias"] + 1
    save_file(weights, base / "model.safetensors")
    with pytest.raises(ModelMismatch, match="was trained on other weights"):
        merge(base, adapter, tmp_path / "merged")


def test_a_base_that_is_not_to_be_had_is_one_sentence(adapter: Path) -> None:
    card = json.loads((adapter / CARD).read_text())
    (adapter / CARD).write_text(json.dumps(card | {"base": "missing/model"}))
    with pytest.raises(ModelMissing, match="could not be fetched"):
        find_model(str(adapter))
