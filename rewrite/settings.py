"""Settings of a rewriter and of its fine-tuning. Stdlib only, so that reading a config stays fast."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from rewrite.errors import RewriteError

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Decoding of a model's answers."""

    temperature: Annotated[float, Ge(0)] = 0.0
    """0: greedy, the same answer every time."""
    top_p: Annotated[float, Interval(gt=0, le=1)] = 1.0
    answers: Annotated[int, Ge(1)] = 1
    """Answers per prompt; more than one needs a temperature. The rewrite then has the lines with the most votes."""
    max_tokens: Annotated[int, Ge(1)] = 192
    """Tokens after which an answer is cut."""
    seed: Annotated[int, Ge(0)] = 0
    max_lines: Annotated[int, Ge(1)] = 5
    """Lines that several answers are merged into, at most."""
    min_votes: Annotated[int, Ge(1)] = 2
    """Answers that must share a line to keep it; a query is left alone where no line has enough. Set 1 for a model that
    has learned its catalogue by heart: every line of it names a tool, while an invented line is never repeated."""

    def __post_init__(self) -> None:
        if 1 < self.answers < self.min_votes:
            raise RewriteError(f"no line gets {self.min_votes} votes of {self.answers} answers", "min_votes")
        if self.answers > 1 and self.temperature == 0:
            raise RewriteError("greedy answers are all the same; set a temperature for several answers", "answers")


@dataclass(frozen=True, slots=True)
class TransformersSettings:
    """The model in this process, run by transformers."""

    kind: Literal["transformers"] = "transformers"
    batch_size: Annotated[int, Ge(1)] = 32
    """Answers generated at a time; several answers to one prompt count separately."""
    dtype: Dtype = "auto"
    """auto: bfloat16 on GPUs that support it, float32 on CPUs."""


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """The model in this process, run by vLLM."""

    kind: Literal["vllm"] = "vllm"
    dtype: Dtype = "auto"
    """auto: bfloat16 on GPUs that support it, float32 on CPUs."""
    context: Annotated[int, Ge(0)] = 0
    """Tokens of prompt and answer together; 0: as in the model's config."""
    gpu_memory: Annotated[float, Interval(gt=0, le=1)] | None = None
    """Share of the device's memory for vLLM; not set: as much as the model needs, at most what is free. On a CPU
    $VLLM_CPU_KVCACHE_SPACE sets the GiB of its cache."""
    eager: bool = False
    """Skip compilation: starts faster, answers slower."""


@dataclass(frozen=True, slots=True)
class OnnxSettings:
    """The model in this process on a CPU, quantised, run by ONNX Runtime GenAI."""

    kind: Literal["onnx"] = "onnx"
    bits: Literal[8, 4] = 8
    """Bits per weight: 4 answers faster, 8 answers more like the model itself."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Any server with OpenAI's chat completions: vLLM, llama.cpp, Ollama, a provider."""

    url: str
    """Up to and including /v1."""
    model: str
    """The server's name of the model or adapter."""
    kind: Literal["server"] = "server"
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the API key; no key is sent where it is not set."""
    concurrency: Annotated[int, Ge(1)] = 16
    """Requests in flight at the same time."""
    timeout: Annotated[float, Gt(0)] = 60.0
    """Seconds per request."""
    retries: Annotated[int, Ge(0)] = 4
    """How often a failed request (429, 5xx, connection, timeout) is sent again."""
    context: Annotated[int, Ge(0)] = 0
    """Tokens of prompt and answer together; 0: ask the server, which may not know."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise RewriteError(f"a server's url starts with http:// or https://, got {self.url!r}", "url")


@dataclass(frozen=True, slots=True)
class RulesSettings:
    """No model: the utterance's clauses without names, numbers and courtesies. The baseline for every model."""

    kind: Literal["rules"] = "rules"


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """No model: rewrites that a batch job or an evaluation wrote before."""

    path: str
    """JSON lines of `rewrite-batch`, or an evaluation's queries.jsonl."""
    kind: Literal["replay"] = "replay"
    rewriter: str = ""
    """Name of the rewriter in an evaluation's file."""
    made_by: Literal["", "rules", "zero-shot", "sft", "aligned"] = ""
    """Kind of that rewriter for the tables; the file does not record it."""


BackendSettings = TransformersSettings | VllmSettings | OnnxSettings | ServerSettings | RulesSettings | ReplaySettings


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The adapter that is trained in place of the whole model."""

    rank: Annotated[int, Ge(1)] = 32
    alpha: Annotated[int, Ge(1)] = 64
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0


@dataclass(frozen=True, slots=True)
class SftSettings:
    """Supervised fine-tuning."""

    method: Literal["lora", "full"] = "lora"
    """lora trains an adapter on the frozen model, full trains the model itself."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    epochs: Annotated[float, Gt(0)] = 3.0
    batch_size: Annotated[int, Ge(1)] = 16
    """Rows per step on each device: examples, or packed rows of `max_tokens`."""
    gradient_accumulation_steps: Annotated[int, Ge(1)] = 1
    """Batches whose gradients are summed for one optimizer step."""
    learning_rate: Annotated[float, Gt(0)] = 5e-4
    warmup: Annotated[float, Interval(ge=0, lt=1)] = 0.05
    """Share of all steps over which the learning rate rises."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    weight_decay: Annotated[float, Ge(0)] = 0.0
    max_tokens: Annotated[int, Ge(1)] = 512
    """Tokens of an example, or of a packed row."""
    packing: bool | None = None
    """Fill rows with several examples that do not attend to each other. Not set: only where flash attention is
    installed, since any other attention pays for the length of the whole batch."""
    attention: Literal["auto", "eager"] = "auto"
    """auto: flash attention for packed rows where it is installed, otherwise PyTorch's own. eager: plain matrix
    products; slower and larger, but the way out where a fused kernel's gradient becomes NaN."""
    gradient_checkpointing: bool = False
    """Compute activations twice to save memory."""
    evaluations: Annotated[int, Ge(1)] = 4
    """Evaluations on dev with retrieval, evenly over the run; each is followed by a checkpoint."""
    patience: Annotated[int, Ge(1)] = 3
    """Evaluations without a better dev metric before training stops."""
    keep_checkpoints: bool = False
    """Keep checkpoints after the run. Each holds the optimizer's state, several times the size of the model."""
    seed: Annotated[int, Ge(0)] = 0
    report_to: tuple[str, ...] = ("tensorboard",)
    """tensorboard, wandb, mlflow, trackio; empty: metrics.jsonl alone."""
