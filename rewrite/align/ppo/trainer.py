"""PPO on tokens: a policy with a critic, a frozen reference, and a reward at the end of every answer.

Random numbers come from the step's seed alone, so that a step can be repeated, on a GPU as far as its arithmetic is
deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import GenerationConfig

from rewrite.align.ppo.advantages import adapt_kl_weight, advantages, policy_loss, value_loss
from rewrite.align.settings import PpoSettings
from rewrite.settings import Sampling
from rewrite.speedups.decoding import MAX_ANSWERS, Decoding, can_record, half_copy

CLIP, VALUE_CLIP, VALUE_WEIGHT, GAMMA = 0.2, 0.2, 0.5, 1.0
KL_HORIZON = 2_000
"""Answers over which the KL weight adapts."""
Tokens = list[list[int]]
Score = Callable[[Tokens], list[float]]
"""Tokens of each answer, its end included -> rewards."""


class ActorCritic(nn.Module):
    """A language model and a critic that reads its last hidden states without changing them."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        width = int(policy.config.get_text_config().hidden_size)
        self.policy = policy
        head = nn.Linear(width, 1)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        self.critic = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh(), head)

    def forward(self, ids: Tensor, mask: Tensor, width: int, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probabilities and values of the tokens after the first `width`."""
        output = _forward(self.policy, ids, mask, width, hidden=True)
        states = output.hidden_states[-1][:, width - 1 : -1].detach().float()
        with torch.autocast(ids.device.type, enabled=False):  # small, and summed over a whole answer
            values = self.critic(states).squeeze(-1)
        return _log_probs(output.logits, ids, width, temperature), values


def _forward(model: Any, ids: Tensor, mask: Tensor, width: int, hidden: bool = False) -> Any:
    """Computes logits from the last of the first `width` tokens on: a prompt's would be thrown away."""
    return model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        use_cache=False,
        output_hidden_states=hidden,
        logits_to_keep=ids.shape[1] - width + 1,
    )


def _log_probs(logits: Tensor, ids: Tensor, width: int, temperature: float) -> Tensor:
    scores = logits[:, :-1].float() / temperature
    return scores.log_softmax(-1).gather(2, ids[:, width:, None]).squeeze(-1)


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """Answers with their scores at the time they were generated."""

    ids: Tensor
    mask: Tensor
    width: int
    """Tokens of the padded prompts."""
    answer_mask: Tensor
    """(answers, tokens): True on an answer's tokens."""
    log_probs: Tensor
    values: Tensor
    advantage: Tensor
    returns: Tensor
    metrics: dict[str, float]


class Ppo:
    """The algorithm. Weights change in `step` alone."""

    def __init__(
        self,
        model: ActorCritic,
        reference: Any,
        settings: PpoSettings,
        learning_rate: float,
        weight_decay: float,
        ends: Sequence[int],
        pad: int,
        accelerator: Accelerator,
    ) -> None:
        self.settings, self.kl_weight = settings, settings.kl_weight
        self._reference, self._ends, self._pad, self._accelerator = reference, list(ends), pad, accelerator
        trained = [weight for weight in model.policy.parameters() if weight.requires_grad]
        self._rates = (learning_rate, settings.critic_learning_rate)
        groups: list[dict[str, Any]] = [
            {"params": trained, "lr": learning_rate},
            {"params": list(model.critic.parameters()), "lr": settings.critic_learning_rate},
        ]
        optimizer = torch.optim.AdamW(groups, weight_decay=weight_decay)
        self._model, self.optimizer = accelerator.prepare(model.eval(), optimizer)

    @property
    def model(self) -> ActorCritic:
        """Policy and critic, unwrapped."""
        model: ActorCritic = self._accelerator.unwrap_model(self._model)
        return model

    def step(self, prompts: Tokens, score: Score, seed: int, rate: float = 1.0) -> dict[str, float]:
        """Generates one answer per prompt and learns from their rewards; `rate` scales the learning rates."""
        torch.manual_seed(seed)
        batch = self._collect(prompts, score)
        for group, full in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = full * rate
        order = torch.Generator().manual_seed(seed)
        sums: dict[str, float] = {}
        updates = 0
        for _ in range(self.settings.passes):
            shuffled: Any = torch.randperm(len(prompts), generator=order)
            for rows in shuffled.split(self.settings.minibatch_size):
                for name, value in self._update(batch, rows.to(batch.ids.device)).items():
                    sums[name] = sums.get(name, 0.0) + value
                updates += 1
        metrics = batch.metrics | {name: value / updates for name, value in sums.items()}
        metrics = {name: self._mean(value) for name, value in metrics.items()}
        metrics["kl_weight"] = self.kl_weight
        answers = len(prompts) * self._accelerator.num_processes
        self.kl_weight = adapt_kl_weight(self.kl_weight, metrics["kl"], self.settings.target_kl, answers, KL_HORIZON)
        return metrics

    def _update(self, batch: RolloutBatch, rows: Tensor) -> dict[str, float]:
        mask = batch.answer_mask[rows]
        with self._accelerator.autocast():
            inputs = (batch.ids[rows], batch.mask[rows], batch.width, self.settings.temperature)
            log_probs, values = self._model(*inputs)
        policy, clipped = policy_loss(log_probs, batch.log_probs[rows], batch.advantage[rows], mask, CLIP)
        value = value_loss(values, batch.values[rows], batch.returns[rows], mask, VALUE_CLIP)
        loss = policy + VALUE_WEIGHT * value
        self.optimizer.zero_grad()
        self._accelerator.backward(loss)
        norm = self._accelerator.clip_grad_norm_(self._model.parameters(), 1.0)
        self.optimizer.step()
        return {
            "loss": loss.item(),
            "policy_loss": policy.item(),
            "value_loss": value.item(),
            "clipped": clipped.item(),
            "grad_norm": float(norm),
        }

    @torch.no_grad()
    def _collect(self, prompts: Tokens, score: Score) -> RolloutBatch:
        ids, mask = self._pad_left(prompts)
        width = ids.shape[1]
        ids = self._generate(ids, mask)
        ended = torch.isin(ids[:, width:], torch.tensor(self._ends, device=ids.device))
        answer_mask = ended.cumsum(1) - ended.long() == 0  # up to the first end token, which belongs to the answer
        mask = torch.cat([mask, answer_mask.long()], 1)
        log_probs, values, reference = self._score_tokens(ids, mask, width)
        answers = [row[kept].tolist() for row, kept in zip(ids[:, width:], answer_mask, strict=True)]
        earned = torch.tensor(score(answers), dtype=torch.float32, device=ids.device)
        distance = (log_probs - reference) * answer_mask
        rewards = -self.kl_weight * distance
        rewards[torch.arange(len(answers)), answer_mask.sum(1) - 1] += earned
        advantage, returns = advantages(rewards, values, answer_mask, GAMMA, self.settings.gae_lambda)
        metrics = {
            "reward": earned.mean().item(),
            "reward_std": earned.std(unbiased=False).item(),
            "kl": distance.sum(1).mean().item(),
            "length": answer_mask.sum(1).float().mean().item(),
            "entropy": -(log_probs * answer_mask).sum().item() / int(answer_mask.sum()),
            "value": (values * answer_mask).sum().item() / int(answer_mask.sum()),
        }
        advantage = self._whiten(advantage, answer_mask)
        return RolloutBatch(ids, mask, width, answer_mask, log_probs, values, advantage, returns, metrics)

    def _generate(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Prompts followed by the policy's answers."""
        settings, policy = self.settings, self.model.policy
        half = self._accelerator.mixed_precision == "bf16"
        if can_record(policy, copied=half):
            sampling = Sampling(settings.temperature, max_tokens=settings.max_tokens)
            generator = half_copy(policy) if half else policy
            parts = [
                Decoding(generator, some, kept, sampling, self._ends, self._pad).run(record=True)
                for some, kept in zip(torch.split(ids, MAX_ANSWERS), torch.split(mask, MAX_ANSWERS), strict=True)
            ]
            answers = torch.cat(parts)
            ended = torch.isin(answers, torch.tensor(self._ends, device=answers.device)).cumsum(1) > 0
            longest = int((~ended).sum(1).max()) + 1  # the longest answer, its end included
            return torch.cat([ids, answers[:, :longest]], 1)
        config: Any = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=True,
            temperature=settings.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=settings.max_tokens,
            eos_token_id=self._ends,
            pad_token_id=self._pad,
            remove_invalid_values=True,  # check_finite stops a broken policy; here it would end the process on a GPU
        )
        with self._accelerator.autocast():
            whole: Tensor = policy.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        return whole

    def _score_tokens(self, ids: Tensor, mask: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, values and the reference's log-probabilities, per minibatch: the scores of a large
        vocabulary for all answers would not fit."""
        size, temperature = self.settings.minibatch_size, self.settings.temperature
        parts = []
        for start in range(0, len(ids), size):
            some, kept = ids[start : start + size], mask[start : start + size]
            with self._accelerator.autocast():
                log_probs, values = self.model(some, kept, width, temperature)
                logits = _forward(self._reference, some, kept, width).logits
                reference = _log_probs(logits, some, width, temperature)
            parts.append((log_probs, values, reference))
        log_probs, values, reference = (torch.cat(part) for part in zip(*parts, strict=True))
        return log_probs, values, reference

    def _pad_left(self, prompts: Tokens) -> tuple[Tensor, Tensor]:
        width, device = max(map(len, prompts)), self._accelerator.device
        ids = torch.tensor([[self._pad] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
        return ids, mask

    def _whiten(self, advantage: Tensor, mask: Tensor) -> Tensor:
        """Scales to mean 0 and deviation 1 over the tokens of all processes."""
        kept = advantage[mask]
        sums = torch.stack([kept.sum(), (kept**2).sum(), mask.sum().float()])
        total, squares, count = self._accelerator.reduce(sums, reduction="sum")
        mean = total / count
        whitened: Tensor = (advantage - mean) * (squares / count - mean**2 + 1e-8).rsqrt() * mask
        return whitened

    def _mean(self, value: float) -> float:
        if self._accelerator.num_processes == 1:
            return value
        mine = torch.tensor(value, device=self._accelerator.device)
        return float(self._accelerator.reduce(mine, reduction="mean"))
