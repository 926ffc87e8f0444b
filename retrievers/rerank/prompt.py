"""The prompt of a language model as tokens: the request first, so that all candidates share its beginning."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from retrievers.errors import BadInput
from retrievers.rerank.cutting import MAX_CUT, cut_middle
from retrievers.rerank.settings import MIN_TOOL

BEFORE_REQUEST = "Request: "
BEFORE_TOOL = "\nTool: "
QUESTION = "\nIs this tool needed for the request? Answer yes or no:"
ANSWERS = (" yes", " no")


class YesNoPrompt:
    """Builds prompts for one tokenizer."""

    def __init__(self, tokenizer: Any, max_length: int, max_tool: int) -> None:
        self._tokenizer = tokenizer
        self._before_request, self._before_tool, self._question = map(
            self._encode, (BEFORE_REQUEST, BEFORE_TOOL, QUESTION)
        )
        self.yes, self.no = (self._encode(answer)[0] for answer in ANSWERS)
        if self.yes == self.no:
            raise BadInput("the tokenizer writes yes and no with the same first token; take another base model")
        fixed = len(self._before_request) + len(self._before_tool) + len(self._question)
        self._room, self._max_tool = max_length - fixed, max_tool
        self._tool = lru_cache(MAX_CUT)(self._encode)

    def _encode(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return tokens

    def parts(self, request: str, tools: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """The tokens that all tools share, and the rest of the prompt per tool."""
        tokens = cut_middle(self._encode(request), self._room - MIN_TOOL)
        room = min(self._max_tool, self._room - len(tokens))
        shared = [*self._before_request, *tokens, *self._before_tool]
        return shared, [[*self._tool(tool)[:room], *self._question] for tool in tools]
