"""The transformers backend, with real models: the bundled one for one answer, an untrained tiny one for the rest."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from rewrite.backends.base import make_backend
from rewrite.backends.in_process import TransformersBackend
from rewrite.errors import RewriteError
from rewrite.settings import Sampling, TransformersSettings
from rewrite.types import Answer, Prompt

GREEDY = Sampling(max_tokens=12)
SAMPLED = Sampling(temperature=1.0, top_p=0.9, answers=3, max_tokens=8, seed=5)


def asked(*contents: str) -> list[Prompt]:
    return [[{"role": "user", "content": content}] for content in contents]


PROMPTS = asked(
    "hi", "what is the weather in Athens tomorrow?", "天气预报", "x" * 200, "", "book me a flight and a hotel"
)


def alone(model: Path, prompts: list[Prompt], batch_size: int = 8, adapter: Path | None = None) -> list[list[Answer]]:
    backend = TransformersBackend(TransformersSettings(batch_size=batch_size), model, adapter, "cpu")
    return backend.generate(prompts, GREEDY)


def save_adapter(model: Path, folder: Path) -> Path:
    """A LoRA adapter that changes a lot."""
    torch.manual_seed(1)
    config = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(model), config).save_pretrained(folder)
    return folder


def save_other(model: Path, folder: Path, **changes: int) -> Path:
    """A model like another, but for some numbers of its config."""
    config = AutoModelForCausalLM.from_pretrained(model).config
    config.update(changes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapter(tiny_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(tiny_lm, tmp_path_factory.mktemp("adapters") / "adapter")


@pytest.fixture
def loaded(tiny_lm: Path) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(tiny_lm), AutoTokenizer.from_pretrained(tiny_lm)


def test_the_bundled_model_answers(language_model: Path) -> None:
    backend = make_backend(TransformersSettings(), language_model, device="cpu")
    [[answer]] = backend.generate(asked("What is the capital of France? One word."), Sampling(max_tokens=16))
    assert "Paris" in answer.text
    assert answer.finished
    assert "<|" not in answer.text
    assert 1 < answer.tokens < 16
    assert backend.context == 8192


def test_greedy_answers_do_not_depend_on_the_batch(tiny_lm: Path, adapter: Path) -> None:
    together = alone(tiny_lm, PROMPTS, adapter=adapter)
    assert len({answers[0].text for answers in together}) > 3, "all the same: the order would not show"
    assert alone(tiny_lm, PROMPTS, batch_size=1, adapter=adapter) == together
    assert alone(tiny_lm, PROMPTS[::-1], batch_size=4, adapter=adapter) == together[::-1]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_where_memory_runs_out_fewer_are_written_at_a_time(
    tiny_lm: Path, monkeypatch: pytest.MonkeyPatch, sampling: Sampling, error: Exception
) -> None:
    backend = TransformersBackend(TransformersSettings(batch_size=16), tiny_lm, None, "cpu")
    written, sizes, most = TransformersBackend._generate_batch, [], 4

    def scarce(self: TransformersBackend, encoded: Any, sampling: Sampling) -> list[list[int]]:
        sizes.append(len(encoded))
        answers = written(self, encoded, sampling)  # memory runs out late, when random numbers have been drawn
        if len(encoded) > most:
            raise error
        return answers

    expected = {
        size: TransformersBackend(TransformersSettings(batch_size=size), tiny_lm, None, "cpu") for size in (3, 4)
    }
    answers = {size: each.generate(PROMPTS, sampling) for size, each in expected.items()}
    monkeypatch.setattr(TransformersBackend, "_generate_batch", scarce)
    for _ in range(2):  # the next call tries as many again
        sizes.clear()
        with pytest.warns(UserWarning, match=r"no memory for \d+ answers at a time, trying half as many"):
            found = backend.generate(PROMPTS, sampling)
        assert sizes[0] == min(16, len(PROMPTS) * sampling.answers)
        assert found == answers[backend.fitting_batch]
    most = 0
    with (
        pytest.raises(RewriteError, match="no memory for even one answer"),
        pytest.warns(UserWarning, match="half as many"),
    ):
        backend.generate(PROMPTS, sampling)
    monkeypatch.setattr(TransformersBackend, "_generate_batch", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        backend.generate(PROMPTS, sampling)


def test_nothing_asked_nothing_answered(tiny_lm: Path) -> None:
    backend = TransformersBackend(TransformersSettings(), tiny_lm, device="cpu")
    assert backend.generate([], GREEDY) == []
    assert backend.count([]) == []


def test_sampling_is_seeded(tiny_lm: Path) -> None:
    backend = TransformersBackend(TransformersSettings(batch_size=4), tiny_lm, device="cpu")
    first = backend.generate(PROMPTS, SAMPLED)
    torch.manual_seed(99)
    assert backend.generate(PROMPTS, SAMPLED) == first
    assert [len(answers) for answers in first] == [3] * len(PROMPTS)
    assert len({answer.text for answer in first[0]}) == 3
    assert backend.generate(PROMPTS, Sampling(temperature=1.0, answers=3, max_tokens=8, seed=6)) != first


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_callers_random_numbers_go_on(loaded: tuple[Any, Any], sampling: Sampling) -> None:
    backend = TransformersBackend.around(*loaded, batch_size=2)
    torch.manual_seed(3)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    backend.generate(PROMPTS, sampling)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def test_a_model_in_training_is_left_as_it_was(tiny_lm: Path, loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    lora = LoraConfig(r=4, lora_dropout=0.5, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)
    model.gradient_checkpointing_enable()
    model.config.use_cache = False
    model.train()
    frozen = next(module for name, module in model.named_modules() if name.endswith("layers.0.mlp"))
    frozen.eval()
    modes = [module.training for module in model.modules()]
    side = tokenizer.padding_side
    answers = TransformersBackend.around(model, tokenizer, batch_size=8).generate(PROMPTS, GREEDY)
    assert answers == alone(tiny_lm, PROMPTS), "dropout was on"
    assert [module.training for module in model.modules()] == modes
    assert (model.config.use_cache, tokenizer.padding_side) == (False, side)
    assert all(parameter.requires_grad for name, parameter in model.named_parameters() if "lora" in name)


def test_training_mode_comes_back_after_trouble(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    model.train()
    model.lm_head.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        TransformersBackend.around(model, tokenizer, batch_size=8).generate(PROMPTS, GREEDY)
    assert all(module.training for module in model.modules())


def test_only_the_end_tokens_of_the_generation_config_count(
    loaded: tuple[Any, Any], tiny_lm: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = loaded
    usual = alone(tiny_lm, PROMPTS)
    changes = {"do_sample": True, "temperature": 0.3, "top_k": 7, "min_p": 0.1, "repetition_penalty": 9.0}
    model.generation_config.update(**changes, max_length=20)
    capfd.readouterr()
    assert TransformersBackend.around(model, tokenizer, 8).generate(PROMPTS, GREEDY) == usual
    assert "".join(capfd.readouterr()) == caplog.text == ""
    assert (model.generation_config.top_k, model.generation_config.max_length) == (7, 20)


def test_an_answer_goes_up_to_any_end_token(loaded: tuple[Any, Any], adapter: Path) -> None:
    model, tokenizer = PeftModel.from_pretrained(loaded[0], adapter), loaded[1]
    usual = TransformersBackend.around(model, tokenizer, 8).generate(PROMPTS, GREEDY)
    assert [(answers[0].tokens, answers[0].finished) for answers in usual] == [(12, False)] * len(PROMPTS)
    tokens = tokenizer(usual[0][0].text)["input_ids"]
    end = next(token for token in tokens if token != tokens[0])
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, end]
    tokenizer.pad_token_id = end  # padding that looks like an end is no answer's end
    answers = TransformersBackend.around(model, tokenizer, 8).generate(PROMPTS, GREEDY)
    place = tokens.index(end)
    assert answers[0] == [Answer(tokenizer.decode(tokens[:place]), place + 1, True)]
    for cut, whole in zip(answers, usual, strict=True):
        assert whole[0].text.startswith(cut[0].text)


def test_tokens_are_counted_as_the_chat_template_has_them(tiny_lm: Path) -> None:
    backend = TransformersBackend(TransformersSettings(), tiny_lm, device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(tiny_lm)
    texts = [tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=False) for p in PROMPTS]
    assert backend.count(PROMPTS) == [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    assert backend.context == 512


def test_a_prompt_without_room_for_its_answer_is_refused(tiny_lm: Path) -> None:
    backend = TransformersBackend(TransformersSettings(), tiny_lm, device="cpu")
    with pytest.raises(RewriteError, match="do not fit into the model's 512"):
        backend.generate(asked("word " * 490), GREEDY)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_an_adapter_changes_the_answers(tiny_lm: Path, adapter: Path, dtype: Any) -> None:
    answers = TransformersBackend(TransformersSettings(dtype=dtype), tiny_lm, adapter, "cpu").generate(PROMPTS, GREEDY)
    assert answers != alone(tiny_lm, PROMPTS)
    assert [len(found) for found in answers] == [1] * len(PROMPTS)


@pytest.mark.parametrize(
    "changes", [{"hidden_size": 128}, {"num_hidden_layers": 3}, {"num_hidden_layers": 1}], ids=["wide", "deep", "flat"]
)
def test_an_adapter_of_another_model_is_refused(
    tiny_lm: Path, adapter: Path, tmp_path: Path, changes: dict[str, int]
) -> None:
    other = save_other(tiny_lm, tmp_path / "other", **changes)
    with pytest.raises(RewriteError, match="does not fit the model") as caught:
        alone(other, PROMPTS, adapter=adapter)
    for named in (adapter, other, tiny_lm):
        assert str(named) in str(caught.value)


def test_an_adapter_of_another_architecture_is_refused(tiny_lm: Path, adapter: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(adapter, tmp_path / "adapter")
    facts = json.loads((broken / "adapter_config.json").read_text())
    (broken / "adapter_config.json").write_text(json.dumps({**facts, "target_modules": ["query_key_value"]}))
    with pytest.raises(RewriteError, match="does not fit the model"):
        alone(tiny_lm, PROMPTS, adapter=broken)


def test_a_model_without_chat_template_is_refused(tiny_lm: Path, tmp_path: Path) -> None:
    mute = shutil.copytree(tiny_lm, tmp_path / "mute")
    (mute / "chat_template.jinja").unlink()
    with pytest.raises(RewriteError, match="no chat template"):
        alone(mute, PROMPTS)


def test_a_chat_template_that_refuses_says_so(tiny_lm: Path, tmp_path: Path) -> None:
    strict = shutil.copytree(tiny_lm, tmp_path / "strict")
    (strict / "chat_template.jinja").write_text("{{ raise_exception('System role not supported') }}")
    with pytest.raises(RewriteError, match="System role not supported"):
        alone(strict, PROMPTS)


@pytest.mark.parametrize("damage", ["no folder", "no config", "no weights", "torn weights", "no adapter"])
def test_what_is_missing_is_named(tiny_lm: Path, tmp_path: Path, damage: str) -> None:
    model = shutil.copytree(tiny_lm, tmp_path / "model")
    if damage == "no folder":
        shutil.rmtree(model)
    elif damage == "no config":
        (model / "config.json").unlink()
    elif damage == "no weights":
        (model / "model.safetensors").unlink()
    elif damage == "torn weights":
        (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(RewriteError, match=str(tmp_path)) as caught:
        alone(model, PROMPTS, adapter=tmp_path if damage == "no adapter" else None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", {"num_hidden_layers": 3}, r"lacks 9 of its weights, for example model\.layers\.2"),
        ("config.json", {"num_attention_heads": 5}, "is not a multiple"),
        ("config.json", [], "must be a mapping"),
        ("tokenizer.json", {"added_tokens": None}, "no tokenizer"),
    ],
    ids=["weights made up", "heads", "no keys", "tokenizer"],
)
def test_a_damaged_model_is_refused_in_a_sentence(
    tiny_lm: Path, tmp_path: Path, name: str, content: Any, said: str
) -> None:
    model = shutil.copytree(tiny_lm, tmp_path / "model")
    known = json.loads((model / name).read_text())
    (model / name).write_text(json.dumps(known | content if isinstance(content, dict) else content))
    with pytest.raises(RewriteError, match=said) as caught:
        alone(model, PROMPTS)
    assert str(model) in str(caught.value)


@pytest.mark.parametrize("content", [[], {"peft_type": "IA3"}, {"r": "four"}, {"target_modules": 5}], ids=str)
def test_a_damaged_adapter_is_refused_in_a_sentence(tiny_lm: Path, adapter: Path, tmp_path: Path, content: Any) -> None:
    broken = shutil.copytree(adapter, tmp_path / "adapter")
    facts = json.loads((broken / "adapter_config.json").read_text())
    (broken / "adapter_config.json").write_text(json.dumps(facts | content if content else content))
    with pytest.raises(RewriteError, match=str(broken)):
        alone(tiny_lm, PROMPTS, adapter=broken)


def test_a_device_that_is_not_there_is_refused(tiny_lm: Path) -> None:
    with pytest.raises(RewriteError, match="no device cuda:99"):
        TransformersBackend(TransformersSettings(), tiny_lm, device="cuda:99")


def test_the_bar_is_there_when_asked_for(tiny_lm: Path, capfd: pytest.CaptureFixture[str]) -> None:
    backend = TransformersBackend(TransformersSettings(), tiny_lm, device="cpu")
    capfd.readouterr()
    backend.generate(PROMPTS, GREEDY)
    assert capfd.readouterr() == ("", "")
    backend.generate(PROMPTS, GREEDY, show_progress=True)
    assert "answering" in capfd.readouterr().err
