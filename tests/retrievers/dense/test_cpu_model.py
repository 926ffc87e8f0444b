"""Encoders on ONNX Runtime: near PyTorch, kept by their weights, and replaced by PyTorch where they cannot run."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pipelines.models import find_model
from retrievers.dense.cpu import builder, graph, model
from retrievers.dense.cpu.folder import BertFolder, NoCpuRuntime, read_folder
from retrievers.dense.cpu.session import open_session
from retrievers.dense.encoder import RUNTIME, Encoder
from retrievers.errors import BadInput, ModelMissing
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.settings import DenseSettings
from retrievers.text import clean, document
from retrievers.types import Tool

QUERIES = (
    "x",
    "will it rain in Oban tonight?",
    "reserve una mesa para cuatro",
    "東京の天気",
    "Müllabfuhr: wann kommt sie?\tund wo",
    "a very long request " * 100,
    "[SEP] [MASK] 🦊 \u200b",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return find_model("bundled:minilm")


@pytest.fixture(scope="module")
def pytorch(folder: Path) -> np.ndarray:
    return vectors(folder, "pytorch", QUERIES)


def vectors(folder: Path, runtime: str, texts: Sequence[str], cache: Path | None = None) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUNTIME, runtime)
        return Encoder(folder, 8, "cpu", cache).queries(texts)


def test_vectors_are_those_of_pytorch(folder: Path, pytorch: np.ndarray) -> None:
    exact, small = (vectors(folder, runtime, QUERIES) for runtime in ("float32", "auto"))
    assert np.abs(exact - pytorch).max() < 1e-5
    cosines = (small * pytorch).sum(axis=1)
    assert cosines.mean() > model.MIN_COSINE
    assert cosines.min() > 0.98
    assert np.linalg.norm(small, axis=1) == pytest.approx(1, abs=1e-5)


def test_a_vector_does_not_depend_on_its_neighbours(folder: Path) -> None:
    encoder = Encoder(folder, 8, "cpu")
    together = encoder.documents(QUERIES)
    for text, vector in zip(QUERIES[::-1], together[::-1], strict=True):
        assert (encoder.documents([text])[0] == vector).all()


def test_rankings_are_nearly_those_of_pytorch(folder: Path, some_tools: list[Tool]) -> None:
    texts = [clean(document(tool))[:120] for tool in some_tools]
    queries = [clean(tool.description)[:50] for tool in some_tools]
    exact, small = (vectors(folder, runtime, [*texts, *queries]) for runtime in ("float32", "auto"))
    best = [np.argsort(-(form[len(texts) :] @ form[: len(texts)].T), axis=1)[:, :5] for form in (exact, small)]
    shared = [len(set(left) & set(right)) / 5 for left, right in zip(*best, strict=True)]
    assert np.mean(shared) > 0.9
    assert np.mean(best[0][:, 0] == best[1][:, 0]) > 0.95


def test_an_index_of_one_runtime_is_searched_by_another(
    tmp_path: Path, some_tools: list[Tool], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"dense": DenseSettings(model="bundled:minilm")}
    first_ids = {}
    for runtime, other in (("pytorch", "auto"), ("auto", "pytorch")):
        monkeypatch.setenv(RUNTIME, runtime)
        build(tmp_path / runtime, some_tools[:6], settings, Context(find_model, device="cpu"))
        monkeypatch.setenv(RUNTIME, other)
        index = Index(tmp_path / runtime, Context(find_model, device="cpu"))
        [ranking] = index.retriever("dense").search([some_tools[3].description], 3)
        first_ids[runtime] = ranking.ids[0]
    assert set(first_ids.values()) == {some_tools[3].id}


def test_the_graph_is_built_once_and_again_where_it_was_cut_off(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = vectors(folder, "auto", ["hotel"], tmp_path)
    [file] = (tmp_path / "graphs").iterdir()
    data = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(graph, "build_graph", lambda *_: pytest.fail("built twice"))
        assert (vectors(folder, "auto", ["hotel"], tmp_path) == before).all()
    for damaged in (data[: len(data) // 2], data[:-1] + bytes([data[-1] ^ 1]), b""):
        file.write_bytes(damaged)
        assert (vectors(folder, "auto", ["hotel"], tmp_path) == before).all()
        assert file.read_bytes() == data
    assert not list(tmp_path.rglob(".part-*"))


def test_a_cache_that_cannot_be_written_costs_time_only(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "graphs").write_text("a file where a folder should be")
    assert vectors(folder, "float32", ["hotel"], tmp_path).shape == (1, 384)


def test_int8_is_refused_where_it_changes_vectors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MIN_COSINE", 1.1)
    assert (vectors(folder, "auto", ["hotel"]) == vectors(folder, "float32", ["hotel"])).all()


def test_a_value_above_its_range_is_cut() -> None:
    random = np.random.default_rng(0)
    weight, bias = random.normal(size=(8, 16)).astype(np.float32), np.ones(8, np.float32)
    hidden = random.normal(size=(1, 1, 16)).astype(np.float32)
    small = builder.GraphBuilder("int8", {"layer": np.full(16, 4, np.float32)})
    first = small.constant("first", np.array(0))
    small.add("Gather", [small.linear("hidden", "layer", weight, bias), first], "vector", axis=1)
    session = open_session(small.to_bytes("hidden", 16))
    [vector] = session.run(None, {"hidden": hidden})
    assert np.abs(vector[0] - hidden[0, 0] @ weight.T - 1).max() < 0.5
    far, further = hidden.copy(), hidden.copy()
    far[0, 0, 3], further[0, 0, 3] = 100, 1000
    assert (session.run(None, {"hidden": far})[0] == session.run(None, {"hidden": further})[0]).all()


def _no_runtime(patch: pytest.MonkeyPatch, _: Path) -> None:
    patch.setitem(sys.modules, "onnxruntime", None)


def _no_operator(patch: pytest.MonkeyPatch, _: Path) -> None:
    patch.setattr(builder, "RUNTIME_OPERATORS", "org.example.missing")


def _other_architecture(_: pytest.MonkeyPatch, folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"position_embedding_type": "relative"}))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_no_runtime, "onnxruntime is not installed"),
        (_no_operator, "ONNX Runtime refused it"),
        (_other_architecture, "its activation or its positions differ"),
    ],
)
def test_pytorch_takes_over_and_one_sentence_says_so(
    spoil: object, words: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    shutil.copytree(folder, tmp_path / "model")
    spoil(monkeypatch, tmp_path / "model")  # type: ignore[operator]
    with caplog.at_level(logging.WARNING, "toolrewrite"):
        encoder = Encoder(tmp_path / "model", 8, "cpu")
        assert encoder.queries(["hotel"]).shape == encoder.documents(["hotel"]).shape == (1, 384)
    [record] = caplog.records
    assert "runs on PyTorch, as" in record.getMessage()
    assert words in record.getMessage()
    assert "\n" not in record.getMessage()


def test_without_either_runtime_the_way_out_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnxruntime", "sentence_transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModelMissing, match=r"onnxruntime is not installed; run `pip install 'toolrewrite\[torch\]'`"):
        Encoder(folder, 8, "cpu").queries(["x"])


def test_a_runtime_that_does_not_exist_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNTIME, "abacus")
    with pytest.raises(BadInput, match="'abacus'; set it to auto, float32 or pytorch"):
        Encoder(folder, 8, "cpu").queries(["x"])


def copied(folder: Path, target: Path, **changes: object) -> Path:
    """A copy of a model's small files, with a changed file each: name -> JSON."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
    (target / "model.safetensors").symlink_to(folder / "model.safetensors")
    for name, content in changes.items():
        (target / f"{name}.json").write_text(json.dumps(content))
    return target


def test_a_folder_says_how_its_texts_become_vectors(folder: Path, tmp_path: Path) -> None:
    plain: BertFolder = read_folder(folder)
    assert (plain.pooling, plain.max_tokens, plain.query_prompt, plain.layers, plain.heads) == ("mean", 256, "", 6, 12)
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}}
    prompted = copied(folder, tmp_path / "prompted", config_sentence_transformers=prompts)
    (prompted / "1_Pooling/config.json").write_text(json.dumps({"embedding_dimension": 384, "pooling_mode": "cls"}))
    read = read_folder(prompted)
    assert (read.pooling, read.query_prompt, read.document_prompt) == ("cls", "query: ", "passage: ")
    exact, ours = (vectors(prompted, runtime, ["hotel"]) for runtime in ("pytorch", "float32"))
    assert np.abs(exact - ours).max() < 1e-5


@pytest.fixture(scope="module")
def mpnet(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small MPNet with random weights, far enough from zero that positions and distances count."""
    import torch
    from transformers import MPNetConfig, MPNetModel

    target = tmp_path_factory.mktemp("mpnet") / "model"
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.manual_seed(0)
    config = MPNetConfig(
        vocab_size=30522, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=258, pad_token_id=1, initializer_range=0.3,
    )  # fmt: skip
    MPNetModel(config, add_pooling_layer=False).save_pretrained(target)
    return target


def test_mpnet_has_the_vectors_of_pytorch(mpnet: Path) -> None:
    assert read_folder(mpnet).max_tokens == 256
    exact, ours, small = (vectors(mpnet, runtime, QUERIES) for runtime in ("pytorch", "float32", "auto"))
    assert np.abs(exact - ours).max() < 1e-5
    assert (small * exact).sum(axis=1).mean() > model.MIN_COSINE


def test_mpnet_as_a_cross_encoder_is_left_to_pytorch(mpnet: Path) -> None:
    with pytest.raises(NoCpuRuntime, match="mpnet, has no graph"):
        read_folder(mpnet, "cls")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config": {"model_type": "t5"}}, "t5, has no graph"),
        ({"modules": [{"type": "a.Transformer", "path": ""}, {"type": "a.Dense", "path": "1"}]}, "Transformer, Dense"),
        ({"sentence_bert_config": {"do_lower_case": True}}, "lower case"),
    ],
)
def test_other_models_are_left_to_pytorch(folder: Path, tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(NoCpuRuntime, match=words):
        read_folder(copied(folder, tmp_path / "model", **changes))
