"""Training rows: prompts and completions of examples, cut to fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rewrite.backends.model_folder import chat_template_errors, check_chat_template
from rewrite.errors import RewriteError
from rewrite.sft.examples import Example
from rewrite.template import Template
from rewrite.types import Message, Prompt


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Rows, and what was cut to make them fit."""

    prompts: list[Prompt]
    completions: list[list[Message]]
    tokens: int
    """Tokens of all rows together."""
    longest: int
    cut: int
    """Examples that lost candidates."""
    dropped: int
    """Examples whose utterance and answer alone are too long."""


def build_rows(template: Template, tokenizer: Any, examples: Sequence[Example], max_tokens: int) -> TrainingRows:
    """One row per example. Candidates are cut from the end until it fits, the utterance never."""
    check_chat_template(tokenizer)
    fitting: dict[int, Example] = {}
    pending = dict(enumerate(examples))
    sizes: list[int] = []
    while pending:
        rows = [[*template.render(example.request), _answer(template, example)] for example in pending.values()]
        with chat_template_errors(tokenizer):
            lengths = [len(tokens) for tokens in tokenizer.apply_chat_template(rows, return_dict=False)]
        too_long: dict[int, Example] = {}
        for (index, example), length in zip(pending.items(), lengths, strict=True):
            if length <= max_tokens:
                fitting[index] = example
                sizes.append(length)
            elif example.candidates and template.candidates:
                shown = example.candidates[: template.candidates]
                too_long[index] = replace(example, candidates=shown[:-1])
        pending = too_long
    if not fitting:
        raise RewriteError(f"no example fits into {max_tokens} tokens; raise training.max_tokens")
    order = sorted(fitting)
    return TrainingRows(
        [template.render(fitting[index].request) for index in order],
        [[_answer(template, fitting[index])] for index in order],
        sum(sizes),
        max(sizes),
        sum(fitting[index] is not examples[index] for index in order),
        len(examples) - len(order),
    )


def _answer(template: Template, example: Example) -> Message:
    return {"role": "assistant", "content": template.write(example.lines)}
