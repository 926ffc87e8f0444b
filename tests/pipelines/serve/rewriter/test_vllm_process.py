"""The whole path as users start it: detector, MassTool, a real vLLM with adapters, live tools, confirmations."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from killing import started
from paths import ROOT
from processes import CODE
from waiting import PATIENCE, until

from pipelines.context import make_context
from pipelines.data.sample_data import sample_folder
from pipelines.rerank.stage import RerankStage
from pipelines.search import ToolSearch
from retrievers.dense.encoder import fingerprint
from retrievers.index import Index
from retrievers.rerank.folder import RerankChoice, RerankerCard, write_card
from retrievers.rerank.language_model import LanguageModelReranker
from retrievers.rerank.settings import LanguageModelSettings
from retrievers.settings import RewriteFusion
from retrievers.types import Ranking
from rewrite.folder import RewriterCard, save_rewriter
from rewrite.template import Template
from rewrite.types import RewriteRequest

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
TEMPLATE = Template("short", 1, "", "{utterance}")
LESSONS = ("will I need a coat tonight", "300 kronor in euro", "play some jazz", "a table for six in Lyon")
FUSION = {"method": "weighted", "raw": 0.5}
LIMITS = 256, 64
"""Tokens that the reranker reads."""
ANSWERS = {"first": "- weather forecast by city", "second": "- convert a currency"}


def train(base: Path, folder: Path, answer: str, merged: Path | None = None) -> None:
    """Teach an adapter one answer to everything, in a few steps, and save it as training saves rewriters.

    `merged`: a folder for the same merged into its model, as `rewrite-train merge` does.
    """
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    torch.manual_seed(0)
    config = peft.LoraConfig(
        r=8,
        lora_alpha=32,
        target_modules=["q_proj", "v_proj", "down_proj"],
        layers_to_transform=list(range(22, 30)),  # the last ones: the gradient has a short way
        task_type="CAUSAL_LM",
    )
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    asked = [
        tokenizer.apply_chat_template(
            TEMPLATE.render(RewriteRequest(text)), add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for text in LESSONS
    ]
    told = tokenizer(f"{answer}<|im_end|>", add_special_tokens=False)["input_ids"]
    optimizer = torch.optim.AdamW((weight for weight in model.parameters() if weight.requires_grad), lr=4e-3)
    for step in range(12):
        prompt = asked[step % len(asked)]
        tokens = torch.tensor([[*prompt, *told]])
        labels = torch.tensor([[*[-100] * len(prompt), *told]])
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    card = RewriterCard("bundled:smollm2-135m", fingerprint(base), "lora", fusion=FUSION)
    save_rewriter(folder, model, tokenizer, card, TEMPLATE)
    if merged is not None:
        save_rewriter(merged, model.merge_and_unload(), tokenizer, replace(card, method="full"), TEMPLATE)


def write_reranker(base: Path, folder: Path) -> None:
    """An adapter that answers yes and no by chance, of the rewriter's base."""
    model = LanguageModelReranker(base, *LIMITS, "cpu")
    model.prepare_training(LanguageModelSettings(str(base), rank=16))
    torch.manual_seed(0)
    for name, parameter in model.trained.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    model.save(folder)
    choice = RerankChoice("trained masstool", 6, 1.0)
    card = RerankerCard("language-model", "bundled:smollm2-135m", fingerprint(base), "lora", *LIMITS, (choice,))
    write_card(folder, card)


class Served:
    """A `rewrite-serve` that runs."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log
        assert process.stdout is not None
        self.line = process.stdout.readline().decode()
        assert "http://" in self.line, log.read_text()
        self.client = httpx.Client(base_url=self.line.split()[1].strip(","), timeout=PATIENCE, trust_env=False)

    def until(self, state: str) -> None:
        try:
            until(lambda: self.client.get("/readyz").json()["rewriter"] == state, 0.2, patience=420)
        except AssertionError as error:
            raise AssertionError(f"it is never {state}: {self.log.read_text()}") from error

    def search(self, text: str, **more: Any) -> dict[str, Any]:
        """The result of an utterance that needs a tool."""
        found = self.ask(text, **more)
        assert len(found["tools"]) == more.get("k", 3)
        return found

    def ask(self, text: str, **more: Any) -> dict[str, Any]:
        got = self.client.post("/v1/search", json={"utterance": text, "k": 3, "rerank": "off", **more})
        assert got.status_code == 200, got.text
        [result] = got.json()["results"]
        found: dict[str, Any] = result
        return found

    @property
    def folder(self) -> Path:
        return self.log.parent

    def vllm(self) -> list[psutil.Process]:
        return [
            each
            for each in psutil.Process(self.process.pid).children(recursive=True)
            if "vllm.entrypoints.openai.api_server" in each.cmdline()
            and "child_guard.py" not in " ".join(each.cmdline())
        ]


@pytest.fixture(scope="module")
def served(language_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    for name, answer in ANSWERS.items():
        train(language_model, folder / name, answer, folder / "whole" if name == "first" else None)
    (folder / "rewriter").symlink_to(folder / "first")
    write_reranker(language_model, folder / "reranker")
    shutil.copytree(sample_folder() / "index", folder / "index")
    values = {
        "index": folder / "index",
        "rewriter.path": folder / "rewriter",
        "rewriter.sampling.max_tokens": 12,
        "rewriter.fusion": "null",  # as the card says
        "rewriter.backend.logs": folder / "logs",
        "rerank": f"{{path: {folder / 'reranker'}, engine: vllm}}",
        "feedback": folder / "feedback",
        "reports": "{}",
        "port": 0,
        "deadline_ms": 60_000,
        "max_deadline_ms": 60_000,
        "watch_seconds": 0.2,
        "detection_threshold": 0.4,
    }
    words = [sys.executable, "-c", CODE, str(ROOT / "configs/serve/sample.yaml")]
    words += [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    with (
        (folder / "serve.log").open("wb") as log,
        started(words, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        yield Served(process, folder / "serve.log")


class Load:
    """Callers that ask again and again, and what each answer was."""

    def __init__(self, served: Served, callers: int = 3) -> None:
        self.results: list[dict[str, Any]] = []
        self.errors: list[BaseException] = []
        self._served, self._stop = served, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(callers)]

    def _ask(self, caller: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                found = self._served.search(f"new words {caller} {number}: what will the weather be")
                self.results.append(found)
                if found["fallback"]:
                    self._stop.wait(0.05)  # raw answers take no time: vLLM starts sooner where fewer are asked for
            except BaseException as error:
                self.errors.append(error)
                return

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_before_vllm_is_up_answers_are_raw_and_then_they_are_not(served: Served) -> None:
    assert "224 tools, masstool, " in served.line
    assert "rewriter by vLLM, managed" in served.line
    assert served.search("what will the weather be")["fallback"] == {"reason": "starting"}
    served.until("ready")
    result = served.search("what will the weather be")
    assert result["fallback"] is None
    assert result["rewrite"]["lines"] == ["weather forecast by city"]
    assert {place["list"] for tool in result["tools"] for place in tool["found_by"]} >= {"line 1"}
    got = served.client.post(
        "/v1/rewrite", json={"utterance": ["300 kronor in euro", "what will the weather be"]}
    ).json()
    assert [each["rewrite"]["lines"] for each in got["results"]] == [["weather forecast by city"]] * 2
    assert [each["rewrite"]["cached"] for each in got["results"]] == [False, True]


def test_the_list_is_that_of_masstool_for_utterance_and_lines(served: Served) -> None:
    text = "is it worth hanging out the washing"
    result, raw = served.search(text), served.search(text, rewrite="off")
    search = ToolSearch(Index(served.folder / "index", make_context("cpu")), "masstool")
    [ranking], [line] = search.retrieve([text], 100), search.retrieve(["weather forecast by city"], 100)
    assert ids(raw) == list(search.fuse(text, ranking, (), 3).ids)
    assert ids(result) == list(search.fuse(text, ranking, [line], 3, RewriteFusion(**FUSION)).ids)
    assert ids(result) != ids(raw)
    assert result["detection"]["needs_tool"]


def test_the_reranker_is_a_second_adapter_of_the_same_vllm(served: Served, language_model: Path) -> None:
    text = "is it worth hanging out the washing"
    result, first = served.ask(text, rerank="auto", k=6), served.ask(text, k=6)
    assert result["rerank"] == {"tools": 6, "weight": 1.0, "fallback": None}
    assert result["rewrite"]["lines"] == ["weather forecast by city"]
    [vllm] = served.vllm()
    assert vllm.cmdline()[vllm.cmdline().index("--max-loras") + 1] == "2"
    model = LanguageModelReranker(language_model, *LIMITS, "cpu", served.folder / "reranker")
    search = ToolSearch(Index(served.folder / "index", make_context("cpu")), "masstool")
    order = Ranking(tuple(ids(first)), tuple(tool["score"] for tool in first["tools"]))
    [reranked] = search.rerank([text], [order], RerankStage(model, 6, 1.0))
    assert ids(result) == list(reranked.ranking.ids) != ids(first)


def test_where_no_tool_is_needed_vllm_is_not_asked(served: Served) -> None:
    before = metric(served, "toolrewrite_rewrite_cache_total")
    result = served.ask("good morning, how are you")
    assert (result["detection"]["needs_tool"], result["tools"], result["rewrite"]) == (False, [], None)
    assert result["not_asked"] == "detector"
    assert metric(served, "toolrewrite_rewrite_cache_total") == before
    assert served.search("good morning, how are you", detect="off")["rewrite"]["lines"] == ["weather forecast by city"]
    assert metric(served, "toolrewrite_rewrite_cache_total") == before + 1


def test_a_new_tool_and_a_confirmation_change_the_next_answer(served: Served) -> None:
    text, right = "is it going to be frosty on the allotment", "porchlight/sowing-calendar"
    tool = {"name": "frost", "description": "Weather forecast by city, with the frost on allotments."}
    before = served.search(text)
    assert served.client.put("/v1/tools/plot%2Ffrost", json=tool).status_code == 200
    added = served.search(text, k=50)
    assert ids(added)[0] == "plot/frost"
    assert served.client.post("/v1/feedback", json={"utterance": text, "tools": [right]}).json() == {"kept": True}
    learned = served.search(text, k=50)
    assert ids(learned).index(right) < ids(added).index(right)
    assert next(tool for tool in learned["tools"] if tool["id"] == right)["found_by"][0] == {"list": "raw", "rank": 1}
    assert served.client.delete("/v1/tools/plot%2Ffrost").status_code == 200
    results = (before, added, learned, served.search(text))
    assert [ids(result).count("plot/frost") for result in results] == [0, 1, 1, 0]
    assert [result["rewrite"]["lines"] for result in results] == [["weather forecast by city"]] * 4


def ids(result: dict[str, Any]) -> list[str]:
    return [tool["id"] for tool in result["tools"]]


def test_it_listens_on_the_loopback_and_lets_nobody_in(served: Served) -> None:
    [vllm] = served.vllm()
    command = vllm.cmdline()
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert "--enable-prefix-caching" in command
    assert not any("key" in word.lower() for word in command)
    port = command[command.index("--port") + 1]
    assert httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=PATIENCE, trust_env=False).status_code == 401
    assert served.client.post("/v1/chat/completions", json={"model": "rewriter", "messages": []}).status_code == 404


def put(served: Served, name: str) -> None:
    """Puts another rewriter in the place of the one that is served."""
    fresh = served.folder / "rewriter.new"
    fresh.symlink_to(served.folder / name)
    fresh.replace(served.folder / "rewriter")


def test_a_newer_adapter_takes_over_without_a_dropped_request(served: Served) -> None:
    before = served.client.get("/v1/models").json()["models"][1]
    with Load(served) as load:
        until(lambda: load.errors or len(load.results) >= 3)
        put(served, "second")
        until(lambda: served.client.get("/v1/models").json()["models"][1]["id"] != before["id"], 0.1)
        known = len(load.results)
        until(lambda: load.errors or len(load.results) >= known + 6)  # those under way, and three by the new one
    assert load.errors == []
    assert [result["fallback"] for result in load.results] == [None] * len(load.results)
    lines = [result["rewrite"]["lines"][0] for result in load.results]
    assert set(lines) == {"weather forecast by city", "convert a currency"}
    assert served.search("what will the weather be")["rewrite"]["lines"] == ["convert a currency"]


def reasons(load: Load) -> set[str | None]:
    """Why answers were raw; None: some were not."""
    return {result["fallback"] and result["fallback"]["reason"] for result in list(load.results)}


def test_kill_9_and_a_restart_for_a_whole_model_cost_no_answer(served: Served) -> None:
    """vLLM is killed and started again; a whole model takes over by another restart, while the first is under way."""
    [vllm] = served.vllm()
    with Load(served) as load:
        until(lambda: load.errors or load.results)
        vllm.send_signal(signal.SIGKILL)
        served.until("starting")
        text = "which coat for tomorrow, it looks like snow"
        result = served.search(text)
        assert result["fallback"]["reason"] in ("unavailable", "starting", "circuit_open")
        assert ids(result) == ids(served.search(text, rewrite="off"))  # MassTool's own
        until(lambda: load.errors or "starting" in reasons(load))
        until(lambda: metric(served, "toolrewrite_vllm_starts") == 2, 0.2)
        put(served, "whole")
    assert load.errors == []
    assert reasons(load) - {None} <= {"unavailable", "starting", "circuit_open", "deadline"}
    served.until("ready")
    [again] = served.vllm()
    assert again.pid != vllm.pid
    assert "--enable-lora" not in again.cmdline()
    assert len(list((served.folder / "logs").iterdir())) == 3
    assert served.ask("which coat", rerank="auto")["rerank"] == {
        "tools": 0,
        "weight": None,
        "fallback": "unavailable",
    }  # its base left
    # The answer is the new model's own: the adapters' cached ones are not given in its name.
    rewrite = served.search("what will the weather be")["rewrite"]
    assert (rewrite["lines"], rewrite["cached"]) == (["weather forecast by city"], False)


def test_sigterm_ends_it_and_all_its_children(served: Served) -> None:
    children = psutil.Process(served.process.pid).children(recursive=True)
    assert len(children) >= 2
    answers: list[dict[str, Any]] = []
    caller = threading.Thread(target=lambda: answers.append(served.search("the last words of all: the weather")))
    misses = 'toolrewrite_rewrite_cache_total{result="miss"}'
    before = metric(served, misses)
    caller.start()
    until(lambda: answers or metric(served, misses) > before, 0.0)  # the model is about to be asked
    served.process.terminate()
    caller.join()
    assert answers  # who had asked is answered
    assert answers[0]["tools"]
    assert served.process.wait(PATIENCE) == 0
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    for each in alive:
        each.kill()
    assert alive == []


def metric(served: Served, name: str) -> float:
    """The value of a metric; lines of comments name it too."""
    lines = served.client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))
