"""ONNX Runtime GenAI: the same answers with and without a cached prefix, answers that end, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rewrite.backends.onnx_conversion import convert_model, find_obstacle
from rewrite.errors import RewriteError
from rewrite.settings import OnnxSettings, Sampling
from rewrite.types import Prompt

pytest.importorskip("onnxruntime_genai")

from rewrite.backends.onnx_engine import OnnxBackend, choose_token

TEXTS = ["book me a flight", "weather in Athens tomorrow", "hi", "a much longer request " * 20]
SHORT = Sampling(max_tokens=8)


def prompt(text: str) -> Prompt:
    return [{"role": "system", "content": "Write search queries."}, {"role": "user", "content": text}]


@pytest.fixture(scope="module")
def folder(tiny_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("onnx") / "tiny"
    target.mkdir()
    convert_model(tiny_lm, None, target, 8)
    return target


@pytest.fixture(scope="module")
def backend(folder: Path) -> OnnxBackend:
    return OnnxBackend(OnnxSettings(), folder)


def test_a_cached_prefix_changes_no_answer(folder: Path, backend: OnnxBackend) -> None:
    prompts = [prompt(text) for text in TEXTS]
    together = backend.generate([*prompts, *prompts], SHORT)
    alone = [OnnxBackend(OnnxSettings(), folder).generate([each], SHORT)[0] for each in prompts]
    assert together == alone * 2
    assert backend.generate([], SHORT) == []


def test_its_logits_are_those_of_the_model(tiny_lm: Path, backend: OnnxBackend) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_lm)
    tokens = backend._tokenizer.apply_chat_template(prompt("hi"), add_generation_prompt=True)["input_ids"]
    expected = model(torch.tensor([tokens])).logits[0, -1].detach().numpy()
    backend._read(tokens, len(tokens) + 1)
    logits = np.asarray(backend._generator.get_logits())[0, -1]
    assert np.corrcoef(logits, expected)[0, 1] > 0.99


def test_answers_end_at_the_limit_or_where_the_rest_is_not_read(folder: Path, backend: OnnxBackend) -> None:
    [[answer]] = backend.generate([prompt("hi")], SHORT)
    assert answer.tokens == 8 or answer.finished
    [[longer]] = backend.generate([prompt("hi")], Sampling(max_tokens=64))
    newline = backend._tokenizer.encode("\n", add_special_tokens=False)
    stopping = OnnxBackend(OnnxSettings(), folder, is_complete=lambda text: True)
    assert stopping._rest_is_unread(newline)
    assert not backend._rest_is_unread(newline)
    [[stopped]] = stopping.generate([prompt("hi")], Sampling(max_tokens=64))
    assert longer.text.startswith(stopped.text)


def test_samples_depend_on_the_seed_alone(backend: OnnxBackend) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.9, answers=3, max_tokens=4)
    [first, second] = backend.generate([prompt("hi"), prompt("hi")], sampling)
    assert first == second
    assert len({answer.text for answer in first}) > 1
    assert backend.generate([prompt("hi")], Sampling(temperature=1.0, answers=3, max_tokens=4, seed=1)) != [first]


def test_top_p_keeps_the_likeliest_tokens() -> None:
    logits = np.log(np.array([0.1, 0.6, 0.3], dtype=np.float32))
    random = np.random.default_rng(0)
    drawn = {choose_token(logits, Sampling(temperature=1.0, top_p=0.85), random) for _ in range(200)}
    assert drawn == {1, 2}
    assert choose_token(logits, Sampling(), random) == 1


def test_a_prompt_that_leaves_no_room_is_refused(backend: OnnxBackend) -> None:
    assert backend.context == 512
    assert backend.count([prompt("hi")])[0] > 5
    with pytest.raises(RewriteError, match="do not fit into the model's 512"):
        backend.generate([prompt("long " * 600)], SHORT)


def test_it_refuses_what_it_cannot_run(tiny_lm: Path, folder: Path, tmp_path: Path) -> None:
    assert find_obstacle(tiny_lm) == ""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))
    assert "not used for GPT2LMHeadModel" in find_obstacle(tmp_path)
    assert "not a model folder" in find_obstacle(tmp_path / "nothing")
    with pytest.raises(RewriteError, match="is not converted"):
        OnnxBackend(OnnxSettings(), tiny_lm)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in folder.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes()[: None if file.suffix == ".json" else 100])
    with pytest.raises(RewriteError, match="cannot load"):
        OnnxBackend(OnnxSettings(), damaged)
