"""A rewriter out of a config: model, adapter, template and backend, found, checked and put together."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines import config as configs
from pipelines.models import find_model
from pipelines.phrasing import NAMES
from retrievers.dense.encoder import fingerprint
from retrievers.errors import BadInput, ModelMismatch, ModelMissing
from retrievers.settings import RewriteFusion
from rewrite.backends.base import make_backend
from rewrite.backends.replay import TEMPLATE as WRITTEN
from rewrite.folder import CARD_FILE, RewriterFolder, open_rewriter
from rewrite.rewriter import Rewriter
from rewrite.settings import (
    BackendSettings,
    ReplaySettings,
    RulesSettings,
    Sampling,
    ServerSettings,
    TransformersSettings,
)
from rewrite.template import Template, load_template

PHRASING = "named"
"""How tools are shown where neither the config nor a trained rewriter says it."""


@dataclass(frozen=True, slots=True)
class RewriterSettings:
    """A trained rewriter, or any language model with a template."""

    path: str | None = None
    """A rewriter's folder, or the training run it came from."""
    base: str | None = None
    """Without `path` the model that is asked as it is; with it, where the adapter's base model lies now."""
    template: str | None = None
    """A bundled template or a YAML file; a trained rewriter brings its own."""
    backend: BackendSettings = field(default_factory=TransformersSettings)
    sampling: Sampling = field(default_factory=Sampling)
    phrasing: str = ""
    """How tools are shown where the template shows some; a trained rewriter brings its own."""

    def __post_init__(self) -> None:
        if isinstance(self.backend, ReplaySettings):
            if self.path or self.base or self.template or self.phrasing or self.sampling.answers > 1:
                raise BadInput("what is written already takes no path, base, template, phrasing or answers", "backend")
            return
        modelless = isinstance(self.backend, (ServerSettings, RulesSettings))
        if self.path is not None and self.template is not None:
            raise BadInput("a trained rewriter brings its own template; leave `template` or `path` out", "template")
        if self.path is not None and self.phrasing:
            raise BadInput("a trained rewriter brings its own phrasing; leave `phrasing` or `path` out", "phrasing")
        if self.path is None and self.template is None:
            raise BadInput("a rewriter needs the `path` of a trained one, or a `template` to ask a model with")
        if modelless and self.base is not None:
            raise BadInput(f"a backend of kind {self.backend.kind} takes no model from here; leave `base` out", "base")
        if not modelless and self.path is None and self.base is None:
            raise BadInput("a rewriter needs a model: `path` names a trained one, `base` any other")
        if self.phrasing and self.phrasing not in NAMES:
            raise BadInput(f"tools are shown as {', '.join(NAMES)}, not {self.phrasing!r}", "phrasing")
        if isinstance(self.backend, RulesSettings) and self.template != "needs":
            raise BadInput("rules answer as the template `needs` reads it, and no other", "template")
        if isinstance(self.backend, RulesSettings) and self.sampling.answers > 1:
            raise BadInput("rules always answer the same; leave `answers` out", "sampling")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a rewriter is made of, found and checked; nothing is loaded yet."""

    template: Template
    phrasing: str
    model: Path | None
    """None: a server has it."""
    adapter: Path | None
    data: list[dict[str, Any]]
    """What a trained rewriter has learned from, as its card tells."""
    facts: dict[str, Any]
    """The rest that is worth writing down."""
    fusion: RewriteFusion | None = None
    """How a trained rewriter is best joined with the raw query."""
    how: str = ""
    """How it was trained, in words; "": it was not."""


def find_parts(settings: RewriterSettings) -> Parts:
    """The parts that the settings ask for. An adapter of another model than the one found is refused."""
    asked: dict[str, Any] = {"backend": settings.backend.kind}
    if isinstance(settings.backend, ReplaySettings):
        written = settings.backend
        asked |= {"path": written.path, "rewriter": written.rewriter, "made_by": written.made_by}
        return Parts(WRITTEN, PHRASING, None, None, [], asked)
    if isinstance(settings.backend, ServerSettings):
        asked |= {"url": settings.backend.url, "model": settings.backend.model}
    if settings.path is not None:
        return _trained(open_rewriter(Path(settings.path).expanduser()), settings, asked)
    template = load_template(settings.template or "")
    model = None if settings.base is None else find_model(settings.base)
    if model is not None:
        asked |= {"base": settings.base, "fingerprint": fingerprint(model)}
    return Parts(template, settings.phrasing or PHRASING, model, None, [], asked)


def _trained(folder: RewriterFolder, settings: RewriterSettings, asked: dict[str, Any]) -> Parts:
    card = folder.card
    if folder.adapter is None and settings.base is not None:
        raise BadInput(f"the rewriter in {folder.path} is a whole model; leave `base` out")
    facts = asked | {
        "path": str(folder.path),
        "base": card.base,
        "method": card.method,
        "trained_on": [{key: each.get(key) for key in ("dataset", "protocol", "retriever")} for each in card.data],
    }
    served = settings.backend.kind == "server"
    if not served or folder.adapter is not None:  # nobody here knows which whole model a server has
        facts["fingerprint"] = fingerprint(folder.path)
    model: Path | None = None
    if not served:
        model = folder.path if folder.adapter is None else _base_model(folder, settings.base)
    fusion = (
        configs.parse(RewriteFusion, card.fusion, f"the fusion in {folder.path / CARD_FILE}") if card.fusion else None
    )
    phrasing = card.phrasing or PHRASING
    if phrasing not in NAMES:
        raise BadInput(f"{folder.path / CARD_FILE}: tools are shown as {', '.join(NAMES)}, not {phrasing!r}")
    return Parts(folder.template, phrasing, model, folder.adapter, card.data, facts, fusion, card.trained_by)


def _base_model(folder: RewriterFolder, named: str | None) -> Path:
    """The very model that an adapter was trained on."""
    card = folder.card
    try:
        model = find_model(named or card.base)
    except ModelMissing as error:
        if named is not None:
            raise
        raise ModelMissing(
            f"the rewriter in {folder.path} is an adapter of {card.base}, which is not found from here; "
            "say with `base` where that model lies"
        ) from error
    found = fingerprint(model)
    if found != card.base_fingerprint:
        raise ModelMismatch(
            f"the rewriter in {folder.path} is an adapter of {card.base} (files {card.base_fingerprint}), not of "
            f"{model} (files {found}); say with `base` where the right model lies"
        )
    return model


def make_rewriter(settings: RewriterSettings, device: str | None = None) -> tuple[Rewriter, dict[str, Any]]:
    """The rewriter, ready to answer, and what it is made of; `phrasing` is how tools are to be shown to it."""
    parts = find_parts(settings)
    return load_rewriter(settings, parts, device), describe(parts)


def load_rewriter(settings: RewriterSettings, parts: Parts, device: str | None = None) -> Rewriter:
    """The rewriter that is made of these parts; this is what takes time and memory."""
    backend = make_backend(settings.backend, parts.model, parts.adapter, device)
    return Rewriter(parts.template, backend, settings.sampling)


def describe(parts: Parts) -> dict[str, Any]:
    """What a rewriter is made of, to be written down."""
    template = {"name": parts.template.name, "version": parts.template.version, "candidates": parts.template.candidates}
    return {**parts.facts, "template": template, "phrasing": parts.phrasing}
