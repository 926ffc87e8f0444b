"""A cross-encoder on ONNX Runtime and in its compact form: the order of PyTorch, hard texts, and who takes over."""

from __future__ import annotations

import logging
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rerankers import write_cross_encoder

from pipelines.models import find_model
from pipelines.rerank import loading
from pipelines.rerank.settings import RerankSettings
from retrievers.dense.cpu.folder import NoCpuRuntime, read_folder
from retrievers.dense.cpu.graph import build_graph
from retrievers.errors import BadInput, ModelMismatch, ModelMissing
from retrievers.rerank.compact import write_compact
from retrievers.rerank.cross_encoder import CrossEncoderReranker
from retrievers.rerank.folder import open_reranker, write_card
from retrievers.rerank.onnx_encoder import PROBE_REQUESTS, PROBE_TOOLS, OnnxCrossEncoder, load_onnx_encoder

LIMITS = 128, 48
HARD = ["weather in Athens", "x " * 10_000, "", "日本 ☃ \x00"]
HARD_TOOLS = [["get weather: forecast of a city", "", "book flights " * 300], ["b"], [], ["c", "雪"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder whose weights moved a little from MiniLM's; its head reads what differs most between pairs."""
    folder = write_cross_encoder(tmp_path_factory.mktemp("models") / "reranker")
    model = CrossEncoderReranker(folder, *LIMITS, "cpu")
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weights in model.module.named_parameters():
            if "word_embeddings" not in name:
                weights += 0.02 * weights.std(correction=0) * torch.randn_like(weights)
        pairs = [(request, tool) for request in PROBE_REQUESTS for tool in PROBE_TOOLS]
        encoded = model._tokenizer(*map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt")
        pooled = model.module.bert(**encoded).pooler_output
        model.module.classifier.weight[0] = torch.linalg.svd(pooled - pooled.mean(dim=0)).Vh[0]
    model.save(folder)
    return folder


@pytest.fixture(scope="module")
def exact(folder: Path) -> CrossEncoderReranker:
    return CrossEncoderReranker(folder, *LIMITS, "cpu")


def test_the_order_is_that_of_pytorch(folder: Path, exact: CrossEncoderReranker, tmp_path: Path) -> None:
    model = read_folder(folder, "cls")
    tools = [PROBE_TOOLS] * len(PROBE_REQUESTS)
    expected = np.concatenate(exact.score(PROBE_REQUESTS, tools))
    single = OnnxCrossEncoder(folder, build_graph(model, "float32"), model, LIMITS, "")
    assert np.allclose(np.concatenate(single.score(PROBE_REQUESTS, tools)), expected, atol=1e-4)
    for own, other in zip(single.score(HARD, HARD_TOOLS), exact.score(HARD, HARD_TOOLS), strict=True):
        assert np.allclose(own, other, atol=1e-4)
    assert single.score([], []) == []
    small = load_onnx_encoder(folder, LIMITS, "a", tmp_path)
    scores = np.concatenate(small.score(PROBE_REQUESTS, tools))
    assert np.corrcoef(scores, expected)[0, 1] > 0.99
    [graph] = (tmp_path / "graphs").iterdir()
    assert graph.stat().st_size < 0.3 * (folder / "model.safetensors").stat().st_size  # int8, without the words
    again = load_onnx_encoder(folder, LIMITS, "a", tmp_path)
    assert np.array_equal(np.concatenate(again.score(PROBE_REQUESTS, tools)), scores)


def test_pytorch_takes_over_with_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = loading.find_reranker(RerankSettings(str(folder)))
    with caplog.at_level(logging.WARNING):
        assert isinstance(loading.load_model(parts, "cpu"), OnnxCrossEncoder)
        assert not caplog.messages
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        assert isinstance(loading.load_model(parts, "cpu"), CrossEncoderReranker)
    assert caplog.messages == [f"the reranker in {folder} runs on PyTorch, as onnxruntime is not installed"]
    with pytest.raises(BadInput, match="onnxruntime is not installed; leave it out"):
        loading.load_model(loading.find_reranker(RerankSettings(str(folder), engine="onnx")), "cpu")
    named = loading.find_reranker(RerankSettings(str(folder), engine="transformers"))
    assert isinstance(loading.load_model(named, "cpu"), CrossEncoderReranker)


def test_other_models_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NoCpuRuntime, match="another head"):
        load_onnx_encoder(find_model("bundled:minilm"), LIMITS, "b", None)
    (tmp_path / "adapter_model.safetensors").touch()
    write_card(tmp_path, replace(open_reranker(folder).card, kind="language-model", method="lora"))
    with pytest.raises(BadInput, match="onnx runs cross-encoders"):
        loading.find_reranker(RerankSettings(str(tmp_path), engine="onnx"))
    with pytest.raises(BadInput, match="made of cross-encoders"):
        write_compact(find_model("bundled:minilm"), tmp_path, tmp_path / "compact")


def test_a_compact_form_is_a_reranker(folder: Path, exact: CrossEncoderReranker, tmp_path: Path) -> None:
    compact = tmp_path / "tools"
    base = find_model("bundled:minilm")
    assert 4e6 < write_compact(base, folder, compact) < 7e6
    parts = loading.find_reranker(RerankSettings(str(compact)))
    assert parts.folder.card == open_reranker(folder).card
    whole = CrossEncoderReranker(parts.model, *LIMITS, "cpu")
    tools = [PROBE_TOOLS] * len(PROBE_REQUESTS)
    scores, expected = (np.concatenate(model.score(PROBE_REQUESTS, tools)) for model in (whole, exact))
    assert np.corrcoef(scores, expected)[0, 1] > 0.99
    with pytest.raises(ModelMismatch, match="other weights than bundled:minilm"):
        find_model(str(_of_another_base(compact)))
    (compact / "adapter.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelMissing, match="is damaged"):
        loading.find_reranker(RerankSettings(str(compact)))


def _of_another_base(compact: Path) -> Path:
    other = shutil.copytree(compact, compact.with_name("other"))
    text = (other / "card.json").read_text()
    (other / "card.json").write_text(text.replace('"base_weights": "', '"base_weights": "0'))
    return other
