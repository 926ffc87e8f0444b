"""Make a rewriter from a config: find and check model, adapter, template and backend."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipelines import config as configs
from pipelines.models import converted, find_base, find_model
from pipelines.phrasing import NAMES
from retrievers.dense.encoder import fingerprint
from retrievers.errors import BadInput
from retrievers.settings import RewriteFusion
from rewrite.backends.base import Backend, find_backend, make_backend
from rewrite.backends.onnx_conversion import convert_model, find_obstacle
from rewrite.backends.replay import TEMPLATE as REPLAYED
from rewrite.errors import RewriteError
from rewrite.folder import CARD_FILE, RewriterFolder, open_rewriter
from rewrite.rewriter import Rewriter
from rewrite.settings import (
    BackendSettings,
    OnnxSettings,
    ReplaySettings,
    RulesSettings,
    Sampling,
    ServerSettings,
    TransformersSettings,
)
from rewrite.template import Template, load_template
from rewrite.types import Answer

log = logging.getLogger("rewriter")
PHRASING = "named"
"""The form of candidate tools if neither the config nor a trained rewriter names one."""


@dataclass(frozen=True, slots=True)
class RewriterSettings:
    """A trained rewriter, or any language model with a template."""

    path: str | None = None
    """A rewriter's folder, or the training run it came from."""
    base: str | None = None
    """Without `path`, the model to prompt; with it, the present location of the adapter's base model."""
    template: str | None = None
    """A bundled template or a YAML file; a trained rewriter brings its own."""
    backend: BackendSettings = field(default_factory=TransformersSettings)
    sampling: Sampling = field(default_factory=Sampling)
    phrasing: str = ""
    """The form of candidate tools, if the template shows some; a trained rewriter brings its own."""
    fusion: RewriteFusion | None = None
    """How to fuse its lists with the raw ranking; None: as the rewriter's card says."""

    def __post_init__(self) -> None:
        if isinstance(self.backend, ReplaySettings):
            if self.path or self.base or self.template or self.phrasing or self.sampling.answers > 1:
                raise BadInput("replayed rewrites take no path, base, template, phrasing or answers", "backend")
            return
        modelless = isinstance(self.backend, (ServerSettings, RulesSettings))
        if self.path is not None and self.template is not None:
            raise BadInput("a trained rewriter brings its own template; leave `template` or `path` out", "template")
        if self.path is not None and self.phrasing:
            raise BadInput("a trained rewriter brings its own phrasing; leave `phrasing` or `path` out", "phrasing")
        if self.path is None and self.template is None:
            raise BadInput("a rewriter needs the `path` of a trained one, or a `template` to ask a model with")
        if modelless and self.base is not None:
            raise BadInput(f"a backend of kind {self.backend.kind} loads no model; leave `base` out", "base")
        if not modelless and self.path is None and self.base is None:
            raise BadInput("a rewriter needs a model: `path` names a trained one, `base` any other")
        if self.phrasing and self.phrasing not in NAMES:
            raise BadInput(f"must be one of {', '.join(NAMES)}, got {self.phrasing!r}", "phrasing")
        if isinstance(self.backend, RulesSettings) and self.template != "needs":
            raise BadInput(f"rules need the template `needs`, got {self.template!r}", "template")
        if isinstance(self.backend, RulesSettings) and self.sampling.answers > 1:
            raise BadInput("rules always answer the same; leave `answers` out", "sampling")


@dataclass(frozen=True, slots=True)
class RewriterParts:
    """The parts of a rewriter, found and checked; nothing is loaded yet."""

    template: Template
    phrasing: str
    model: Path | None
    """None: a server has it."""
    adapter: Path | None
    data: list[dict[str, Any]]
    """The training data of a trained rewriter, from its card."""
    facts: dict[str, Any]
    """Further facts for run folders."""
    fusion: RewriteFusion | None = None
    """The fusion chosen for a trained rewriter."""
    trained_by: str = ""
    """The training methods in words; "" if untrained."""


def find_parts(settings: RewriterSettings) -> RewriterParts:
    """Find the parts that the settings name. Refuses an adapter of another base model."""
    facts: dict[str, Any] = {"backend": settings.backend.kind}
    if isinstance(settings.backend, ReplaySettings):
        replay = settings.backend
        facts |= {"path": replay.path, "rewriter": replay.rewriter, "made_by": replay.made_by}
        return RewriterParts(REPLAYED, PHRASING, None, None, [], facts)
    if isinstance(settings.backend, ServerSettings):
        facts |= {"url": settings.backend.url, "model": settings.backend.model}
    if settings.path is not None:
        return _trained(open_rewriter(Path(settings.path).expanduser()), settings, facts)
    template = load_template(settings.template or "")
    model = None if settings.base is None else find_model(settings.base)
    if model is not None:
        facts |= {"base": settings.base, "fingerprint": fingerprint(model)}
    return RewriterParts(template, settings.phrasing or PHRASING, model, None, [], facts)


def _trained(folder: RewriterFolder, settings: RewriterSettings, facts: dict[str, Any]) -> RewriterParts:
    card = folder.card
    if folder.adapter is None and settings.base is not None:
        raise BadInput(f"the rewriter in {folder.path} is a whole model; leave `base` out")
    facts = facts | {
        "path": str(folder.path),
        "base": card.base,
        "method": card.method,
        "trained_on": [{key: row.get(key) for key in ("dataset", "protocol", "retriever")} for row in card.data],
    }
    served = settings.backend.kind == "server"
    if not served or folder.adapter is not None:  # the whole model of a server is unknown
        facts["fingerprint"] = fingerprint(folder.path)
    model: Path | None = None
    if not served:
        model = folder.path if folder.adapter is None else _base_model(folder, settings.base)
    fusion = (
        configs.parse(RewriteFusion, card.fusion, f"the fusion in {folder.path / CARD_FILE}") if card.fusion else None
    )
    phrasing = card.phrasing or PHRASING
    if phrasing not in NAMES:
        raise BadInput(f"{folder.path / CARD_FILE}: phrasing must be one of {', '.join(NAMES)}, got {phrasing!r}")
    return RewriterParts(folder.template, phrasing, model, folder.adapter, card.data, facts, fusion, card.trained_by)


def _base_model(folder: RewriterFolder, named: str | None) -> Path:
    card = folder.card
    return find_base(f"the rewriter in {folder.path}", card.base, card.base_fingerprint, named, "base")


def make_rewriter(settings: RewriterSettings, device: str | None = None) -> tuple[Rewriter, dict[str, Any]]:
    """The rewriter, ready to answer, and the facts about it."""
    parts = find_parts(settings)
    return load_rewriter(settings, parts, device), describe(parts)


def load_rewriter(settings: RewriterSettings, parts: RewriterParts, device: str | None = None) -> Rewriter:
    """Load the rewriter of these parts; takes time and memory."""
    if isinstance(settings.backend, OnnxSettings) and parts.model is not None:
        backend = load_onnx(settings.backend, parts.model, parts.adapter, parts.template)
    else:
        backend = make_backend(settings.backend, parts.model, parts.adapter, device)
    return Rewriter(parts.template, backend, settings.sampling)


def describe(parts: RewriterParts) -> dict[str, Any]:
    """The facts about a rewriter, for run folders."""
    template = {"name": parts.template.name, "version": parts.template.version, "candidates": parts.template.candidates}
    return {**parts.facts, "template": template, "phrasing": parts.phrasing}


def load_onnx(settings: OnnxSettings, model: Path, adapter: Path | None, template: Template) -> Backend:
    """The backend of these settings; transformers takes over where it cannot run, and one sentence says so."""
    try:
        if obstacle := find_obstacle(model):
            raise RewriteError(obstacle)
        backend_class = find_backend("onnx")
        folder = find_converted(model, adapter, settings.bits)
        backend: Backend = backend_class(settings, folder, is_complete=lambda text: _is_complete(template, text))
        return backend
    except (RewriteError, OSError) as error:
        log.warning("%s; the rewriter runs by transformers, which is slower", str(error).rstrip("."))
        return make_backend(TransformersSettings(), model, adapter, "cpu")


def running_kind(chosen: str, backend: Backend) -> str:
    """The kind of the engine that runs: transformers takes over where ONNX Runtime GenAI cannot run the model."""
    if chosen != "onnx":
        return chosen
    from rewrite.backends.onnx_engine import OnnxBackend

    return chosen if isinstance(backend, OnnxBackend) else "transformers"


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
