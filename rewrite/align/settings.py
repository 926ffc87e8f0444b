"""What can be set of an alignment. Stdlib only, so that reading a config costs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rewrite.errors import Unfit
from rewrite.settings import SftSettings

LOSSES = (
    *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired"),
    *("apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
)
"""TRL's, by its names."""


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """How answers are drawn that are scored before training."""

    answers: int = 8
    """Answers a query."""
    temperature: float = 1.0
    top_p: float = 1.0
    most_tokens: int = 96
    chunk: int = 64
    """Queries asked at a time; when their answers are scored they are on the disk."""
    joined: int = 0
    """Lines of one more answer, put together of the lines that most of a query's answers have, at most those that the
    template reads; 0: none. It names all that the policy is torn between, which the policy itself, fine-tuned on one
    right answer a query, never writes."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.answers < 2 or self.temperature <= 0 or not 0 < self.top_p <= 1:
            raise Unfit("answers is at least 2, temperature positive, top_p between 0 and 1")
        if min(self.most_tokens, self.chunk) < 1 or min(self.joined, self.seed) < 0:
            raise Unfit("most_tokens and chunk must be at least 1, joined and seed not negative")


@dataclass(frozen=True, slots=True)
class PairSettings:
    """Which answers of a query make a pair: the best with the worst, the second best with the second worst, …"""

    most: int = 1
    """Pairs a query; 0: those of `joined` and `completed` alone."""
    margin: float = 0.1
    """By how much the chosen one's reward is at least better."""
    least: float = 0.0
    """The reward that a chosen answer has at least."""
    beat_raw: bool = False
    """Take only chosen answers that are better than leaving the query alone."""
    readable: bool = False
    """Take only rejected answers that can be parsed: the format is known, the pairs shall teach retrieval alone."""
    longer: float = 0.0
    """How many times as long as the rejected answer a chosen one may be, and the other way round; 0: any length."""
    target: bool = False
    """Count the query's target as one of its answers: it is chosen where the policy has written nothing better. What
    the policy has never written it cannot learn from its own answers alone."""
    joined: int = 0
    """Pairs more of the answer that was put together (samples.joined) with others as they were drawn, whichever of the
    two is better: so it is chosen where it beats what the policy usually writes, not only where it beats the best."""
    completed: int = 0
    """One pair more a query, of its target and of the same with further lines, up to so many in all: those that pay off
    for the other queries to which the policy says it, and cost the query itself nothing. Where none does, the target is
    the better one, and the worse has the line that lacks most often. 0: none. It wants answers of a policy that is not
    sure yet, one of a single epoch, for example, and many queries: what they lack is pooled. `margin` and the others
    here do not apply to it."""

    def __post_init__(self) -> None:
        least = min(self.most, self.joined, self.completed)
        if least < 0 or self.margin <= 0 or (self.longer and self.longer < 1):
            raise Unfit("most, joined and completed must not be negative, margin positive, longer 0 or at least 1")
        if self.most + self.joined + self.completed < 1:
            raise Unfit("there will be no pairs: set most, joined or completed to at least 1")


@dataclass(frozen=True, slots=True)
class DpoSettings:
    """Direct preference optimisation (TRL): pairs of answers, no rollouts while training."""

    kind: Literal["dpo"] = "dpo"
    beta: float = 0.1
    """How much moving away from the reference costs."""
    loss: tuple[str, ...] = ("sigmoid",)
    """TRL's loss_type: one, or several that are summed with `weights`; `sft` keeps the chosen answers likely."""
    weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    rounds: int = 1
    """Sample, pair and train so often, each time from where the last round ended and with queries of its own."""
    reference: Literal["fresh", "frozen"] = "fresh"
    """Of later rounds: the policy that the round starts from, or the very first one."""
    pairs: str = ""
    """A folder that `rewrite-train pairs` wrote, or a pairs file; empty: they are made here."""
    samples: SampleSettings = field(default_factory=SampleSettings)
    pairing: PairSettings = field(default_factory=PairSettings)

    def __post_init__(self) -> None:
        unknown = [name for name in self.loss if name not in LOSSES]
        if unknown or not self.loss:
            raise Unfit(f"a loss of DPO is one of {', '.join(LOSSES)}", "loss")
        if self.weights and len(self.weights) != len(self.loss):
            raise Unfit(f"{len(self.weights)} weights for {len(self.loss)} losses", "weights")
        if self.beta <= 0 or not 0 <= self.label_smoothing < 0.5 or self.rounds < 1:
            raise Unfit("beta must be positive, label_smoothing from 0 to below 0.5, rounds at least 1")
        if self.pairs and self.rounds > 1:
            raise Unfit("further rounds make their own pairs; leave `pairs` out, or set rounds to 1", "rounds")


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Answers that are drawn while training."""

    answers: int = 8
    """Answers a query, compared with each other; training.batch_size x accumulate x steps is a multiple of it."""
    temperature: float = 1.0
    top_p: float = 1.0
    most_tokens: int = 96
    beta: float = 0.02
    """How much moving away from the reference costs, per token."""
    iterations: int = 1
    """Times that a batch of answers is learned from."""
    steps: int = 1
    """Steps that a batch of answers is spread over: so many times training.batch_size x accumulate answers are written
    at once, which on a GPU takes hardly longer than writing a few. Evaluations, checkpoints and a polite stop come
    after the last step of a batch."""
    by: Literal["transformers", "colocate", "server", "adapter"] = "transformers"
    """Who writes the answers: this process, vLLM in this process, TRL's vLLM server (`trl vllm-serve`), or any vLLM
    server that sees this disk and loads the policy's adapter after every step (LoRA alone; no CUDA needed)."""
    url: str = "http://localhost:8000"
    """Of the server; for `adapter` up to and with /v1."""
    key_variable: str = "OPENAI_API_KEY"
    """The environment variable that holds the server's API key, for `adapter`; nothing is sent where it is not set."""
    memory: float = 0.3
    """The share of a GPU's memory that a vLLM in this process takes."""

    def __post_init__(self) -> None:
        if self.answers < 2 or self.temperature <= 0 or not 0 < self.top_p <= 1 or self.beta < 0:
            raise Unfit("answers is at least 2, temperature positive, top_p between 0 and 1, beta not negative")
        if min(self.most_tokens, self.iterations, self.steps) < 1 or not 0 < self.memory < 1:
            raise Unfit("most_tokens, iterations and steps must be at least 1, memory a share between 0 and 1")


@dataclass(frozen=True, slots=True)
class GrpoSettings(Rollouts):
    """Group relative policy optimisation (TRL)."""

    kind: Literal["grpo"] = "grpo"
    loss: Literal["grpo", "dapo", "bnpo", "dr_grpo"] = "dapo"
    scale: Literal["group", "batch", "none"] = "group"
    """By whose standard deviation advantages are divided."""
    clip: float = 0.2


@dataclass(frozen=True, slots=True)
class RlooSettings(Rollouts):
    """REINFORCE with the other answers' mean as baseline (TRL)."""

    kind: Literal["rloo"] = "rloo"
    beta: float = 0.05
    clip: float = 0.2


@dataclass(frozen=True, slots=True)
class PpoSettings:
    """Proximal policy optimisation, with a critic of its own; a step is a batch of training.batch_size queries."""

    kind: Literal["ppo"] = "ppo"
    temperature: float = 1.0
    most_tokens: int = 96
    passes: int = 2
    """Times that a batch of answers is learned from."""
    minibatch: int = 16
    """Answers whose gradients make one update, on each device."""
    clip: float = 0.2
    value_clip: float = 0.2
    value_weight: float = 0.5
    critic_learning_rate: float = 1e-3
    gamma: float = 1.0
    lam: float = 0.95
    kl: float = 0.02
    """What a nat away from the reference costs at first."""
    target_kl: float = 6.0
    """Nats an answer to which the cost is adapted; 0: it stays as it is."""
    horizon: int = 2_000
    """Answers over which the cost adapts."""

    def __post_init__(self) -> None:
        positive = (self.temperature, self.clip, self.value_clip, self.value_weight, self.critic_learning_rate)
        if min(positive) <= 0 or min(self.kl, self.target_kl) < 0:
            raise Unfit(
                "temperature, clip, value_clip, value_weight, critic_learning_rate must be positive, kl and target_kl "
                "not negative"
            )
        if min(self.most_tokens, self.passes, self.minibatch, self.horizon) < 1:
            raise Unfit("most_tokens, passes, minibatch and horizon must be at least 1")
        if not 0 < self.gamma <= 1 or not 0 <= self.lam <= 1:
            raise Unfit("gamma and lam are shares")


@dataclass(frozen=True, slots=True)
class BestOfNSettings:
    """Fine-tuning on the best of several answers of its own: what the other algorithms have to beat."""

    kind: Literal["best-of-n"] = "best-of-n"
    samples: SampleSettings = field(default_factory=SampleSettings)
    margin: float = 0.05
    """By how much the best answer is at least better than the query's mean one; others teach nothing."""
    beat_raw: bool = False
    """Take only answers that are better than leaving the query alone."""
    vote: bool = False
    """Learn not from the best answer, which a policy cannot know, but from the one that was put together of all
    (samples.joined), wherever it is no worse than the mean one; where more leave the query alone than share a line,
    from that. No margin then."""

    def __post_init__(self) -> None:
        if self.margin < 0:
            raise Unfit("margin must not be negative")
        if self.vote and not self.samples.joined:
            raise Unfit("a vote wants samples.joined, the lines of the answer that is put together", "vote")


AlgoSettings = DpoSettings | GrpoSettings | RlooSettings | PpoSettings | BestOfNSettings


@dataclass(frozen=True, slots=True)
class AlignTraining(SftSettings):
    """As in fine-tuning, with steps as small as alignment wants them. `packing` is for best-of-n alone."""

    epochs: float = 1.0
    learning_rate: float = 1e-5
    evaluations: int = 8
    patience: int = 4
    blends: tuple[float, ...] = ()
    """Shares of the way from the start to the best checkpoint that dev is asked about beside the whole of it; the best
    one is kept. For alignment that gains words and loses what was known: docs/experiments.md."""

    def __post_init__(self) -> None:
        SftSettings.__post_init__(self)  # not super(): slots make this class anew
        if any(not 0 < share < 1 for share in self.blends):
            raise Unfit("a blend is a share of the way from the start, between 0 and 1", "blends")


@dataclass(frozen=True, slots=True)
class Limits:
    """When a policy has collapsed: training stops, and the best checkpoint is kept."""

    parsed: float = 0.5
    """The least share of dev answers that can be parsed."""
    distinct: float = 0.2
    """The least share of dev answers that differ from each other; half of what it was at the start, if that is less."""
    shorter: float = 0.25
    longer: float = 4.0
    """An answer's mean length, as multiples of what it was at the start."""
    kl: float = 60.0
    """Nats an answer away from the reference; 0: any."""

    def __post_init__(self) -> None:
        if not 0 <= self.parsed <= 1 or not 0 <= self.distinct <= 1 or not 0 <= self.shorter < 1 < self.longer:
            raise Unfit("parsed and distinct are shares, shorter is below 1, longer above")
        if self.kl < 0:
            raise Unfit("kl must not be negative")
