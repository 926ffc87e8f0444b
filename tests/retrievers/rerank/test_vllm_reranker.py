"""A reranker in a real vLLM: the scores of transformers, an adapter too; and answers of servers that are no vLLM."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.vllm_engine import vllm
from retrievers.errors import StoreDown
from retrievers.rerank.language_model import LanguageModelReranker
from retrievers.rerank.settings import LanguageModelSettings
from retrievers.rerank.vllm_reranker import ServerReranker, VllmReranker, load_prompt

REQUESTS = ["weather in Athens", "book a flight and a hotel"]
TOOLS = [["get weather: forecast of a city", "", "book flights"], ["rent a car"]]


@pytest.fixture(scope="module")
def wide_lm(untied_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose heads are wide enough for vLLM on a CPU."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    folder = tmp_path_factory.mktemp("models") / "wide"
    config = LlamaConfig.from_pretrained(untied_lm)
    config.update({"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64})
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(untied_lm).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapter(wide_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that changes the model's scores."""
    import torch

    folder = tmp_path_factory.mktemp("models") / "adapter"
    model = LanguageModelReranker(wide_lm, 256, 64, "cpu")
    model.prepare_training(LanguageModelSettings(str(wide_lm), rank=8))
    torch.manual_seed(0)
    for name, parameter in model.trained.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save(folder)
    return folder


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_scores_as_transformers_do(wide_lm: Path, adapter: Path) -> None:
    plain = LanguageModelReranker(wide_lm, 256, 64, "cpu").score(REQUESTS, TOOLS)
    adapted = LanguageModelReranker(wide_lm, 256, 64, "cpu", adapter).score(REQUESTS, TOOLS)
    assert not np.allclose(plain[0], adapted[0], atol=1e-2)
    model = VllmReranker(vllm(), wide_lm, adapter, 256, 64)
    scores = model.score(REQUESTS, TOOLS)
    assert all(np.allclose(own, other, atol=1e-3) for own, other in zip(scores, adapted, strict=True))
    assert model.score([], []) == []
    assert [len(own) for own in model.score(["a"], [[]])] == [0]


def completion(yes: int, no: int, *scores: float) -> dict[str, Any]:
    rows = [{f"token_id:{yes}": score, f"token_id:{no}": 0.0, "token_id:7": -1.0} for score in scores]
    return {"choices": [{"index": i, "logprobs": {"top_logprobs": [row]}} for i, row in enumerate(rows)][::-1]}


def test_a_server_is_asked_once_for_all_candidates(untied_lm: Path) -> None:
    prompt, bodies = load_prompt(untied_lm, 256, 64), list[dict[str, Any]]()

    def post(body: dict[str, Any]) -> Any:
        bodies.append(body)
        return completion(prompt.yes, prompt.no, 1.0, 2.0, 3.0, 4.0)

    scores = ServerReranker(prompt, post).score(REQUESTS, TOOLS)
    assert [own.tolist() for own in scores] == [[1.0, 2.0, 3.0], [4.0]]
    assert len(bodies) == 1
    assert bodies[0]["logprob_token_ids"] == [prompt.yes, prompt.no]
    first, second = bodies[0]["prompt"][:2]
    shared = len(prompt.parts(REQUESTS[0], [""])[0])
    assert first[:shared] == second[:shared]


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{"index": 0, "logprobs": None}]}, "text"])
def test_an_answer_without_logits_is_an_error(untied_lm: Path, answer: Any) -> None:
    model = ServerReranker(load_prompt(untied_lm, 256, 64), lambda _: answer)
    with pytest.raises(StoreDown, match="server"):
        model.score(REQUESTS, TOOLS)
