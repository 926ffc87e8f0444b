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

from rewrite.errors import Unfit
from rewrite.template import FILE, Template, load_template

CARD = "rewriter.json"
"""Written last: a folder without it is not a rewriter."""


@dataclass(frozen=True, slots=True)
class Card:
    """What a rewriter is made of, and what it can do."""

    base: str
    """The base model as the config named it."""
    base_fingerprint: str
    """The hash of the base model's files."""
    method: Literal["lora", "full"]
    phrasing: str = ""
    """How tools are shown to it, where its template shows some."""
    fusion: dict[str, Any] = field(default_factory=dict)
    """How its lists are best joined with the raw query's, chosen on dev: method, share of the raw query, and so on."""
    metric: str = "recall@5"
    data: list[dict[str, Any]] = field(default_factory=list)
    """For each data set: name, protocol, examples, the retriever's name and fingerprint, how it searches."""
    metrics: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    how: str = "supervised fine-tuning"
    """In words: how it was trained."""


@dataclass(frozen=True, slots=True)
class RewriterFolder:
    """A finished rewriter on disk."""

    path: Path
    card: Card
    template: Template

    @property
    def adapter(self) -> Path | None:
        """The folder of the adapter; None where the folder holds a whole model."""
        return self.path if self.card.method == "lora" else None


def open_folder(path: Path) -> RewriterFolder:
    """A rewriter's folder, checked. A training run's folder stands for the rewriter in it."""
    inner = path / "rewriter"
    if not (path / CARD).is_file() and (inner / CARD).is_file():
        path = inner
    if not (path / CARD).is_file():
        raise Unfit(f"{path} is not a finished rewriter: it has no {CARD}; train one with `rewrite-train sft`")
    if not (path / FILE).is_file():
        raise Unfit(f"the rewriter in {path} has no {FILE}; without the prompt it was trained with it is of no use")
    card = _read_card(path / CARD)
    weights = "adapter_model.safetensors" if card.method == "lora" else "config.json"
    if not (path / weights).is_file():
        raise Unfit(f"the rewriter in {path} has no {weights}; it is damaged, train or copy it again")
    return RewriterFolder(path, card, load_template(path))


def _read_card(path: Path) -> Card:
    try:
        card = Card(**json.loads(path.read_text(encoding="utf-8")))
        if not isinstance(card.base, str) or not isinstance(card.fusion, dict):
            raise TypeError("base is text, fusion holds keys")
        if not isinstance(card.data, list) or not all(isinstance(each, dict) for each in card.data):
            raise TypeError("data is a list of what holds keys")
    except (ValueError, TypeError) as error:
        raise Unfit(f"{path} is not a rewriter's card ({error}); train it again") from error
    return card


def save_folder(path: Path, model: Any, tokenizer: Any, card: Card, template: Template) -> None:
    """Writes a rewriter whole or not at all: under another name first, the card last, then renamed."""
    part = path.with_name(f"{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with disk_errors():
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
            (part / FILE).write_text(template.dump(), encoding="utf-8")
            (part / "README.md").write_text(readme(card, template), encoding="utf-8")
            (part / CARD).write_text(json.dumps(asdict(card), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            for each in part.iterdir():  # a library may have kept its own for this user alone
                each.chmod((part / FILE).stat().st_mode)
        shutil.rmtree(path, ignore_errors=True)
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Lets what safetensors and torch make of a full disk be the OSError that it is."""
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


def readme(card: Card, template: Template) -> str:
    """The model card."""
    figures = "\n".join(f"| {name} | {value:.4f} |" for name, value in card.metrics.items() if isinstance(value, float))
    data = "\n".join(f"- {json.dumps(each, ensure_ascii=False)}" for each in card.data)
    settings = "\n".join(f"- {name}: {json.dumps(value)}" for name, value in card.training.items())
    machine = "\n".join(f"- {name}: {json.dumps(value)}" for name, value in card.environment.items())
    return f"""---
base_model: {json.dumps(card.base)}
library_name: {"peft" if card.method == "lora" else "transformers"}
tags: [tool-retrieval, query-rewriting]
---
# A query rewriter for tool retrieval

Turns what a user said into queries that a tool index understands. Trained by {card.how} of
{card.base} ({card.method}; files {card.base_fingerprint}) with the template {template.name} {template.version}, which
lies beside it as {FILE}: use no other.

## Figures on dev, with retrieval
| metric | value |
|---|---|
{figures}

Beside the raw query, chosen on dev: {json.dumps(card.fusion)}

## Data and frozen retrievers
{data}

## Training
{settings}

## Where
{machine}
"""
