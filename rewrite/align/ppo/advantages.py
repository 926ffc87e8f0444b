"""Generalized advantage estimation (Schulman et al., 2016) and PPO's losses: pure functions of tensors.

Tensors are (answers, tokens); `mask` is True on the tokens of an answer, which come first in every row.
"""

from __future__ import annotations

import torch


def advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, gae_lambda: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns. The value after an answer's last token is 0."""
    values, rewards = values * mask, rewards * mask
    result = torch.zeros_like(values)
    after = torch.zeros_like(values[:, 0])
    for index in reversed(range(values.shape[1])):
        following = values[:, index + 1] if index + 1 < values.shape[1] else torch.zeros_like(after)
        delta = rewards[:, index] + gamma * following - values[:, index]
        after = (delta + gamma * gae_lambda * after) * mask[:, index]
        result[:, index] = after
    return result, result + values


def policy_loss(
    new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, mask: torch.Tensor, clip: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's clipped loss, and the share of tokens that were clipped."""
    ratio = torch.where(mask, new - old, 0.0).exp()
    free, clipped = -advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)
    return torch.max(free, clipped)[mask].mean(), (clipped > free)[mask].float().mean()


def value_loss(
    new: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, clip: float
) -> torch.Tensor:
    """Half the critic's squared error; the critic moves no further than the clip at a time."""
    near = old + (new - old).clamp(-clip, clip)
    return 0.5 * torch.max((new - returns) ** 2, (near - returns) ** 2)[mask].mean()


def adapt_kl_weight(kl_weight: float, kl: float, target: float, answers: int, horizon: int) -> float:
    """Raises the weight where the KL distance is above its target, lowers it where it is below."""
    if not target:
        return kl_weight
    error = min(0.2, max(-0.2, kl / target - 1))
    return kl_weight * (1 + error * min(1.0, answers / horizon))
