"""Rollouts by any vLLM server that loads adapters: the policy's LoRA is written to a disk that both see and reloaded.

TRL ships weights to its own servers by NCCL, which wants CUDA on both sides. An adapter is a few megabytes: writing and
loading it takes a fraction of a second, on CPUs too. Prompts and answers travel as tokens, so that nothing is lost in
between; every answer has a seed of its own, made of the run's seed, the step and its place, so that a resumed run draws
what an uninterrupted one would have drawn.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from rewrite.align.settings import Rollouts
from rewrite.backends.http_client import HttpClient
from rewrite.errors import BackendDown, Unfit
from rewrite.settings import ServerSettings

NAME = "policy"
"""What the server knows the adapter by."""
ADAPTER = "default"
"""What PEFT knows it by; a reference beside it stays here."""
TRIES, WAIT = 4, 5.0
"""How often a rollout server is asked, and the seconds before the second time; each further wait is twice as long."""
T = TypeVar("T")


def persistent(work: Callable[[], T], server: str, wait: float = WAIT) -> T:
    """Work that needs the rollout server, tried again while it may be coming back; then the run ends, resumable."""
    for attempt in range(TRIES):
        try:
            return work()
        except OSError as error:
            if attempt == TRIES - 1:
                raise gone(server, error) from error
            time.sleep(wait * 2**attempt)
    raise AssertionError("the last try returns or raises")


def gone(server: str, error: OSError) -> BackendDown:
    """What is said of a rollout server that stays away."""
    return BackendDown(
        f"the rollout server {server} does not answer ({error}); start it again, then go on with `--resume` from the "
        "last checkpoint"
    )


class AdapterServer:
    """A vLLM server that writes with the policy's newest adapter."""

    def __init__(self, settings: Rollouts, folder: Path, seed: int) -> None:
        """`folder` is where adapters are written; the server reads them from the same path."""
        self._settings, self._folder, self._seed = settings, folder.resolve(), seed
        plain = ServerSettings(settings.url, NAME, key_variable=settings.key_variable, timeout=300.0, retries=1)
        self._client = HttpClient(plain)
        self.url = self._client.url
        self._pool = ThreadPoolExecutor(plain.concurrency, thread_name_prefix="rollout")
        self._at = -1

    def take(self, model: Any, step: int, writes: bool) -> None:
        """Has the server load the weights of a step, unless it has them. Of several processes one `writes`."""
        if step == self._at:
            return
        if writes:
            fresh = self._folder / f"step-{step}"
            shutil.rmtree(fresh, ignore_errors=True)
            model.save_pretrained(fresh, selected_adapters=[ADAPTER])
            body = {"lora_name": NAME, "lora_path": str(fresh), "load_inplace": True}
            response = self._client.send("POST", f"{self.url}/load_lora_adapter", body, again=False)
            if not response.is_success:
                raise Unfit(
                    f"the rollout server {self.url} does not load the policy's adapter "
                    f"({self._client.message(response)}); it must serve the policy's base model, with --enable-lora, a "
                    "--max-lora-rank that is high enough and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and see this path"
                )
            for old in self._folder.glob("step-*"):
                if old != fresh:
                    shutil.rmtree(old, ignore_errors=True)
        self._at = step

    def forget(self) -> None:
        """Ships the adapter once more at the next try: a server that was started again does not have it."""
        self._at = -1

    def write(self, prompts: Sequence[Sequence[int]], step: int, first: int = 0) -> list[list[int]]:
        """An answer a prompt, as tokens, its end token included where it has ended."""
        places = range(first, first + len(prompts))
        return list(self._pool.map(lambda prompt, place: self._one(prompt, place, step), prompts, places))

    def _one(self, prompt: Sequence[int], place: int, step: int) -> list[int]:
        settings = self._settings
        drawn = hashlib.sha256(f"{self._seed} {step} {place}".encode()).digest()
        body = {
            "model": NAME,
            "prompt": list(prompt),
            "max_tokens": settings.most_tokens,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "top_k": -1,
            "repetition_penalty": 1.0,
            "seed": int.from_bytes(drawn[:4]) >> 1,
            "return_token_ids": True,
        }
        response = self._client.send("POST", f"{self.url}/completions", body)
        if response.status_code == 404:
            self.forget()
            raise BackendDown(self._client.message(response))
        if not response.is_success:
            raise Unfit(f"the rollout server {self.url} refuses ({self._client.message(response)})")
        try:
            tokens = response.json()["choices"][0]["token_ids"]
            return [int(token) for token in tokens]
        except (ValueError, LookupError, TypeError) as error:
            raise Unfit(f"the rollout server {self.url} tells no token ids; it has to be vLLM 0.11 or later") from error
