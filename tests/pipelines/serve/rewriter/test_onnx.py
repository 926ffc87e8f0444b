"""The rewriter by ONNX Runtime GenAI: chosen by itself without a GPU, converted once, replaced where it cannot run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from serving import Running, make_test_rewriter

from pipelines.rewriters import RewriterSettings, make_rewriter
from pipelines.serve.rewriter import engine_choice
from pipelines.serve.rewriter.engine_choice import choose_engine
from pipelines.serve.rewriter.settings import ManagedVllm, ServedRewriter
from rewrite.backends import onnx_conversion
from rewrite.settings import BackendSettings, OnnxSettings, Sampling, TransformersSettings
from rewrite.types import RewriteRequest

pytest.importorskip("onnxruntime_genai")
TEXTS = ["book me a flight", "weather in Athens tomorrow", "hi"]
TOKENS = 1
"""The first token: later ones of an untrained model depend on the last digit."""


def lines(base: Path, folder: Path, backend: BackendSettings) -> list[list[str]]:
    settings = RewriterSettings(str(folder), str(base), backend=backend, sampling=Sampling(max_tokens=TOKENS))
    rewriter, _ = make_rewriter(settings, "cpu")
    return [list(rewrite.lines) for rewrite in rewriter.rewrite([RewriteRequest(text) for text in TEXTS])]


def test_without_a_gpu_it_serves_by_itself_and_converts_once(
    serve: Callable[..., Running],
    tiny_lm: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_choice, "has_gpu", lambda: False)
    folder = tmp_path / "rewriter"
    make_test_rewriter(tiny_lm, folder, 1)
    expected = lines(tiny_lm, folder, TransformersSettings())
    named = {"path": str(folder), "base": str(tiny_lm), "sampling": {"max_tokens": TOKENS}}
    with caplog.at_level(logging.INFO):
        server = serve(rewriter=named, deadline_ms=20_000)
    assert caplog.text.count("by ONNX Runtime GenAI, in this process: this machine has no GPU") == 1
    assert caplog.text.count("converting") == 1
    assert server.client.get("/v1/models").json()["models"][1]["engine"] == "onnx"
    results = server.post("/v1/rewrite", utterance=TEXTS).json()["results"]
    assert [result["rewrite"]["lines"] for result in results] == expected
    assert lines(tiny_lm, folder, OnnxSettings()) == expected  # the adapter is part of the conversion
    assert caplog.text.count("converting") == 1


def test_a_conversion_that_fails_leaves_transformers_and_one_sentence(
    serve: Callable[..., Running],
    tiny_lm: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_test_rewriter(tiny_lm, tmp_path / "rewriter", 2)
    monkeypatch.setattr(onnx_conversion, "CONVERTER", "no_such_converter")
    answered = lines(tiny_lm, tmp_path / "rewriter", OnnxSettings(bits=4))
    assert answered == lines(tiny_lm, tmp_path / "rewriter", TransformersSettings())
    assert "cannot be converted for ONNX Runtime GenAI" in caplog.text
    assert "the rewriter runs by transformers, which is slower" in caplog.text
    named = {"path": str(tmp_path / "rewriter"), "base": str(tiny_lm), "backend": {"kind": "onnx", "bits": 4}}
    server = serve(rewriter=named, deadline_ms=20_000)
    assert server.client.get("/v1/models").json()["models"][1]["engine"] == "transformers"


def test_the_engine_is_chosen_by_the_machine(
    tiny_lm: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    unnamed = ServedRewriter(base=str(tiny_lm), template="needs")
    monkeypatch.setattr(engine_choice, "installed", lambda: True)
    monkeypatch.setattr(engine_choice, "has_gpu", lambda: True)
    assert choose_engine(unnamed).backend == ManagedVllm()
    assert "by vLLM: this machine has a GPU" in caplog.text
    monkeypatch.setattr(engine_choice, "has_gpu", lambda: False)
    assert choose_engine(unnamed).backend == OnnxSettings()
    assert choose_engine(unnamed, shares_vllm=True).backend == ManagedVllm()
    monkeypatch.setattr(onnx_conversion, "find_spec", lambda name: None)
    assert choose_engine(unnamed).backend == ManagedVllm()
    assert "by vLLM: ONNX Runtime GenAI is not installed; run `pip install 'toolrewrite[cpu]'`" in caplog.text
    named = ServedRewriter(base=str(tiny_lm), template="needs", backend=OnnxSettings())
    assert choose_engine(named).backend == ManagedVllm()
    monkeypatch.setattr(engine_choice, "installed", lambda: False)
    assert choose_engine(named).backend == TransformersSettings()
