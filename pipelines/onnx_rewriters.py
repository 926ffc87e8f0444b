"""Rewriters by ONNX Runtime GenAI: converted once per model and adapter, kept in the cache."""

from __future__ import annotations

import logging
from importlib.metadata import version
from pathlib import Path

from pipelines.models import converted
from retrievers.dense.encoder import fingerprint
from rewrite.backends.base import Backend, make_backend
from rewrite.backends.onnx_conversion import convert_model, find_obstacle
from rewrite.errors import RewriteError
from rewrite.settings import OnnxSettings, TransformersSettings
from rewrite.template import Template
from rewrite.types import Answer

log = logging.getLogger("rewriter")


def load_onnx(settings: OnnxSettings, model: Path, adapter: Path | None, template: Template) -> Backend:
    """The backend of these settings; transformers takes over where it cannot run, and one sentence says so."""
    try:
        if obstacle := find_obstacle(model):
            raise RewriteError(obstacle)
        folder = find_converted(model, adapter, settings.bits)
        from rewrite.backends.onnx_engine import OnnxBackend

        return OnnxBackend(settings, folder, is_complete=lambda text: _is_complete(template, text))
    except (RewriteError, OSError) as error:
        log.warning("%s; the rewriter runs by transformers, which is slower", str(error).rstrip("."))
        return make_backend(TransformersSettings(), model, adapter, "cpu")


def find_converted(model: Path, adapter: Path | None, bits: int) -> Path:
    """The converted model in the cache, made at the first call: a minute for 135M parameters."""
    library = version("onnxruntime-genai").replace(".", "-")
    hashes = "-".join(fingerprint(folder)[:12] for folder in (model, adapter) if folder is not None)
    return converted(model, f"onnx{bits}-{library}-{hashes}", lambda _, work: _convert(model, adapter, work, bits))


def _convert(model: Path, adapter: Path | None, work: Path, bits: int) -> None:
    log.warning("converting %s for ONNX Runtime GenAI once; the result is kept in the cache", adapter or model)
    convert_model(model, adapter, work, bits)


def _is_complete(template: Template, text: str) -> bool:
    """True if the template reads nothing of an answer after this text."""
    rewrite = template.parse(Answer(text, 0))
    return rewrite.status == "none" or len(rewrite.lines) >= template.max_lines
