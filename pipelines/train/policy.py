"""The policy that an alignment starts from: its settings, its files, and checks against the targets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipelines.rewriters import RewriterSettings, find_parts
from pipelines.train.sources import AlignData
from retrievers.dense.encoder import fingerprint
from retrievers.errors import BadInput
from rewrite.folder import open_rewriter
from rewrite.settings import BackendSettings, TransformersSettings


@dataclass(frozen=True, slots=True)
class StartSettings:
    """The policy before its alignment: a trained rewriter, or any language model with a template."""

    path: str | None = None
    """A rewriter's folder, or its run folder."""
    base: str | None = None
    """Without `path` the model itself; with it, the adapter's base model if it has moved."""
    template: str | None = None

    def rewriter(self, backend: BackendSettings) -> RewriterSettings:
        """Settings of a rewriter with this policy."""
        return RewriterSettings(path=self.path, base=self.base, template=self.template, backend=backend)


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """Files of the policy, and the facts that the card of the aligned rewriter needs."""

    model: Path
    adapter: Path | None
    base: str
    base_fingerprint: str
    trained_by: str


def check_backend(backend: BackendSettings) -> None:
    """Refuse a backend whose answers do not vary."""
    if backend.kind in ("rules", "replay"):
        raise BadInput(f"answers must be sampled from a model, got kind {backend.kind!r}", "backend")


def find_start(settings: StartSettings, method: str, data: AlignData) -> StartPolicy:
    """Find the policy's files; a policy whose template or phrasing is not the targets' is refused."""
    parts = find_parts(settings.rewriter(TransformersSettings()))
    if parts.template != data.template:
        raise BadInput(
            f"start: the policy uses the template {parts.template.name} {parts.template.version}, the targets were "
            f"made with {data.template.name} {data.template.version}; make them again with the policy's"
        )
    phrasing = str(data.sources[0].facts["phrasing"])
    if parts.template.candidates and settings.path is not None and parts.phrasing != phrasing:
        raise BadInput(f"start: the policy is shown tools as `{parts.phrasing}`, the targets show them as `{phrasing}`")
    assert parts.model is not None  # a model in this process has a folder
    if settings.path is None:
        return StartPolicy(parts.model, None, settings.base or "", fingerprint(parts.model), "an untrained model")
    folder = open_rewriter(Path(settings.path).expanduser())
    card = folder.card
    if folder.adapter is not None and method == "full":
        raise BadInput("the policy is an adapter; merge it first with `rewrite-train merge`, or set method: lora")
    if folder.adapter is not None or method == "full":
        return StartPolicy(parts.model, folder.adapter, card.base, card.base_fingerprint, card.trained_by)
    return StartPolicy(parts.model, None, str(folder.path), fingerprint(folder.path), card.trained_by)
