"""Rewrites that were written before, by a batch job or an evaluation, wherever the model is: the same ones in front of
another index, on a machine that could not write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewrite.backends.base import WithoutModel
from rewrite.errors import Unfit
from rewrite.settings import Sampling, WrittenSettings
from rewrite.template import Template
from rewrite.types import Answer, Ask, Prompt

TEMPLATE = Template("written", 1, "", "{utterance}", most_lines=100, most_characters=4_000)
"""The utterance is all of the prompt, and every line is read as it was."""


class WrittenBackend(WithoutModel):
    """Answers with what a file has for the utterance; one that it lacks is an error, never a guess."""

    def __init__(
        self,
        settings: WrittenSettings,
        model: Path | None = None,
        adapter: Path | None = None,
        device: str | None = None,
    ) -> None:
        if model is not None or adapter is not None:
            raise Unfit("rewrites that are written already need no model; leave `base` and `path` out")
        self._path = Path(settings.path).expanduser()
        self._answers = read_written(self._path, settings.rewriter)

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        """The same answer every time; none where the utterance was too long to be asked."""
        found = []
        for prompt in prompts:
            utterance = prompt[-1]["content"]
            if utterance not in self._answers:
                raise Unfit(
                    f"{self._path} has no rewrite of {utterance[:200]!r}; write those first, with rewrite-batch"
                )
            text = self._answers[utterance]
            found.append([] if text is None else [Answer(text, 0)] * sampling.answers)
        return found


def read_written(path: Path, rewriter: str) -> dict[str, str | None]:
    """Answers by utterance, of rewrite-batch's JSON lines or an evaluation's queries.jsonl; None: too long to ask."""
    found: dict[str, str | None] = {}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # an utterance may hold other breaks
    except (OSError, UnicodeDecodeError) as error:
        raise Unfit(f"no file of rewrites at {path} ({error})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            key = TEMPLATE.render(Ask(row["text"]))[-1]["content"]
            text = _answer(row, rewriter)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unfit(
                f"{path}:{number}: no line of rewrite-batch's output, nor of an evaluation's queries.jsonl"
                + (f" with a rewriter {rewriter!r}" if rewriter else " (name one of its rewriters by `rewriter`)")
            ) from error
        if found.setdefault(key, text) != text:
            raise Unfit(f"{path}:{number}: another rewrite of {key[:200]!r} than before")
    if not found:
        raise Unfit(f"{path} has no rewrites")
    return found


def _answer(row: Mapping[str, Any], rewriter: str) -> str | None:
    """What a model would have to say to be read as this rewrite."""
    own = row["rewrites"][rewriter] if rewriter else {"status": row["status"], "lines": row["queries"]}
    if own["status"] == "too-long":
        return None
    if own["status"] == "unparseable":
        return ""
    lines: list[str] = own["lines"]
    return TEMPLATE.write(lines if own["status"] == "rewritten" else ())
