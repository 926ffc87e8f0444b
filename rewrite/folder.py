"""A rewriter's folder: weights or adapter, tokenizer, the template it was trained with, and a card.

adapter_model.safetensors, adapter_config.json   or   model.safetensors, config.json
tokenizer files, template.yaml, rewriter.json, README.md
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rewrite.errors import RewriteError
from rewrite.template import TEMPLATE_FILE, Template, load_template

CARD_FILE = "rewriter.json"
"""Written last: a folder without it is not a rewriter."""


@dataclass(frozen=True, slots=True)
class RewriterCard:
    """Origin of a rewriter: base model, data, training and dev metrics."""

    base: str
    """The base model as in the config."""
    base_fingerprint: str
    """Hash of the base model's files."""
    method: Literal["lora", "full"]
    phrasing: str = ""
    """Phrasing of the tools that its template shows, if any."""
    fusion: dict[str, Any] = field(default_factory=dict)
    """Fusion with the raw query, chosen on dev: method, share of the raw query, and so on."""
    metric: str = "recall@5"
    data: list[dict[str, Any]] = field(default_factory=list)
    """Per data set: name, protocol, examples, the retriever's name and fingerprint, and its search."""
    metrics: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    trained_by: str = "supervised fine-tuning"
    """The training in words."""


@dataclass(frozen=True, slots=True)
class RewriterFolder:
    """A finished rewriter on disk."""

    path: Path
    card: RewriterCard
    template: Template

    @property
    def adapter(self) -> Path | None:
        """The adapter's folder; None where the folder holds a whole model."""
        return self.path if self.card.method == "lora" else None


def open_rewriter(path: Path) -> RewriterFolder:
    """Opens and checks a rewriter's folder, or the one in a training run's folder."""
    inner = path / "rewriter"
    if not (path / CARD_FILE).is_file() and (inner / CARD_FILE).is_file():
        path = inner
    if not (path / CARD_FILE).is_file():
        raise RewriteError(
            f"{path} is not a finished rewriter: it has no {CARD_FILE}; train one with `rewrite-train sft`"
        )
    if not (path / TEMPLATE_FILE).is_file():
        raise RewriteError(f"the rewriter in {path} lacks {TEMPLATE_FILE}, its prompt; train or copy it again")
    card = _read_card(path / CARD_FILE)
    weights = "adapter_model.safetensors" if card.method == "lora" else "config.json"
    if not (path / weights).is_file():
        raise RewriteError(f"the rewriter in {path} has no {weights}; it is damaged, train or copy it again")
    return RewriterFolder(path, card, load_template(path))


def _read_card(path: Path) -> RewriterCard:
    try:
        card = RewriterCard(**json.loads(path.read_text(encoding="utf-8")))
        if not isinstance(card.base, str) or not isinstance(card.fusion, dict):
            raise TypeError("base must be text and fusion a mapping")
        if not isinstance(card.data, list) or not all(isinstance(entry, dict) for entry in card.data):
            raise TypeError("data must be a list of mappings")
    except (ValueError, TypeError) as error:
        raise RewriteError(f"{path} is not a rewriter's card ({error}); train it again with `rewrite-train`") from error
    return card


def save_rewriter(path: Path, model: Any, tokenizer: Any, card: RewriterCard, template: Template) -> None:
    """Writes a rewriter completely or not at all: under another name first, the card last, then renamed."""
    part = path.with_name(f"{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with disk_errors():
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
            (part / TEMPLATE_FILE).write_text(template.dump(), encoding="utf-8")
            (part / "README.md").write_text(readme(card, template), encoding="utf-8")
            content = json.dumps(asdict(card), indent=1, ensure_ascii=False) + "\n"
            (part / CARD_FILE).write_text(content, encoding="utf-8")
            for file in part.iterdir():  # a library may have made its own readable to this user alone
                file.chmod((part / TEMPLATE_FILE).stat().st_mode)
        shutil.rmtree(path, ignore_errors=True)
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turns the errors of safetensors and torch about a full disk back into OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))  # safetensors
        code = int(number[1]) if number else errno.ENOSPC if "inline_container" in str(error) else None  # torch.save
        if code is None:
            raise
        raise OSError(code, os.strerror(code)) from error


def readme(card: RewriterCard, template: Template) -> str:
    """The model card."""
    metrics = "\n".join(f"| {name} | {value:.4f} |" for name, value in card.metrics.items() if isinstance(value, float))
    data = "\n".join(f"- {json.dumps(entry, ensure_ascii=False)}" for entry in card.data)
    settings = "\n".join(f"- {name}: {json.dumps(value)}" for name, value in card.training.items())
    environment = "\n".join(f"- {name}: {json.dumps(value)}" for name, value in card.environment.items())
    return f"""---
base_model: {json.dumps(card.base)}
library_name: {"peft" if card.method == "lora" else "transformers"}
tags: [tool-retrieval, query-rewriting]
---
# A query rewriter for tool retrieval

Turns a user's words into queries that a tool index understands. Trained by {card.trained_by} of
{card.base} ({card.method}; files {card.base_fingerprint}) with the template {template.name} {template.version}
({TEMPLATE_FILE}): use no other.

## Metrics on dev, with retrieval
| metric | value |
|---|---|
{metrics}

Fusion with the raw query, chosen on dev: {json.dumps(card.fusion)}

## Data and frozen retrievers
{data}

## Training
{settings}

## Environment
{environment}
"""
