"""Examples as the trainer takes them: prompts and completions that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import TemplateError

from rewrite.backends.model_folder import must_chat
from rewrite.errors import Unfit
from rewrite.sft.examples import Example
from rewrite.template import Template
from rewrite.types import Message, Prompt


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows, and what had to be done to make them fit."""

    prompts: list[Prompt]
    completions: list[list[Message]]
    tokens: int
    """Of all rows together."""
    longest: int
    cut: int
    """Examples that lost candidates."""
    dropped: int
    """Examples whose utterance and answer alone are too long."""


def make_rows(template: Template, tokenizer: Any, examples: Sequence[Example], most_tokens: int) -> Rows:
    """One row an example. Candidates are cut from the back until it fits, the utterance never."""
    must_chat(tokenizer)
    fitting: dict[int, Example] = {}
    waiting = dict(enumerate(examples))
    sizes: list[int] = []
    while waiting:
        rows = [[*template.render(each.ask), _answer(template, each)] for each in waiting.values()]
        lengths = _lengths(tokenizer, rows)
        again: dict[int, Example] = {}
        for (place, example), length in zip(waiting.items(), lengths, strict=True):
            if length <= most_tokens:
                fitting[place] = example
                sizes.append(length)
            elif example.candidates and template.candidates:
                shown = example.candidates[: template.candidates]
                again[place] = replace(example, candidates=shown[:-1])
        waiting = again
    if not fitting:
        raise Unfit(f"no example fits into {most_tokens} tokens; raise most_tokens")
    places = sorted(fitting)
    return Rows(
        [template.render(fitting[place].ask) for place in places],
        [[_answer(template, fitting[place])] for place in places],
        sum(sizes),
        max(sizes),
        sum(fitting[place] is not examples[place] for place in places),
        len(examples) - len(places),
    )


def _lengths(tokenizer: Any, rows: Sequence[Sequence[Message]]) -> list[int]:
    try:
        return [len(tokens) for tokens in tokenizer.apply_chat_template(rows, return_dict=False)]
    except TemplateError as error:
        raise Unfit(
            f"the chat template of {tokenizer.name_or_path} refuses the prompt: {error}; "
            "some models take no system message: leave `system` of the prompt template empty"
        ) from error


def _answer(template: Template, example: Example) -> Message:
    return {"role": "assistant", "content": template.write(example.lines)}
