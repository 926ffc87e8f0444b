"""PPO: advantages against numbers computed by hand, and a toy that it solves from several seeds."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, LlamaConfig

from rewrite.align.ppo.advantages import adapt_kl_weight, advantages, policy_loss, value_loss
from rewrite.align.ppo.trainer import ActorCritic, Ppo
from rewrite.align.settings import PpoSettings

END, PAD, WORDS, STEPS = 0, 1, 6, 50


def test_advantages_are_those_computed_by_hand() -> None:
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 2.0, 9.0]])
    values = torch.tensor([[0.5, 0.25, 0.75], [1.0, 0.5, 9.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    found, returns = advantages(rewards, values, mask, gamma=0.9, gae_lambda=0.5)
    # first row, from the back: 1 - 0.75 = 0.25
    #   0 + 0.9 * 0.75 - 0.25 = 0.425, and 0.45 * 0.25 on top: 0.5375
    #   0 + 0.9 * 0.25 - 0.5 = -0.275, and 0.45 * 0.5375 on top: -0.033125
    # second row: what comes after its two tokens counts for nothing: 2 - 0.5 = 1.5
    #   0 + 0.9 * 0.5 - 1.0 = -0.55, and 0.45 * 1.5 on top: 0.125
    assert found.tolist() == [pytest.approx([-0.033125, 0.5375, 0.25]), pytest.approx([0.125, 1.5, 0.0])]
    assert returns.tolist() == [pytest.approx([0.466875, 0.7875, 1.0]), pytest.approx([1.125, 2.0, 0.0])]


def test_without_discount_and_with_full_traces_the_return_is_the_sum_of_what_is_left() -> None:
    torch.manual_seed(0)
    rewards, values = torch.randn(4, 6), torch.randn(4, 6)
    mask = torch.arange(6)[None] < torch.tensor([6, 1, 3, 5])[:, None]
    _, returns = advantages(rewards, values, mask, gamma=1.0, gae_lambda=1.0)
    left = (rewards * mask).flip(1).cumsum(1).flip(1) * mask
    assert torch.allclose(returns, left, atol=1e-6)


def test_the_losses_are_clipped_where_they_should_be() -> None:
    mask = torch.tensor([[True, True, True, False]])
    old, advantage = torch.zeros(1, 4), torch.tensor([[1.0, 1.0, -1.0, 5.0]])
    new = torch.tensor([[2.0, 1.1, 2.0, 7.0]]).log()
    loss, held = policy_loss(new, old, advantage, mask, clip=0.2)
    assert loss.item() == pytest.approx((-1.2 - 1.1 + 2.0) / 3)  # a good token's gain ends at 1.2, a bad one's loss not
    assert held.item() == pytest.approx(1 / 3)
    values = value_loss(
        torch.tensor([[1.0, 0.1]]), torch.zeros(1, 2), torch.tensor([[1.0, 1.0]]), mask[:, :2], clip=0.2
    )
    assert values.item() == pytest.approx(0.5 * ((0.2 - 1) ** 2 + (0.1 - 1) ** 2) / 2)


def test_the_price_of_distance_follows_its_target() -> None:
    assert adapt_kl_weight(0.1, kl=12.0, target=6.0, answers=100, horizon=1000) == pytest.approx(0.1 * 1.02)
    assert adapt_kl_weight(0.1, kl=0.0, target=6.0, answers=100, horizon=1000) == pytest.approx(0.1 * 0.98)
    assert adapt_kl_weight(0.1, kl=99.0, target=0.0, answers=100, horizon=1000) == 0.1


def _model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=2 + WORDS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        tie_word_embeddings=False,
        eos_token_id=END,
        pad_token_id=PAD,
        bos_token_id=None,
    )
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config)
    return model


def _copied(prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[float]:
    """The share of an answer's two tokens that are the prompt's word."""
    return [sum(token == prompt[-1] for token in answer) / 2 for prompt, answer in zip(prompts, answers, strict=True)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_to_copy_what_it_is_told(seed: int) -> None:
    settings = PpoSettings(
        max_tokens=2, passes=4, minibatch_size=24, kl_weight=0.002, target_kl=0.0, critic_learning_rate=3e-3
    )
    accelerator = Accelerator(cpu=True)
    ppo = Ppo(ActorCritic(_model(seed)), _model(seed).eval(), settings, 3e-3, 0.0, [END], PAD, accelerator)
    chance = random.Random(seed)
    rewards = []
    for step in range(STEPS):
        prompts = [[PAD + 1 + chance.randrange(WORDS)] * chance.choice((1, 2)) for _ in range(48)]
        figures = ppo.step(
            prompts,
            lambda answers: _copied(prompts, answers),  # noqa: B023
            seed * 1000 + step,
            1 - step / STEPS,
        )
        rewards.append(figures["reward"])
    assert sum(rewards[:3]) / 3 < 0.4
    assert sum(rewards[-5:]) / 5 > 0.95


def test_a_minibatch_at_a_time_says_what_all_together_would() -> None:
    found = []
    for minibatch in (1, 5, 48):
        settings = PpoSettings(max_tokens=3, minibatch_size=minibatch)
        ppo = Ppo(ActorCritic(_model(0)), _model(1).eval(), settings, 3e-3, 0.0, [END], PAD, Accelerator(cpu=True))
        prompts = [[PAD + 1 + place % WORDS] * (1 + place % 3) for place in range(12)]
        torch.manual_seed(3)
        found.append(ppo._collect(prompts, lambda answers: _copied(prompts, answers)))  # noqa: B023
    first = found[0]
    assert (first.width, first.log_probs.shape) == (3, (12, 3))
    for other in found[1:]:
        assert torch.equal(first.ids, other.ids)
        for name in ("log_probs", "values", "advantage", "returns"):
            assert torch.allclose(getattr(first, name), getattr(other, name), atol=1e-5), name
        assert other.metrics == pytest.approx(first.metrics, abs=1e-5)
    # What is told of an answer's token is what a whole look at the same row tells.
    row = torch.tensor([[*prompts[2], *first.ids[2, 3:].tolist()]])
    scores = _model(0).eval()(input_ids=row).logits[0].log_softmax(-1)
    expected = [scores[place - 1, token].item() for place, token in enumerate(row[0].tolist()) if place >= 3]
    assert first.log_probs[2].tolist() == pytest.approx(expected, abs=1e-4)


def test_the_distance_from_the_reference_holds_the_policy_back() -> None:
    far = {}
    for kl in (0.0, 5.0):
        settings = PpoSettings(max_tokens=2, passes=4, minibatch_size=24, kl_weight=kl, target_kl=0.0)
        ppo = Ppo(ActorCritic(_model(0)), _model(0).eval(), settings, 3e-3, 0.0, [END], PAD, Accelerator(cpu=True))
        prompts = [[PAD + 1 + place % WORDS] for place in range(48)]
        for step in range(12):
            figures = ppo.step(prompts, lambda answers: _copied(prompts, answers), step)  # noqa: B023
        far[kl] = figures["kl"]
    assert far[0.0] > 3 * abs(far[5.0])
