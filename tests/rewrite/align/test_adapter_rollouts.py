"""Rollouts by a real vLLM server that loads the policy's adapter after every step."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from killing import started
from peft import LoraConfig, get_peft_model
from test_align import QUERIES, _goal, _leg
from test_vllm_engine import save_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from waiting import PATIENCE, until

from pipelines.serve.rewriter import child_guard
from rewrite.align.groups.adapter_rollouts import AdapterServer, persistent
from rewrite.align.groups.run import train_groups
from rewrite.align.settings import GrpoSettings, RlooSettings, Rollouts
from rewrite.errors import BackendDown, Unfit

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
GREEDY = {"temperature": 1e-4, "most_tokens": 6}


@pytest.fixture(scope="module")
def model(untied_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is surer of its words than an untrained one."""
    folder = save_model(untied_lm, tmp_path_factory.mktemp("shipped") / "model")
    made = AutoModelForCausalLM.from_pretrained(folder)
    made.model.norm.weight.data *= 30
    made.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("logs") / "vllm.log"
    words = ["--model", str(model), "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    words += ["--max-model-len", "256", "--enable-lora", "--max-lora-rank", "8"]
    more = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    more["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # a process less that has to load all of vLLM

    def healthy() -> bool:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            return client.get(f"http://127.0.0.1:{port}/health").status_code == 200
        except httpx.HTTPError:
            return False

    # child_guard ends vLLM and its children even where pytest itself is killed.
    command = [sys.executable, "-I", child_guard.__file__, sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    with (
        httpx.Client(trust_env=False) as client,
        log.open("wb") as output,
        started(
            [*command, *words], stdin=subprocess.PIPE, stdout=output, stderr=output, env={**os.environ, **more}
        ) as process,
    ):
        until(healthy, 0.5, patience=420)
        yield f"http://127.0.0.1:{port}/v1"


def policy(base: Path, seed: int) -> Any:
    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    return get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).eval()


@torch.no_grad()
def wrote(model: Any, prompts: list[list[int]], answers: list[list[int]]) -> bool:
    """Whether every token is nearly the likeliest one: vLLM clips temperatures to 0.01, which is not quite greedy."""
    for prompt, answer in zip(prompts, answers, strict=True):
        logits = model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
        if (logits.max(-1).values - logits.gather(1, torch.tensor(answer)[:, None])[:, 0]).max() > 0.15:
            return False
    return True


def test_the_server_writes_with_the_weights_of_the_step(url: str, model: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = [tokenizer(text)["input_ids"] for text in ("hotels in Oslo", "rain", "the news of today")]
    server = AdapterServer(Rollouts(url=url, by="adapter", **GREEDY), tmp_path, seed=0)  # type: ignore[arg-type]
    first, second = policy(model, 1), policy(model, 2)
    server.take(first, 0, writes=True)
    assert wrote(first, prompts, answers := server.write(prompts, 0))
    assert not wrote(second, prompts, answers)
    server.take(second, 0, writes=True)  # the same step: nothing is shipped
    assert server.write(prompts, 0) == answers
    server.take(second, 1, writes=True)
    assert wrote(second, prompts, server.write(prompts, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_answers_hang_on_seed_step_and_place_alone(url: str, model: Path, tmp_path: Path) -> None:
    prompts = [[5, 6, 7]] * 4
    servers = [
        AdapterServer(Rollouts(url=url, by="adapter", most_tokens=8, temperature=2.0), tmp_path, seed)
        for seed in (0, 0, 1)
    ]
    for server in servers:
        server.take(policy(model, 1), 3, writes=True)
    drawn = [server.write(prompts, 3) for server in servers]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({tuple(answer) for answer in drawn[0]}) > 1
    assert servers[0].write(prompts[2:], 3, first=2) == drawn[0][2:]


def test_a_server_that_has_forgotten_the_adapter_gets_it_again(url: str, model: Path, tmp_path: Path) -> None:
    server, shipped = AdapterServer(Rollouts(url=url, by="adapter", most_tokens=4), tmp_path, 0), policy(model, 1)

    def write() -> list[list[int]]:
        server.take(shipped, 2, writes=True)
        return server.write([[5, 6]], 2)

    before = write()
    gone = {"lora_name": "policy"}
    httpx.post(f"{url}/unload_lora_adapter", json=gone, timeout=PATIENCE, trust_env=False).raise_for_status()
    with pytest.raises(BackendDown):
        write()
    assert persistent(write, url, wait=0.0) == before


@pytest.mark.parametrize("kind", [GrpoSettings, RlooSettings])
def test_training_by_such_rollouts(url: str, model: Path, tmp_path: Path, kind: type[Rollouts]) -> None:
    algo: Any = kind(answers=2, most_tokens=5, temperature=2.0, by="adapter", url=url)
    trained = train_groups(_goal(model, None), _leg(tmp_path, batch_size=2), algo)
    assert trained.step == len(QUERIES)
    assert any(value.abs().sum() > 0 for name, value in trained.model.named_parameters() if "lora_B" in name)
    assert trained.facts["reward_share"] < 1


def test_what_cannot_be_shipped_is_refused_in_a_sentence(url: str, model: Path, tmp_path: Path) -> None:
    algo = GrpoSettings(answers=2, most_tokens=5, by="adapter", url=url)
    with pytest.raises(Unfit, match="ship a LoRA"):
        train_groups(_goal(model, None), _leg(tmp_path, method="full"), algo)
    config = LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    large = get_peft_model(AutoModelForCausalLM.from_pretrained(model), config)
    with pytest.raises(Unfit, match="max-lora-rank"):
        AdapterServer(algo, tmp_path, 0).take(large, 0, writes=True)
