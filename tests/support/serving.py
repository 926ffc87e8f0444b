"""A real server in a thread, in front of a real index, called over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from doubles import ModelServer
from waiting import PATIENCE, until

from pipelines.config import parse
from pipelines.serve.gateway import Gateway
from pipelines.serve.server import Server
from pipelines.serve.settings import ServeConfig
from retrievers.dense.encoder import fingerprint
from rewrite.folder import RewriterCard, save_rewriter
from rewrite.template import Template

PATIENT = 20_000
"""Milliseconds in which a model answers on any machine."""


class Running:
    """A server that is up, and a client for it."""

    def __init__(self, gateway: Gateway, port: int) -> None:
        self.gateway, self.port = gateway, port
        self.url = f"http://127.0.0.1:{port}"
        # Nothing here has a certificate, and to load all that are known takes 60 ms.
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False, verify=False)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def search(self, utterance: str | list[str], **more: Any) -> dict[str, Any]:
        """A search that must succeed."""
        response = self.post("/v1/search", utterance=utterance, **more)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def until_ready(self) -> None:
        """Waits for the rewriter."""
        until(lambda: self.client.get("/readyz").json()["rewriter"] == "ready")


@contextmanager
def running(config: dict[str, Any]) -> Iterator[Running]:
    """Serves a config as the command would, on any port that is free; models may take their time on a busy machine."""
    usual = {"port": 0, "anonymous": ["search", "write"], "deadline_ms": PATIENT}
    gateway = Gateway(parse(ServeConfig, {**usual, **config}), "cpu")
    server = Server(gateway)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive(), 0.01)
        assert server.started, "it ended before it listened"
        made = Running(gateway, server.port)
        with made.client:
            yield made
    finally:
        server.should_exit = True
        thread.join()


def rewriter(*models: ModelServer, **more: Any) -> dict[str, Any]:
    """The config of a rewriter that these serve."""
    engine = {"kind": "servers", "urls": [each.url for each in models], "model": "rewriter"}
    return {"template": "needs", "backend": engine, "fusion": {"raw": 0.5}, **more}


def make_test_rewriter(base: Path, folder: Path, seed: int, *searches: str) -> None:
    """An adapter whose answers always begin a line, written as training writes rewriters; another for every seed.

    `searches` are the retrievers in front of which its share of the raw query was chosen."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    template = Template("any", 1, "", "{utterance}", line="{query}")
    data = [{"dataset": "any", "searches": each} for each in searches]
    card = RewriterCard(str(base), fingerprint(base), "lora", fusion={"method": "weighted", "raw": 0.5}, data=data)
    save_rewriter(folder, model, tokenizer, card, template)
