"""Replays the rewrites of an earlier batch job or evaluation, for example in front of another index."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewrite.backends.base import ModelFreeBackend
from rewrite.errors import RewriteError
from rewrite.settings import ReplaySettings, Sampling
from rewrite.template import Template
from rewrite.types import NOT_ASKED, Answer, Prompt, RewriteRequest

TEMPLATE = Template("replay", 1, "", "{utterance}", max_lines=100, max_characters=4_000)
"""The utterance is the whole prompt, and every line is read as it was written."""


class ReplayBackend(ModelFreeBackend):
    """Answers with the file's rewrite of the utterance; a missing one is an error, never a guess."""

    def __init__(
        self,
        settings: ReplaySettings,
        model: Path | None = None,
        adapter: Path | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__(settings, model, adapter)
        self._path = Path(settings.path).expanduser()
        self._answers = read_rewrites(self._path, settings.rewriter)

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        """The same answer every time; none where the utterance was too long."""
        answers = []
        for prompt in prompts:
            utterance = prompt[-1]["content"]
            if utterance not in self._answers:
                raise RewriteError(
                    f"{self._path} has no rewrite of {utterance[:200]!r}; write it first, with rewrite-batch"
                )
            text = self._answers[utterance]
            answers.append([] if text is None else [Answer(text, 0)] * sampling.answers)
        return answers


def read_rewrites(path: Path, rewriter: str) -> dict[str, str | None]:
    """Answers by utterance, from rewrite-batch's JSON lines or an evaluation's queries.jsonl; None: too long."""
    answers: dict[str, str | None] = {}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # an utterance may hold other line breaks
    except (OSError, UnicodeDecodeError) as error:
        raise RewriteError(f"no file of rewrites at {path} ({error})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            key = TEMPLATE.render(RewriteRequest(row["text"]))[-1]["content"]
            status, text = _answer(row, rewriter)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RewriteError(
                f"{path}:{number}: no line of rewrite-batch's output, nor of an evaluation's queries.jsonl"
                + (f" with a rewriter {rewriter!r}" if rewriter else " (name one of its rewriters by `rewriter`)")
            ) from error
        if status.startswith(NOT_ASKED):
            raise RewriteError(
                f"{path}:{number}: the rewriter was not asked about {key[:200]!r} (status {status}); run rewrite-batch "
                "again with `index` left out, or with `detect: false` and a `rewriter.fusion` that asks about every row"
            )
        if answers.setdefault(key, text) != text:
            raise RewriteError(f"{path}:{number}: another rewrite of {key[:200]!r} than before")
    if not answers:
        raise RewriteError(f"{path} has no rewrites")
    return answers


def _answer(row: Mapping[str, Any], rewriter: str) -> tuple[str, str | None]:
    """The status of a rewrite, and the answer that is parsed as this rewrite."""
    own = row["rewrites"][rewriter] if rewriter else {"status": row["status"], "lines": row["queries"]}
    status = str(own["status"])
    if status == "too-long":
        return status, None
    if status == "unparseable":
        return status, ""
    lines: list[str] = own["lines"]
    return status, TEMPLATE.write(lines if status in ("rewritten", "echo") else ())
