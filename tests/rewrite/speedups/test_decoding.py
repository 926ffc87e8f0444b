"""Recorded steps, as far as a machine without a GPU can tell: the same answers, fair draws, and every trainer's way."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import recordable
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, GenerationConfig

from rewrite.backends import in_process
from rewrite.backends.in_process import TransformersBackend
from rewrite.settings import Sampling, TransformersSettings
from rewrite.speedups import decoding
from rewrite.speedups.decoding import Decoding, can_record, choose_tokens, half_copy, unique_rows
from rewrite.types import Prompt

PROMPTS: list[Prompt] = [
    [{"role": "user", "content": said}] for said in ("hi", "what is the weather in Athens?", "天气预报", "x" * 90, "")
]
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def answers(model: Path, sampling: Sampling, adapter: Path | None = None, device: str = "cpu") -> list[Any]:
    backend = TransformersBackend(TransformersSettings(batch_size=16, dtype="float32"), model, adapter, device)
    return backend.generate(PROMPTS, sampling)


@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "adapter"])
def test_the_same_answers_as_by_generate(
    tiny_lm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapted: bool
) -> None:
    adapter = tmp_path if adapted else None
    if adapted:
        torch.manual_seed(0)
        config = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear", init_lora_weights=False)
        get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_lm), config).save_pretrained(tmp_path)
    greedy = Sampling(max_tokens=40)
    want = answers(tiny_lm, greedy, adapter)
    recordable(monkeypatch)
    monkeypatch.setattr(decoding, "CHECK_STEPS", 1)  # leaves out at once what has ended
    assert answers(tiny_lm, greedy, adapter) == want


def test_answers_that_have_ended_are_left_out(tiny_lm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An untrained model never ends of itself, so that every token it likes ends an answer."""
    model = AutoModelForCausalLM.from_pretrained(tiny_lm, dtype=torch.float32).eval()
    prompts = torch.randint(10, 100, (12, 6), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(prompts)
    mask[::3, :2] = 0
    with torch.no_grad():
        free = Decoding(model, prompts, mask, Sampling(max_tokens=30), (), 0).run(record=False)
        ends = free[:, 4:24:5].flatten().unique().tolist()[::2]
        monkeypatch.setattr(decoding, "CHECK_STEPS", 3)
        cut = Decoding(model, prompts, mask, Sampling(max_tokens=30), ends, 0)
        rows = cut.run(record=False)
    assert len(cut._rows) <= 6
    for whole, row in zip(free.tolist(), rows.tolist(), strict=True):
        end = next((place for place, token in enumerate(whole) if token in ends), 29)
        assert row == whole[: end + 1] + [0] * (29 - end)


def test_heads_that_share_keys_read_them_together(tiny_lm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answers, without a copy of the cache for each head; afterwards the model attends as before."""
    model = AutoModelForCausalLM.from_pretrained(tiny_lm, dtype=torch.float32).eval()
    assert model.config.num_attention_heads > model.config.num_key_value_heads
    prompts = torch.randint(10, 100, (5, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(prompts)
    mask[1, :3] = mask[4, :6] = 0

    def said() -> list[list[int]]:
        with torch.no_grad():
            writing = Decoding(model, prompts, mask, Sampling(max_tokens=20), (), 0)
            rows: list[list[int]] = writing.run(record=False).tolist()
        return rows

    shapes: list[tuple[int, ...]] = []
    asked = decoding.scaled_dot_product_attention

    def watched(query: Any, key: Any, *rest: Any, **more: Any) -> Any:
        shapes.append((*query.shape[1:3], key.shape[1]))
        return asked(query, key, *rest, **more)

    monkeypatch.setattr(decoding, "scaled_dot_product_attention", watched)
    together = said()
    assert set(shapes) == {(2, 2, 2)}  # two groups of two heads ask two sets of keys
    assert model.config._attn_implementation == "sdpa"
    assert len(shapes) == 2 * 19
    how = GenerationConfig(max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)  # type: ignore[no-untyped-call]
    plain = model.generate(input_ids=prompts, attention_mask=mask, generation_config=how)
    assert together == plain[:, 7:].tolist()


def test_a_prompt_that_gets_several_answers_is_read_once(tiny_lm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_lm, dtype=torch.float32).eval()
    alone = torch.randint(10, 100, (3, 7), generator=torch.Generator().manual_seed(1))
    shown = torch.ones_like(alone)
    shown[1, :3] = 0
    alone[2], shown[2, :2] = alone[0], 0  # the same tokens, of which two are padding
    order = torch.tensor([2, 0, 0, 1, 2, 0])

    def said(prompts: torch.Tensor, mask: torch.Tensor, sampling: Sampling) -> list[list[int]]:
        torch.manual_seed(0)
        with torch.no_grad():
            rows: list[list[int]] = Decoding(model, prompts, mask, sampling, (), 0).run(record=False).tolist()
        return rows

    want = said(alone, shown, Sampling(max_tokens=12))
    read = list[int]()
    forward = Decoding._forward

    def counted(self: Decoding, tokens: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        read.append(len(tokens))
        return forward(self, tokens, *rest)

    monkeypatch.setattr(Decoding, "_forward", counted)
    assert said(alone[order], shown[order], Sampling(max_tokens=12)) == [want[place] for place in order.tolist()]
    assert read == [3] + [6] * 11
    drawn = said(alone[order], shown[order], Sampling(temperature=1.0, max_tokens=12))
    assert len({tuple(row) for row in drawn}) == 6


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=12))
def test_rows_that_differ_are_found_in_their_order(rows: list[tuple[int, int]]) -> None:
    once, which = unique_rows(torch.tensor(rows))
    kept = list(dict.fromkeys(rows))
    assert [rows[place] for place in once.tolist()] == kept
    assert once.tolist() == [rows.index(row) for row in kept]
    assert [kept[place] for place in which.tolist()] == rows


def test_draws_are_fair() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(100_000, 1)

    def shares(sampling: Sampling) -> list[float]:
        return [float(count) / 100_000 for count in torch.bincount(choose_tokens(logits, sampling), minlength=4)]

    assert shares(Sampling()) == [1, 0, 0, 0]
    assert shares(Sampling(temperature=1.0)) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.01)
    assert shares(Sampling(temperature=1.0, top_p=0.75)) == pytest.approx([0.625, 0.375, 0, 0], abs=0.01)
    squared = torch.tensor([0.5, 0.3, 0.15, 0.05]).square()
    assert shares(Sampling(temperature=0.5)) == pytest.approx((squared / squared.sum()).tolist(), abs=0.01)


def test_a_copy_in_half_precision_leaves_the_model_alone(tiny_lm: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_lm, dtype=torch.float32)
    model(input_ids=torch.tensor([[5, 6]])).logits.sum().backward()
    copy = half_copy(model)
    assert {weight.dtype for weight in copy.parameters()} == {torch.bfloat16}
    assert all(weight.grad is None and not weight.requires_grad for weight in copy.parameters())
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert all(weight.requires_grad and weight.grad is not None for weight in model.parameters())
    with torch.no_grad():
        next(iter(copy.parameters())).zero_()
        told = copy(input_ids=torch.tensor([[5, 6]])).logits
    assert told.dtype == torch.bfloat16
    assert next(iter(model.parameters())).abs().sum() > 0


def test_a_copy_is_free_of_the_mixed_precision_of_training(tiny_lm: Path) -> None:
    """Accelerate puts its own `forward` before the model's: keys and values would not be of one precision."""
    plain = AutoModelForCausalLM.from_pretrained(tiny_lm, dtype=torch.float32)
    trained = AutoModelForCausalLM.from_pretrained(tiny_lm, dtype=torch.float32)
    trained.forward = torch.autocast("cpu", dtype=torch.bfloat16)(trained.forward)  # as accelerate does
    prompts = torch.tensor([[5, 6, 7], [8, 9, 10]])

    def said(some: Any) -> list[list[int]]:
        mask = torch.ones_like(prompts)
        with torch.no_grad():
            rows: list[list[int]] = Decoding(some, prompts, mask, Sampling(max_tokens=8), (), 0).run(False).tolist()
        return rows

    with pytest.raises(RuntimeError, match="same dtype"):
        said(trained)
    assert said(half_copy(trained)) == said(half_copy(plain))
    assert "forward" in vars(trained)
    trained._original_forward = trained.forward  # accelerate's too: with it the copy would refer to itself
    gone = weakref.ref(half_copy(trained))
    assert gone() is None


def test_only_a_gpu_records_and_only_what_reads_such_a_mask(tiny_lm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_lm)
    assert not can_record(model)
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    assert can_record(model)
    model.config.alibi = True  # tells places by a mask of its own
    assert not can_record(model)
    model.config.alibi = False
    model.forward = torch.autocast("cuda", dtype=torch.float16)(model.forward)  # keys and values of two precisions
    assert not can_record(model)
    assert can_record(model, copied=True)
    assert can_record(half_copy(model))
    del model.forward
    model.set_attn_implementation("eager")  # would add the mask as a number
    assert not can_record(model)
    assert can_record(model, copied=True)
    assert can_record(half_copy(model))
    assert model.config._attn_implementation == "eager"
    monkeypatch.setattr(model, "_can_set_attn_implementation", lambda: False)  # Falcon's, for example
    assert not can_record(model, copied=True)
    monkeypatch.undo()
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    model._supports_sdpa = False
    assert not can_record(model, copied=True)
    assert not can_record(half_copy(model))


@cuda
def test_a_record_says_what_the_steps_say(tiny_lm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings.simplefilter("error")
    want = answers(tiny_lm, Sampling(max_tokens=40), device="cuda")
    drawn = answers(tiny_lm, Sampling(temperature=1.0, max_tokens=40, seed=3), device="cuda")
    assert drawn == answers(tiny_lm, Sampling(temperature=1.0, max_tokens=40, seed=3), device="cuda")
    monkeypatch.setattr(Decoding, "_record", lambda self: self._advance)
    assert answers(tiny_lm, Sampling(max_tokens=40), device="cuda") == want
    monkeypatch.setattr(in_process, "can_record", lambda model: False)  # by generate
    assert answers(tiny_lm, Sampling(max_tokens=40), device="cuda") == want


def test_where_memory_runs_out_in_a_record_the_stream_is_the_callers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def graph(*_: Any, **__: Any) -> Iterator[None]:
        streams.append("the record's")
        yield

    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    streams = ["the caller's"]
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    decoding = Decoding.__new__(Decoding)
    monkeypatch.setattr(decoding, "_advance", full)
    with pytest.raises(torch.OutOfMemoryError):
        decoding._record()
    assert streams == ["the caller's", "the record's", "the caller's"]
