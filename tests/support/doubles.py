"""What several tests need: tools of all kinds, an encoder that counts, scripted answers, models, servers, states."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from retrievers.dense.encoder import fingerprint
from retrievers.kind import Context
from retrievers.settings import BM25Settings, DenseSettings, DenseTraining, TrainingSource
from retrievers.text import tokens
from retrievers.training_set import Examples, TrainingSet
from retrievers.types import Parameter, Tool
from reward.metrics import measure_rankings
from rewrite.settings import Sampling
from rewrite.types import Answer, Prompt

BM25_ONLY = {"bm25": BM25Settings()}
LEARNING = {"dense": DenseSettings(train=DenseTraining(data=(TrainingSource("a data set"),)))}
LESSONS = {
    "dense": [TrainingSet("a data set", ("weather",), Examples(("rain",), ((0,),)), Examples(("sun",), ((0,),)))]
}
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where tests that write a lot write fast; for a kill -9 memory is as good as a disk."""

QUERIES = [
    "weather in Athens tomorrow",
    "book me a flight and a hotel",
    "getStockPrice",
    "translate a text",
    "天气预报",
    "wie wird das Wetter",
    "list invoices of a customer",
    "provider3 cancel order",
    "nothing that anybody offers",
    "",
]

_VERBS = "get list find create cancel update track convert translate search book".split()
_NOUNS = "weather flight hotel order stockPrice invoice customer text currency parcel route recipe".split()
_EXTRAS = [
    "",
    "in Athens",
    "for tomorrow",
    "by city",
    "天气预报",
    "Wetter für morgen",
    "with a limit",
    "of a customer",
    "🌦 \u2028",
]


def varied_tools(count: int, start: int = 0) -> list[Tool]:
    """Tools as real catalogues have them: uneven, some without a word of description, some nearly the same."""
    return [_tool(number) for number in range(start, start + count)]


def _tool(number: int) -> Tool:
    chance = random.Random(number)
    verb, noun, other = chance.choice(_VERBS), chance.choice(_NOUNS), chance.choice(_NOUNS)
    names = [f"{verb}{noun.capitalize()}", f"{verb}_{noun}", f"v{number % 4}/{verb}-{noun}"]
    said = [f"{verb} the {noun} {chance.choice(_EXTRAS)}", f"{noun} and {other}. " * chance.randint(1, 4), ""]
    parameters = [Parameter(name, "string", f"the {name} to use", True) for name in (other, "limit")]
    return Tool(
        id=f"tool-{number:03}",
        name=chance.choice(names),
        description=chance.choice(said).strip(),
        parameters=tuple(parameters[: chance.randint(0, 2)]),
        category=f"category{number % 5}",
        provider=f"provider{number % 7}",
    )


def changed(tool: Tool, note: str = "now with more words") -> Tool:
    """The same id, other content."""
    return replace(tool, description=f"{tool.description} {note}".strip())


class CountingEncoder:
    """Vectors out of words, and a memory of what was asked. Any sum of products is exact, in whatever order."""

    def __init__(self, fingerprint: str, dimensions: int = 64) -> None:
        self.fingerprint, self._dimensions = fingerprint, dimensions
        self.embedded: list[str] = []

    def documents(self, texts: Sequence[str]) -> np.ndarray:
        self.embedded.extend(texts)
        return np.stack([self._vector(text) for text in texts])

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self._vector(text) for text in texts])

    def _vector(self, text: str) -> np.ndarray:
        """Four places of 0.5, chosen by the text's words: length 1."""
        vector = np.zeros(self._dimensions, np.float32)
        digests = [hashlib.sha256(word.encode()).digest() for word in sorted(set(tokens(text)))] or [b"\0"]
        places: dict[int, None] = {}
        for digest in [*digests, *(bytes([number]) for number in range(8))]:
            places.setdefault(digest[0] % self._dimensions)
        vector[list(places)[:4]] = 0.5
        return vector


class ScriptedBackend:
    """Answers as a test says, and a memory of what was asked: for what is counted and fused, not for how models answer.

    `rewrite.backends.base.KINDS` names it in place of a backend: "doubles:ScriptedBackend".
    """

    script: ClassVar[Callable[[str], str | None]]
    """What the user's message is answered with; None: it turns out too long."""
    asked: ClassVar[list[str]] = []
    context = None
    rejects_long_prompts = True

    def __init__(self, *parts: object) -> None:
        pass

    def count(self, prompts: Sequence[Prompt]) -> list[int] | None:
        return None

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        said = [prompt[-1]["content"] for prompt in prompts]
        self.asked.extend(said)
        answers = [type(self).script(text) for text in said]
        return [[] if text is None else [Answer(text, len(text.split()) + 1)] for text in answers]


def tiny_model(folder: Path, weights: bytes = b"the weights") -> Path:
    """A model folder as far as fingerprints go."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def learn_at_once(kind: object, sets: Sequence[TrainingSet], work: Path) -> Path:
    """In place of `DenseKind.train`: always the same model, without the hours."""
    return tiny_model(work / "model", b"tuned weights")


def no_model(reference: str) -> Path:
    """For indexes that have no business with models."""
    raise AssertionError(f"somebody asked for the model {reference}")


def counting_context(model: Path, cache: Path | None = None, *others: Path) -> tuple[Context, CountingEncoder]:
    """A world in which every model is the one in that folder, and encoding by it (or by the others) is counted."""
    encoder = CountingEncoder(fingerprint(model))
    known = {fingerprint(other): CountingEncoder(fingerprint(other)) for other in others}
    encoders = {**known, encoder.fingerprint: encoder}
    return Context(lambda reference: model, cache, encoders=encoders, measure=measure_rankings), encoder


def plain_context() -> Context:
    """A world without models."""
    return Context(no_model, measure=measure_rankings)


def state(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes. The writers' lock holds nothing and may stay."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


Reply = tuple[int, Any]
"""A status, and bytes or what becomes JSON."""


class ModelServer(ThreadingHTTPServer):
    """A real HTTP server in a model's place: it answers as `answer` says, or has the `manners` that a test gives it."""

    daemon_threads = True
    request_queue_size = 128
    name = "rewriter"

    def __init__(self, answer: Callable[[str], str] = lambda text: f"- {text}", port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _ModelHandler)
        self.answer = answer
        self.manners: Callable[[BaseHTTPRequestHandler, dict[str, Any]], Reply | None] = lambda handler, body: None
        """What a chat completion is answered with; None: as usual."""
        self.asked: list[dict[str, Any]] = []
        self.context = 2048
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def reply(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Reply | None:
        if handler.path == "/v1/models":
            return 200, {"data": [{"id": self.name, "max_model_len": self.context}]}
        if handler.path == "/tokenize":
            return 200, {"count": sum(len(message["content"].split()) for message in body["messages"])}
        if handler.path != "/v1/chat/completions":
            return 404, {"error": {"message": "not here"}}
        self.asked.append(body)
        return self.manners(handler, body) or completion(self.answer(body["messages"][-1]["content"]), body["model"])


def completion(text: Any, model: str = "rewriter", reason: str = "stop") -> Reply:
    """A chat completion."""
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return 200, {"model": model, "choices": [choice], "usage": {"completion_tokens": 3}}


class _ModelHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelServer

    def do_GET(self) -> None:
        self._send(self.server.reply(self, {}))

    def do_POST(self) -> None:
        self._send(self.server.reply(self, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

    def _send(self, reply: Reply | None) -> None:
        status, facts = reply or (500, {})
        data = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True  # nobody waited

    def log_message(self, *_: object) -> None:
        pass


def recordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has models answer the way they do on a GPU, but each step by itself instead of as a record of one."""
    for room in ("rewrite.backends.in_process", "rewrite.align.groups.trainers", "rewrite.align.ppo.trainer"):
        monkeypatch.setattr(f"{room}.can_record", lambda model, copied=False: True)
    monkeypatch.setattr("rewrite.speedups.decoding.Decoding._record", lambda self: self._advance)
