"""What can be set of a rewriter and of its training. Stdlib only, so that reading a config costs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rewrite.errors import Unfit


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a model answers."""

    temperature: float = 0.0
    """0: greedy, the same answer every time."""
    top_p: float = 1.0
    answers: int = 1
    """How many answers a prompt gets; more than one only when sampling. A query is then rewritten into the lines with
    most votes."""
    most_tokens: int = 192
    """Tokens after which an answer is cut."""
    seed: int = 0
    joined: int = 5
    """Lines that several answers are joined to, at the most."""
    votes: int = 2
    """Of several answers, those that must have a line; a query is left alone where none has so many. 1 for a model that
    knows its tools by heart, whose every line names one; what a model invents is never said twice."""

    def __post_init__(self) -> None:
        least = min(self.answers, self.most_tokens, self.joined, self.votes)
        if self.temperature < 0 or not 0 < self.top_p <= 1 or least < 1 or self.seed < 0:
            raise Unfit("sampling wants temperature >= 0, 0 < top_p <= 1, seed >= 0, the others at least 1")
        if 1 < self.answers < self.votes:
            raise Unfit(f"no line gets {self.votes} votes of {self.answers} answers")
        if self.answers > 1 and self.temperature == 0:
            raise Unfit("greedy answers are all the same; for several answers set a temperature")


@dataclass(frozen=True, slots=True)
class TransformersSettings:
    """The model in this process, by transformers."""

    kind: Literal["transformers"] = "transformers"
    batch_size: int = 32
    """Prompts answered at a time; several answers of one prompt count once each."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on GPUs that have it, float32 on CPUs."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise Unfit("batch_size must be at least 1")


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """The model in this process, by vLLM."""

    kind: Literal["vllm"] = "vllm"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on GPUs that have it, float32 on CPUs."""
    context: int = 0
    """Tokens of prompt and answer together; 0: as the model has it."""
    memory: float = 0.9
    """The share of a GPU's memory that vLLM takes; on a CPU, gibibytes of its cache are $VLLM_CPU_KVCACHE_SPACE."""
    eager: bool = False
    """Skip compilation: starts faster, answers slower."""

    def __post_init__(self) -> None:
        if self.context < 0 or not 0 < self.memory <= 1:
            raise Unfit("context must not be negative, memory is a share between 0 and 1")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Any server that speaks OpenAI's chat completions: vLLM, llama.cpp, Ollama, a provider."""

    url: str
    """Up to and with /v1."""
    model: str
    """The name the server knows the model, or the adapter, by."""
    kind: Literal["server"] = "server"
    key_variable: str = "OPENAI_API_KEY"
    """The environment variable that holds the API key; nothing is sent where it is not set."""
    concurrency: int = 16
    """Requests under way at the same time."""
    timeout: float = 60.0
    """Seconds for one request."""
    retries: int = 4
    """How often a request that failed for want of the server (429, 5xx, connection, timeout) is sent again."""
    context: int = 0
    """Tokens of prompt and answer together; 0: ask the server, which may not say."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise Unfit(f"the url of a server starts with http:// or https://, not {self.url!r}")
        if self.concurrency < 1 or self.timeout <= 0 or min(self.retries, self.context) < 0:
            raise Unfit("concurrency is at least 1, timeout positive, retries and context not negative")


@dataclass(frozen=True, slots=True)
class RulesSettings:
    """No model at all: the utterance's clauses without names, numbers and courtesies. What a model has to beat."""

    kind: Literal["rules"] = "rules"


@dataclass(frozen=True, slots=True)
class WrittenSettings:
    """No model here: what a batch job or an evaluation has written already."""

    kind: Literal["written"] = "written"
    path: str = ""
    """JSON lines of `rewrite-batch`, or an evaluation's queries.jsonl."""
    rewriter: str = ""
    """Whose rewrites, in an evaluation's file."""
    made_by: Literal["", "rules", "zero-shot", "sft", "aligned"] = ""
    """What kind of rewriter that is, for tables; the file does not tell."""

    def __post_init__(self) -> None:
        if not self.path:
            raise Unfit("a backend of kind written wants the `path` of a file with rewrites", "path")


BackendSettings = TransformersSettings | VllmSettings | ServerSettings | RulesSettings | WrittenSettings


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The adapter that is trained in place of the whole model."""

    rank: int = 32
    alpha: int = 64
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if min(self.rank, self.alpha) < 1 or not 0 <= self.dropout < 1:
            raise Unfit("rank and alpha must be at least 1, dropout between 0 and 1")


@dataclass(frozen=True, slots=True)
class SftSettings:
    """How the supervised fine-tuning goes."""

    method: Literal["lora", "full"] = "lora"
    """lora trains an adapter beside the frozen model, full trains the model itself."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    epochs: float = 3.0
    batch_size: int = 16
    """Rows a step on each device: examples, or packed rows of `most_tokens`."""
    accumulate: int = 1
    """Batches whose gradients make one step."""
    learning_rate: float = 5e-4
    warmup: float = 0.05
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    weight_decay: float = 0.0
    most_tokens: int = 512
    """Tokens of an example, or of a packed row."""
    packing: bool | None = None
    """Fill rows with several examples, which do not see each other. Not set: where flash attention is installed, since
    any other attention pays for the length of the whole batch."""
    attention: Literal["auto", "eager"] = "auto"
    """auto: flash attention for packed rows where it is installed, PyTorch's own elsewhere. eager: plain matrix
    products, which need more memory and are the way out where a fused kernel makes the gradient no number."""
    gradient_checkpointing: bool = False
    """Compute activations twice to save memory."""
    evaluations: int = 4
    """How often dev is evaluated with retrieval, evenly over the run; after each comes a checkpoint."""
    patience: int = 3
    """Evaluations without a better dev metric before training stops."""
    keep_checkpoints: bool = False
    """Keep them when the run has ended. Nothing goes on from them, and each holds the optimiser's state, which is
    several times as large as the model."""
    seed: int = 0
    report_to: tuple[str, ...] = ("tensorboard",)
    """tensorboard, wandb, mlflow, trackio; empty: metrics.jsonl alone."""

    def __post_init__(self) -> None:
        counts = (self.batch_size, self.accumulate, self.most_tokens, self.evaluations, self.patience)
        if min(counts) < 1 or self.epochs <= 0:
            raise Unfit(
                "epochs must be positive; batch_size, accumulate, most_tokens, evaluations, patience at least 1"
            )
        if self.learning_rate <= 0 or not 0 <= self.warmup < 1 or min(self.weight_decay, self.seed) < 0:
            raise Unfit("learning_rate must be positive, warmup between 0 and 1, weight_decay and seed not negative")
