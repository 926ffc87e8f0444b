"""Examples as the trainer takes them: prompts and completions that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rewrite.errors import Unfit
from rewrite.sft.examples import Example
from rewrite.template import Template


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows, and what had to be done to make them fit."""

    prompts: list[list[dict[str, str]]]
    completions: list[list[dict[str, str]]]
    tokens: int
    """Of all rows together."""
    cut: int
    """Examples that lost candidates."""
    dropped: int
    """Examples whose utterance and answer alone are too long."""


def make_rows(template: Template, tokenizer: Any, examples: Sequence[Example], most_tokens: int) -> Rows:
    """One row an example. Candidates are cut from the back until it fits, the utterance never."""
    if not getattr(tokenizer, "chat_template", None):
        raise Unfit(
            "the base model has no chat template, so that nobody knows where a prompt ends; take an instruct model"
        )
    fitting: dict[int, Example] = {}
    waiting = dict(enumerate(examples))
    tokens = 0
    while waiting:
        rows = [[*template.render(each.ask), _answer(template, each)] for each in waiting.values()]
        lengths = [len(ids) for ids in tokenizer.apply_chat_template(rows, return_dict=False)]
        again: dict[int, Example] = {}
        for (place, example), length in zip(waiting.items(), lengths, strict=True):
            if length <= most_tokens:
                fitting[place] = example
                tokens += length
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
        tokens,
        sum(fitting[place] is not examples[place] for place in places),
        len(examples) - len(places),
    )


def _answer(template: Template, example: Example) -> dict[str, str]:
    return {"role": "assistant", "content": template.write(example.lines)}
