"""A second adapter in the rewriter's vLLM: a reranker with the same base model needs no process of its own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pipelines.serve.rewriter.vllm_process import KEY_VARIABLE, MODEL_NAME
from rewrite.backends.server import ServerBackend
from rewrite.settings import ServerSettings

LOAD_SECONDS = 60.0
"""Seconds for vLLM to load the adapter."""


class NotStarted(ConnectionError):
    """vLLM is not up yet, or has not loaded the adapter."""


@dataclass(slots=True)
class SecondAdapter:
    """An adapter, and where it is served."""

    base: Path
    """The folder of the base model."""
    adapter: Path
    url: str = ""
    """Of the vLLM that has it; empty: none has."""
    name: str = ""
    """Its name there."""
    refusal: str = ""
    """Why no vLLM will have it; empty: one has it, or is starting."""

    @property
    def rank(self) -> int:
        """The LoRA rank that vLLM must reserve."""
        from rewrite.backends.vllm_engine import max_lora_rank  # loads torch: 400 MB that other servers do not need

        return max_lora_rank(self.adapter, self.base)

    def load(self, url: str, model: Path | None) -> None:
        """Let a vLLM of `model` load it; raises OSError or ValueError if that fails."""
        self.refusal = "" if model == self.base else f"the newer rewriter has another base than {self.base}"
        if self.refusal:
            raise ValueError(self.refusal)
        settings = ServerSettings(url, MODEL_NAME, key_variable=KEY_VARIABLE, timeout=LOAD_SECONDS, retries=0)
        self.name = ServerBackend(settings, adapter=self.adapter).model
        self.url = url

    def post(self, body: dict[str, Any]) -> Any:
        """Complete prompts with it; raises ConnectionError if that fails."""
        if self.refusal:
            raise ConnectionError(self.refusal)
        if not self.url:
            raise NotStarted("vLLM is not up yet")
        headers = {"Authorization": f"Bearer {os.environ.get(KEY_VARIABLE, '')}"}
        try:
            with httpx.Client(timeout=LOAD_SECONDS, trust_env=False, verify=False) as client:  # the loopback has no TLS
                response = client.post(f"{self.url}/completions", json={"model": self.name, **body}, headers=headers)
                response.raise_for_status()
                return response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise ConnectionError(f"vLLM does not answer ({type(error).__name__})") from error
