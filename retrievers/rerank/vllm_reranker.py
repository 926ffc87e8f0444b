"""A language model in vLLM, in this process or on a server: one token per candidate, and its logits of yes and no.

vLLM caches the tokens that the candidates of a request share.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrievers.errors import StoreDown
from retrievers.rerank.prompt import YesNoPrompt

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""LoRA ranks that vLLM supports."""


def lora_rank(adapter: Path) -> int:
    """The smallest rank that vLLM supports and that holds an adapter."""
    rank = int(json.loads((adapter / "adapter_config.json").read_text())["r"])
    return next(known for known in LORA_RANKS if known >= rank)


def load_prompt(model: Path, max_length: int, max_tool: int) -> YesNoPrompt:
    """The prompt of a model folder; loads the tokenizer alone."""
    from transformers import AutoTokenizer

    return YesNoPrompt(AutoTokenizer.from_pretrained(str(model)), max_length, max_tool)


def whole_prompts(
    prompt: YesNoPrompt, queries: Sequence[str], documents: Sequence[Sequence[str]]
) -> tuple[list[list[int]], list[int]]:
    """Tokens of all prompts, and where the lists end."""
    prompts: list[list[int]] = []
    for query, tools in zip(queries, documents, strict=True):
        shared, rests = prompt.parts(query, tools)
        prompts += [[*shared, *rest] for rest in rests]
    return prompts, np.cumsum([len(tools) for tools in documents]).tolist()


def split_scores(scores: Sequence[float], ends: Sequence[int]) -> list[np.ndarray]:
    """Scores per query."""
    return np.split(np.array(scores, dtype=np.float64), ends[:-1]) if ends else []


class VllmReranker:
    """A vLLM of this process."""

    def __init__(
        self,
        start: Callable[..., Any],
        model: Path,
        adapter: Path | None,
        max_length: int,
        max_tool: int,
        fingerprint: str = "",
    ) -> None:
        """`start` starts vLLM with a model folder and options."""
        self.fingerprint, self.prompt = fingerprint, load_prompt(model, max_length, max_tool)
        options: dict[str, Any] = {"max_model_len": max_length + 1, "enable_prefix_caching": True}
        self._lora: Any = None
        if adapter is not None:
            from vllm.lora.request import LoRARequest

            options |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": lora_rank(adapter)}
            self._lora = LoRARequest("reranker", 1, str(adapter.resolve()))
        self._vllm, self._lock = start(model, **options), threading.Lock()

    def score(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """All prompts in one batch."""
        from vllm import SamplingParams

        prompts, ends = whole_prompts(self.prompt, queries, documents)
        if not prompts:
            return split_scores([], ends)
        yes, no = self.prompt.yes, self.prompt.no
        params = SamplingParams(max_tokens=1, temperature=0.0, logprob_token_ids=[yes, no], detokenize=False)
        with self._lock:
            answers = self._vllm.generate(
                [{"prompt_token_ids": tokens} for tokens in prompts], params, lora_request=self._lora
            )
        rows = [answer.outputs[0].logprobs[0] for answer in answers]
        return split_scores([row[yes].logprob - row[no].logprob for row in rows], ends)


class ServerReranker:
    """A vLLM server that has the model, such as the one that also runs the rewriter."""

    def __init__(self, prompt: YesNoPrompt, post: Callable[[dict[str, Any]], Any], fingerprint: str = "") -> None:
        """`post` sends the body of a completion and returns the response's JSON; it raises OSError if it cannot."""
        self.prompt, self._post, self.fingerprint = prompt, post, fingerprint

    def score(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """All prompts in one request."""
        prompts, ends = whole_prompts(self.prompt, queries, documents)
        if not prompts:
            return split_scores([], ends)
        yes, no = self.prompt.yes, self.prompt.no
        answer = self._post(
            {
                "prompt": prompts,
                "max_tokens": 1,
                "temperature": 0.0,
                "logprobs": 2,
                "logprob_token_ids": [yes, no],
                "return_tokens_as_token_ids": True,
            }
        )
        try:
            choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
            rows = [choice["logprobs"]["top_logprobs"][0] for choice in choices]
            scores = [float(row[f"token_id:{yes}"]) - float(row[f"token_id:{no}"]) for row in rows]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise StoreDown("the server's answer holds no logits of yes and no; is it vLLM?") from error
        if len(scores) != len(prompts):
            raise StoreDown(f"the server answered {len(scores)} of {len(prompts)} prompts")
        return split_scores(scores, ends)
