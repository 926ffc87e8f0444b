"""Settings of an alignment. Stdlib only, so that reading a config stays fast."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from rewrite.errors import RewriteError
from rewrite.settings import SftSettings

LOSSES = (
    *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired"),
    *("apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
)
"""TRL's DPO losses, by TRL's names."""


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """Answers that are drawn and scored before training."""

    answers: Annotated[int, Ge(2)] = 8
    """Answers per query."""
    temperature: Annotated[float, Gt(0)] = 1.0
    max_tokens: Annotated[int, Ge(1)] = 96
    chunk_size: Annotated[int, Ge(1)] = 64
    """Queries per chunk; a chunk is on disk as soon as its answers are scored."""
    seed: Annotated[int, Ge(0)] = 0


@dataclass(frozen=True, slots=True)
class PairSettings:
    """Preference pairs of a query: the best answer with the worst, the second best with the second worst, …"""

    max_pairs: Annotated[int, Ge(1)] = 1
    """Pairs per query."""
    margin: Annotated[float, Gt(0)] = 0.1
    """Minimum difference between the rewards of the chosen and the rejected answer."""
    parseable_only: bool = False
    """Reject only answers that can be parsed: the policy knows the format already, the pairs teach retrieval."""
    include_target: bool = False
    """Add the query's target to its answers. It is chosen where the policy wrote nothing better: what the policy never
    writes it cannot learn from its own answers."""


@dataclass(frozen=True, slots=True)
class DpoSettings:
    """Direct preference optimization (TRL): pairs of answers, no rollouts while training."""

    kind: Literal["dpo"] = "dpo"
    beta: Annotated[float, Gt(0)] = 0.1
    """Cost of moving away from the reference."""
    loss: tuple[str, ...] = ("sigmoid",)
    """TRL's loss_type: one, or several that are summed with `weights`; `sft` keeps the chosen answers likely."""
    weights: tuple[float, ...] = ()
    rounds: Annotated[int, Ge(1)] = 1
    """Rounds of sampling, pairing and training; each starts from the last round's policy, with queries of its own."""
    reference: Literal["fresh", "frozen"] = "fresh"
    """Reference of later rounds: the policy at the start of the round (fresh), or of the first round (frozen)."""
    pairs: str = ""
    """A folder of `rewrite-train pairs`, or a pairs file; empty: pairs are made by this run."""
    samples: SampleSettings = field(default_factory=SampleSettings)
    pairing: PairSettings = field(default_factory=PairSettings)

    def __post_init__(self) -> None:
        unknown = [name for name in self.loss if name not in LOSSES]
        if unknown or not self.loss:
            raise RewriteError(f"a DPO loss is one of {', '.join(LOSSES)}, got {list(self.loss)}", "loss")
        if self.weights and len(self.weights) != len(self.loss):
            raise RewriteError(f"{len(self.weights)} weights for {len(self.loss)} losses", "weights")
        if self.pairs and self.rounds > 1:
            raise RewriteError("later rounds make their own pairs; leave `pairs` out, or set rounds to 1", "rounds")


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Answers that are drawn while training."""

    answers: Annotated[int, Ge(2)] = 8
    """Answers per query; batch_size x gradient_accumulation_steps x steps (x devices) must be a multiple of it."""
    temperature: Annotated[float, Gt(0)] = 1.0
    max_tokens: Annotated[int, Ge(1)] = 96
    beta: Annotated[float, Ge(0)] = 0.02
    """Cost of moving away from the reference, per token."""
    iterations: Annotated[int, Ge(1)] = 1
    """Passes over each batch of answers."""
    steps: Annotated[int, Ge(1)] = 1
    """Optimizer steps per batch of answers: this many steps' answers are generated together, which a GPU does in little
    more time than one step's. Evaluations, checkpoints and a graceful stop wait for the last step of a batch."""
    engine: Literal["transformers", "colocate", "server"] = "transformers"
    """Generator of the answers: this process, vLLM in this process (colocate), or TRL's vLLM server."""
    server_url: str = "http://localhost:8000"
    """Address of `trl vllm-serve`."""
    gpu_memory: Annotated[float, Interval(gt=0, lt=1)] = 0.3
    """Share of a GPU's memory for vLLM in this process."""


@dataclass(frozen=True, slots=True)
class GrpoSettings(RolloutSettings):
    """Group relative policy optimization (TRL)."""

    kind: Literal["grpo"] = "grpo"
    loss: Literal["grpo", "dapo", "bnpo", "dr_grpo"] = "dapo"


@dataclass(frozen=True, slots=True)
class RlooSettings(RolloutSettings):
    """REINFORCE with the mean of the other answers as baseline (TRL)."""

    kind: Literal["rloo"] = "rloo"
    beta: Annotated[float, Ge(0)] = 0.05


@dataclass(frozen=True, slots=True)
class PpoSettings:
    """Proximal policy optimization with a critic; a step takes training.batch_size queries."""

    kind: Literal["ppo"] = "ppo"
    temperature: Annotated[float, Gt(0)] = 1.0
    max_tokens: Annotated[int, Ge(1)] = 96
    passes: Annotated[int, Ge(1)] = 2
    """Passes over each batch of answers."""
    minibatch_size: Annotated[int, Ge(1)] = 16
    """Answers per update on each device."""
    critic_learning_rate: Annotated[float, Gt(0)] = 1e-3
    gae_lambda: Annotated[float, Interval(ge=0, le=1)] = 0.95
    kl_weight: Annotated[float, Ge(0)] = 0.02
    """Initial cost of a nat away from the reference."""
    target_kl: Annotated[float, Ge(0)] = 6.0
    """Nats per answer that the cost is adapted to; 0: the cost stays as it is."""


@dataclass(frozen=True, slots=True)
class BestOfNSettings:
    """Fine-tuning on the best of several own answers: the baseline for the other algorithms."""

    kind: Literal["best-of-n"] = "best-of-n"
    samples: SampleSettings = field(default_factory=SampleSettings)
    margin: Annotated[float, Ge(0)] = 0.05
    """Minimum reward of the best answer above the query's mean; other queries are left out."""
    abstain: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Share of the examples that leave the query alone, drawn from the queries where no answer finds more than the raw
    query: the model learns from its own gains when to write."""


AlgoSettings = DpoSettings | GrpoSettings | RlooSettings | PpoSettings | BestOfNSettings


@dataclass(frozen=True, slots=True)
class AlignTraining(SftSettings):
    """Fine-tuning settings with the smaller steps of alignment. `packing` applies to best-of-n alone."""

    epochs: Annotated[float, Gt(0)] = 1.0
    learning_rate: Annotated[float, Gt(0)] = 1e-5
    evaluations: Annotated[int, Ge(1)] = 8
    patience: Annotated[int, Ge(1)] = 4
    blends: tuple[Annotated[float, Interval(gt=0, lt=1)], ...] = ()
    """Shares of the way from the start to the best checkpoint; dev chooses among these weights and the checkpoint's.
    For alignment that gains phrasing and loses knowledge: docs/experiments.md."""


@dataclass(frozen=True, slots=True)
class CollapseLimits:
    """Limits beyond which a policy has collapsed: training stops, and the best checkpoint is kept."""

    min_parsed: Annotated[float, Interval(ge=0, le=1)] = 0.5
    """Minimum share of dev answers that can be parsed."""
    min_distinct: Annotated[float, Interval(ge=0, le=1)] = 0.2
    """Minimum share of distinct dev answers; half of the share at the start, if that is less."""
    min_length_ratio: Annotated[float, Interval(ge=0, lt=1)] = 0.25
    max_length_ratio: Annotated[float, Gt(1)] = 4.0
    """Limits of the mean answer length, relative to the start."""
    max_kl: Annotated[float, Ge(0)] = 60.0
    """Maximum nats per answer away from the reference; 0: no limit."""
