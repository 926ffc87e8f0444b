"""A model on a server with OpenAI's chat completions: vLLM, llama.cpp, Ollama, a provider.

Failures of the server are retried, then raised. A prompt that the server finds too long does not fail the batch: it
gets no answers.

A server may have defaults of its own, such as vLLM's top_k and repetition_penalty from the model's generation_config;
vLLM started with `--generation-config vllm` has none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import TypeVar

import httpx
from tqdm import tqdm

from rewrite.backends.http_client import HttpClient
from rewrite.backends.streams import StreamResult
from rewrite.errors import BackendDown, PromptRefused, RewriteError
from rewrite.settings import Sampling, ServerSettings
from rewrite.types import Answer, Prompt

T = TypeVar("T")
TOO_LONG = re.compile(
    r"context[ _-]?(length|size|window)|maximum (model|input) length|prompt is too long|input token count", re.I
)


class ServerBackend:
    """Answers by POST /chat/completions, with at most `concurrency` requests at a time over all callers."""

    rejects_long_prompts = True

    def __init__(
        self,
        settings: ServerSettings,
        model: Path | None = None,
        adapter: Path | None = None,
        device: str | None = None,
    ) -> None:
        self._settings, self.model = settings, settings.model
        self._client = HttpClient(settings)
        self._url = self._client.url
        self._pool = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="prompt")
        self._can_count = True
        if adapter is not None:
            self.model = self._load_adapter(adapter)

    @cached_property
    def context(self) -> int | None:
        """Tokens of prompt and answer together: as set, or from the server's list of models."""
        if self._settings.context:
            return self._settings.context
        response = self._client.send("GET", f"{self._url}/models")
        try:
            known = {model["id"]: model for model in response.json()["data"]} if response.is_success else {}
            named = known.get(self.model, {})
            # An adapter has the context of its model.
            tokens = named.get("max_model_len") or known.get(named.get("parent"), {}).get("max_model_len")
            return int(tokens) if tokens else None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def count(self, prompts: Sequence[Prompt]) -> list[int] | None:
        """Tokens of each prompt by vLLM's POST /tokenize; None, and never tried again, where the server lacks it."""
        if not prompts or not self._can_count:
            return [] if self._can_count else None
        first = self._count_one(prompts[0], Event())
        self._can_count = first is not None
        if first is None:
            return None
        rest = self._map(self._count_one, prompts[1:])
        return None if None in rest else [first, *(number for number in rest if number is not None)]

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        """Answers in the prompts' order; none for a prompt that the server finds too long."""
        return self._map(lambda prompt, stop: self._answers(prompt, sampling, stop), prompts, show_progress)

    def stream(self, sampling: Sampling) -> ServerStream:
        """A stream of prompts that keeps the server at its full concurrency."""
        return ServerStream(self._pool, lambda prompt, stop: self._answers(prompt, sampling, stop), self._settings)

    def _map(
        self, send: Callable[[Prompt, Event], T], prompts: Sequence[Prompt], show_progress: bool = False
    ) -> list[T]:
        """Sends all prompts; the first failure ends it."""
        stop = Event()
        futures = [self._pool.submit(send, prompt, stop) for prompt in prompts]
        done: Iterable[Future[T]] = as_completed(futures)
        try:
            for future in tqdm(done, total=len(futures), unit="prompt", desc="answering") if show_progress else done:
                future.result()
        finally:
            stop.set()
            for future in futures:
                future.cancel()
        return [future.result() for future in futures]

    def _answers(self, prompt: Prompt, sampling: Sampling, stop: Event) -> list[Answer]:
        answers: list[Answer] = []
        while len(answers) < sampling.answers:  # some servers give one answer only
            missing = sampling.answers - len(answers)
            body = {
                "model": self.model,
                "messages": prompt,
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "seed": sampling.seed + len(answers),
                **({"top_p": sampling.top_p} if sampling.temperature > 0 else {}),
                **({"n": missing} if missing > 1 else {}),
            }
            response = self._client.send("POST", f"{self._url}/chat/completions", body, stop)
            if self._is_too_long(response):
                return []
            if not response.is_success:
                kind = PromptRefused if response.status_code in (400, 413, 422) else RewriteError
                raise kind(self._refusal(response))
            answers += self._parse(response)[:missing]
        return answers

    def _parse(self, response: httpx.Response) -> list[Answer]:
        """The answers in a response. It counts the tokens of all together; each gets an equal share."""
        try:
            facts = response.json()
            choices = [(choice["message"].get("content") or "", choice["finish_reason"]) for choice in facts["choices"]]
            tokens = int((facts.get("usage") or {}).get("completion_tokens") or 0)
            share, over = divmod(tokens, len(choices))
        except (ValueError, LookupError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise BackendDown(
                f"{self._url} does not answer as an OpenAI server does; is its url given up to and including /v1?"
            ) from error
        return [
            Answer(text, share + (index < over), reason != "length") for index, (text, reason) in enumerate(choices)
        ]

    def _count_one(self, prompt: Prompt, stop: Event) -> int | None:
        body = {"model": self.model, "messages": prompt, "add_generation_prompt": True}
        response = self._client.send("POST", f"{self._url.removesuffix('/v1')}/tokenize", body, stop)
        if self._is_too_long(response) and self.context:
            return self.context + 1  # or more
        try:
            return int(response.json()["count"]) if response.is_success else None
        except (ValueError, KeyError, TypeError):
            return None

    def _load_adapter(self, adapter: Path) -> str:
        """Makes the server load an adapter. Its name has the hash of its weights, so a loaded one is the same."""
        try:
            digest = hashlib.sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest()[:12]
        except OSError as error:
            raise RewriteError(f"{adapter} is not a LoRA adapter: it holds no adapter_model.safetensors") from error
        name = f"{adapter.resolve().name}-{digest}"
        body = {"lora_name": name, "lora_path": str(adapter.resolve())}
        # vLLM answers 500 where an adapter does not fit; a retry would not help.
        response = self._client.send("POST", f"{self._url}/load_lora_adapter", body, retry=False)
        if not response.is_success and "already" not in (message := self._client.message(response)):
            raise RewriteError(
                f"the server {self._url} does not load the adapter {adapter} ({message}); the adapter must belong to "
                "the served model, and vLLM needs --enable-lora, a sufficient --max-lora-rank, "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and access to this path"
            )
        return name

    def _is_too_long(self, response: httpx.Response) -> bool:
        return response.status_code in (400, 413, 422) and bool(TOO_LONG.search(self._client.message(response)))

    def _refusal(self, response: httpx.Response) -> str:
        ways = {
            401: f"put a valid key into ${self._settings.key_variable}",
            403: f"put a key with that permission into ${self._settings.key_variable}",
            404: f"check the url and the model's name, {self.model}",
        }
        way = ways.get(response.status_code, "change the setting that it names")
        return f"the server {self._url} refuses ({self._client.message(response)}); {way}"


class ServerStream:
    """Prompts in flight. Holds twice as many as may be in flight, so that no thread waits."""

    overlaps = True

    def __init__(
        self, pool: ThreadPoolExecutor, send: Callable[[Prompt, Event], list[Answer]], settings: ServerSettings
    ) -> None:
        self._pool, self._send, self._capacity = pool, send, 2 * settings.concurrency
        self._stop = Event()
        self._keys: dict[Future[list[Answer]], str] = {}

    @property
    def capacity(self) -> int:
        return self._capacity - len(self._keys)

    def push(self, prompts: Sequence[tuple[str, Prompt]]) -> None:
        for key, prompt in prompts:
            self._keys[self._pool.submit(self._send, prompt, self._stop)] = key

    def pull(self) -> list[StreamResult]:
        """Finished prompts, at least one; a server that is down ends it."""
        done = wait(self._keys, return_when=FIRST_COMPLETED).done if self._keys else set()
        results: list[StreamResult] = []
        for future in done:
            key = self._keys.pop(future)
            try:
                results.append((key, future.result()))
            except PromptRefused as error:
                results.append((key, str(error)))
        return results

    def close(self) -> None:
        self._stop.set()
        for future in self._keys:
            future.cancel()
        self._keys.clear()
