"""Memory and time of an alignment that writes its answers on the way, told before it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rewrite.align import estimate as estimates
from rewrite.align.estimate import OnlineSettings, estimate_online, plan_rollouts, rollout_bytes
from rewrite.align.settings import AlignTraining, GrpoSettings, PpoSettings, RlooSettings
from rewrite.settings import LoraSettings
from rewrite.sft.estimate import EFFICIENCY, TrainingEstimate, model_size

LORA = AlignTraining(lora=LoraSettings(rank=4, alpha=8), batch_size=4)
FULL = replace(LORA, method="full")
PROMPTS = [20, 30, 40]
SPEED = 1e9


@pytest.fixture(autouse=True)
def same_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that does a thousand million operations a second, whatever else it does."""
    monkeypatch.setattr(estimates, "speed", lambda *_: SPEED)


def _found(base: Path, algo: OnlineSettings, settings: AlignTraining = LORA, processes: int = 1) -> TrainingEstimate:
    return estimate_online(base, settings, algo, PROMPTS, torch.device("cpu"), False, processes)


def _multiplied(base: Path) -> tuple[int, int]:
    """All parameters, and those that every token meets: the head counts, the table of inputs does not."""
    model = AutoModelForCausalLM.from_pretrained(base)
    linear = [each for each in model.modules() if isinstance(each, torch.nn.Linear)]
    return sum(each.numel() for each in model.parameters()), sum(each.weight.numel() for each in linear)


def test_it_counts_what_is_written_looked_at_and_learned(untied_lm: Path) -> None:
    everything, met = _multiplied(untied_lm)
    algo = GrpoSettings(answers=8, max_tokens=10, beta=0.02)
    found = _found(untied_lm, algo)
    answers, tokens = 3 * 8, 30 + 10
    # LoRA: forward and back; the reference: forward; writing: the prompt, then token by token.
    expected = 2 * met * answers * (2 * tokens + tokens + 30 + 10)
    assert found.parameters == everything
    assert found.flops == pytest.approx(expected)
    steps = answers // 4 * 10
    assert found.seconds == pytest.approx(expected / (SPEED * EFFICIENCY) + steps * 2 * estimates.LAYER_SECONDS)
    assert found.lines()[1].startswith("estimate: 3 queries x 8 answers of up to 10 tokens x 1 epochs, ")
    more = _found(untied_lm, replace(algo, iterations=3))
    assert more.flops - found.flops == pytest.approx(2 * met * answers * tokens * (2 * 2 + 1))
    assert _found(untied_lm, algo, processes=2).seconds == pytest.approx(found.seconds / 2)


def test_a_prompt_that_is_shared_is_learned_from_once(untied_lm: Path) -> None:
    _, met = _multiplied(untied_lm)
    algo = GrpoSettings(answers=8, max_tokens=10, beta=0.0)
    wide = replace(LORA, batch_size=8)
    alone, shared = (
        estimate_online(untied_lm, wide, algo, PROMPTS, torch.device("cpu"), False, 1, each) for each in (False, True)
    )
    assert alone.flops - shared.flops == pytest.approx(2 * 2 * met * 3 * 8 * 30 * 7 / 8)
    forgetful = replace(wide, gradient_checkpointing=True)
    assert plan_rollouts(algo, forgetful, False, True).shared == 1  # what was forgotten cannot be shared
    assert plan_rollouts(algo, replace(wide, batch_size=2), False, True).shared == 2
    assert plan_rollouts(PpoSettings(), wide, False, True).shared == 1


def test_recorded_steps_write_fewer_at_a_time_and_by_a_copy(untied_lm: Path) -> None:
    algo, wide = GrpoSettings(answers=8, max_tokens=10, steps=64), replace(LORA, batch_size=64)
    plain, recorded = (plan_rollouts(algo, wide, each) for each in (False, True))
    assert (plain.generated, recorded.generated) == (64 * 64, 1024)
    size = model_size(untied_lm, wide)
    few = replace(plain, generated=1024)
    copy = rollout_bytes(size, algo, recorded, 50, True) - rollout_bytes(size, algo, few, 50, True)
    assert copy == 2 * size.parameters
    assert rollout_bytes(size, algo, recorded, 50, False) == rollout_bytes(size, algo, few, 50, False)
    assert not plan_rollouts(replace(algo, engine="colocate"), wide, True).recorded


def test_ppo_learns_from_one_answer_a_query_and_holds_a_second_model(untied_lm: Path) -> None:
    everything, met = _multiplied(untied_lm)
    found = _found(untied_lm, PpoSettings(max_tokens=10, passes=2), FULL)
    assert found.flops == pytest.approx(2 * met * 3 * (3 * 2 * 40 + 2 * 40 + 30 + 10))
    assert found.weights == 2 * 4 * everything
    assert found.states == 12 * everything


def test_the_reference_is_a_model_an_adapter_or_nothing(untied_lm: Path) -> None:
    everything, _ = _multiplied(untied_lm)
    full = _found(untied_lm, RlooSettings(answers=2), FULL)
    lora = _found(untied_lm, RlooSettings(answers=2))
    assert full.weights == 8 * everything
    assert lora.weights == 4 * everything + 8 * lora.trained
    assert _found(untied_lm, RlooSettings(answers=2, beta=0.0), FULL).weights == 4 * everything


def test_memory_grows_with_the_batch_the_vocabulary_and_the_cache(untied_lm: Path) -> None:
    config = AutoConfig.from_pretrained(untied_lm)
    wide = replace(LORA, batch_size=16)
    algo = GrpoSettings(answers=4, max_tokens=400)
    assert _found(untied_lm, algo, wide).activations > 2 * _found(untied_lm, algo).activations
    one, many = (PpoSettings(max_tokens=400, minibatch_size=size) for size in (1, 64))
    few, all_ = (_found(untied_lm, algo, replace(LORA, batch_size=64)).activations for algo in (one, many))
    assert all_ >= 64 * 400 * config.vocab_size * 12  # the scores of a minibatch's answers
    assert few < all_ / 20  # and of no more than that


def test_answers_for_several_steps_are_written_at_once(untied_lm: Path) -> None:
    algo = GrpoSettings(answers=4, max_tokens=400, beta=0.0)
    one, four = _found(untied_lm, algo), _found(untied_lm, replace(algo, steps=4))
    _, met = _multiplied(untied_lm)
    again = 2 * met * 3 * 4 * (30 + 400) / (SPEED * EFFICIENCY)  # the policy as it was is asked as well
    assert one.seconds - four.seconds == pytest.approx((3 - 1) * 400 * 2 * estimates.LAYER_SECONDS - again)
    assert _found(untied_lm, replace(algo, steps=4096)).activations > one.activations


def test_what_vllm_writes_is_left_out(untied_lm: Path) -> None:
    algo = GrpoSettings(answers=4, max_tokens=10)
    here, there = _found(untied_lm, algo), _found(untied_lm, replace(algo, engine="server"))
    assert there.seconds < here.seconds
    assert there.lines()[1].endswith("without the evaluations, and without the answers, which vLLM generates")
    assert here.lines()[1].endswith("without the evaluations")
