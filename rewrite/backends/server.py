"""A model on a server that speaks OpenAI's chat completions: vLLM, llama.cpp, Ollama, a provider.

What fails for want of the server is sent again after a while, and then raised: an answer is never made up. A prompt
that the server finds too long is no trouble of the batch: it gets no answers.

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
from rewrite.backends.streams import Answered
from rewrite.errors import BackendDown, Refused, Unfit
from rewrite.settings import Sampling, ServerSettings
from rewrite.types import Answer, Prompt

T = TypeVar("T")
TOO_LONG = re.compile(
    r"context[ _-]?(length|size|window)|maximum (model|input) length|prompt is too long|input token count", re.I
)


class ServerBackend:
    """Answers by POST /chat/completions, at most `concurrency` requests at a time whoever asks."""

    tells_too_long = True

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
        self._pool = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="ask")
        self._counts = True
        if adapter is not None:
            self.model = self._loaded(adapter)

    @cached_property
    def context(self) -> int | None:
        """Tokens that prompt and answer may have together: as set, or as the server's list of models says."""
        if self._settings.context:
            return self._settings.context
        response = self._client.send("GET", f"{self._url}/models")
        try:
            known = {model["id"]: model for model in response.json()["data"]} if response.is_success else {}
            named = known.get(self.model, {})
            # An adapter has the room of the model that it is for.
            most = named.get("max_model_len") or known.get(named.get("parent"), {}).get("max_model_len")
            return int(most) if most else None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def count(self, prompts: Sequence[Prompt]) -> list[int] | None:
        """Tokens of each prompt by vLLM's POST /tokenize; None, and never tried again, where there is no such thing."""
        if not prompts or not self._counts:
            return [] if self._counts else None
        first = self._counted(prompts[0], Event())
        self._counts = first is not None
        if first is None:
            return None
        rest = self._all(self._counted, prompts[1:])
        return None if None in rest else [first, *(number for number in rest if number is not None)]

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        """Answers in the prompts' order; no answer at all for a prompt that the server finds too long."""
        return self._all(lambda prompt, stop: self._answers(prompt, sampling, stop), prompts, show_progress)

    def stream(self, sampling: Sampling) -> ServerStream:
        """Prompts one by one, always as many under way as the server is allowed to have."""
        return ServerStream(self._pool, lambda prompt, stop: self._answers(prompt, sampling, stop), self._settings)

    def _all(
        self, ask: Callable[[Prompt, Event], T], prompts: Sequence[Prompt], show_progress: bool = False
    ) -> list[T]:
        """Asks for all prompts; the first trouble ends it."""
        stop = Event()
        places = {self._pool.submit(ask, prompt, stop): place for place, prompt in enumerate(prompts)}
        done: Iterable[Future[T]] = as_completed(places)
        found: dict[int, T] = {}
        try:
            for future in tqdm(done, total=len(places), unit="prompt", desc="answering") if show_progress else done:
                found[places[future]] = future.result()
        finally:
            stop.set()
            for future in places:
                future.cancel()
        return [found[place] for place in range(len(prompts))]

    def _answers(self, prompt: Prompt, sampling: Sampling, stop: Event) -> list[Answer]:
        found: list[Answer] = []
        while len(found) < sampling.answers:  # some servers give one answer however many are asked for
            missing = sampling.answers - len(found)
            body = {
                "model": self.model,
                "messages": prompt,
                "max_tokens": sampling.most_tokens,
                "temperature": sampling.temperature,
                "seed": sampling.seed + len(found),
                **({"top_p": sampling.top_p} if sampling.temperature > 0 else {}),
                **({"n": missing} if missing > 1 else {}),
            }
            response = self._client.send("POST", f"{self._url}/chat/completions", body, stop)
            if self._too_long(response):
                return []
            if not response.is_success:
                kind = Refused if response.status_code in (400, 413, 422) else Unfit
                raise kind(self._complaint(response))
            found += self._read(response)[:missing]
        return found

    def _read(self, response: httpx.Response) -> list[Answer]:
        """The answers in a response. It counts the tokens of all together: each is taken to have an equal share."""
        try:
            facts = response.json()
            choices = [(choice["message"].get("content") or "", choice["finish_reason"]) for choice in facts["choices"]]
            tokens = int((facts.get("usage") or {}).get("completion_tokens") or 0)
            share, over = divmod(tokens, len(choices))
        except (ValueError, LookupError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise BackendDown(
                f"{self._url} does not answer as an OpenAI server does; is it the url up to and with /v1?"
            ) from error
        return [Answer(text, share + (place < over), ended != "length") for place, (text, ended) in enumerate(choices)]

    def _counted(self, prompt: Prompt, stop: Event) -> int | None:
        body = {"model": self.model, "messages": prompt, "add_generation_prompt": True}
        response = self._client.send("POST", f"{self._url.removesuffix('/v1')}/tokenize", body, stop)
        if self._too_long(response) and self.context:
            return self.context + 1  # at the least
        try:
            return int(response.json()["count"]) if response.is_success else None
        except (ValueError, KeyError, TypeError):
            return None

    def _loaded(self, adapter: Path) -> str:
        """Has the server load an adapter. Its name tells its weights, so one that is loaded already is the same one."""
        try:
            digest = hashlib.sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest()[:12]
        except OSError as error:
            raise Unfit(f"{adapter} is not a LoRA adapter: it holds no adapter_model.safetensors") from error
        name = f"{adapter.resolve().name}-{digest}"
        body = {"lora_name": name, "lora_path": str(adapter.resolve())}
        # vLLM answers 500 where an adapter does not fit; that is no reason to ask again.
        response = self._client.send("POST", f"{self._url}/load_lora_adapter", body, again=False)
        if not response.is_success and "already" not in (told := self._client.message(response)):
            raise Unfit(
                f"the server {self._url} does not load the adapter {adapter} ({told}); it takes an adapter of that "
                "very model, and vLLM with --enable-lora, a --max-lora-rank that is high enough and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, on a machine that has this path"
            )
        return name

    def _too_long(self, response: httpx.Response) -> bool:
        return response.status_code in (400, 413, 422) and bool(TOO_LONG.search(self._client.message(response)))

    def _complaint(self, response: httpx.Response) -> str:
        ways = {
            401: f"put a key that it takes into ${self._settings.key_variable}",
            403: f"put a key that may do this into ${self._settings.key_variable}",
            404: f"look at the url and at the model's name, {self.model}",
        }
        way = ways.get(response.status_code, "change what it complains about")
        return f"the server {self._url} refuses ({self._client.message(response)}); {way}"


class ServerStream:
    """Prompts on their way to a server and back. Twice as many are held as may be under way: no thread ever waits."""

    overlaps = True

    def __init__(
        self, pool: ThreadPoolExecutor, ask: Callable[[Prompt, Event], list[Answer]], settings: ServerSettings
    ) -> None:
        self._pool, self._ask, self._most = pool, ask, 2 * settings.concurrency
        self._stop = Event()
        self._keys: dict[Future[list[Answer]], str] = {}

    @property
    def room(self) -> int:
        """How many more prompts it takes now."""
        return self._most - len(self._keys)

    def push(self, prompts: Sequence[tuple[str, Prompt]]) -> None:
        """Takes prompts, each under a key of its own."""
        for key, prompt in prompts:
            self._keys[self._pool.submit(self._ask, prompt, self._stop)] = key

    def pull(self) -> list[Answered]:
        """What has come back, at least one; a server that is down ends it."""
        done = wait(self._keys, return_when=FIRST_COMPLETED).done if self._keys else set()
        found: list[Answered] = []
        for future in done:
            key = self._keys.pop(future)
            try:
                found.append((key, future.result()))
            except Refused as error:
                found.append((key, str(error)))
        return found

    def close(self) -> None:
        """Drops what is under way."""
        self._stop.set()
        for future in self._keys:
            future.cancel()
        self._keys.clear()
