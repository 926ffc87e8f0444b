"""What a batch job's config says. Stdlib only, so that reading a config costs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pipelines.rewriters import RewriterSettings
from retrievers.errors import BadInput
from retrievers.settings import RewriteFusion

Format = Literal["jsonl", "csv", "parquet", "txt", "trec"]


@dataclass(frozen=True, slots=True)
class InputSettings:
    """How the input reads, where its name and its first row do not tell."""

    format: Literal["jsonl", "csv", "parquet", "txt"] | None = None
    shape: Literal["plain", "openai"] | None = None
    """openai: requests as OpenAI's batch API takes them; the output then has the shape of its answers."""
    text: str | None = None
    """The key or column that holds the utterance; not set: text, query, utterance or question."""
    id: str | None = None
    """The key or column that holds the id; not set: _id, id or custom_id, and where there is none the row's number."""
    max_characters: int = 8000
    """A longer utterance is a bad row."""

    def __post_init__(self) -> None:
        if self.max_characters < 1:
            raise BadInput("max_characters must be at least 1", "max_characters")


@dataclass(frozen=True, slots=True)
class RaySettings:
    """Where and how wide a job runs with --engine ray."""

    address: str | None = None
    """A cluster's address, or `auto`; not set: a cluster of this machine's own, for this job."""
    workers: int = 1
    """Actors, each with a rewriter and an index of its own."""
    cpus: float = 1.0
    gpus: float = 0.0
    """What one actor takes."""

    def __post_init__(self) -> None:
        if self.workers < 1 or min(self.cpus, self.gpus) < 0:
            raise BadInput("workers is at least 1, cpus and gpus are not negative")


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """A batch job: who rewrites, which index is asked, what is written."""

    rewriter: RewriterSettings | None = None
    index: str | None = None
    """Without an index only rewrites are written."""
    retriever: str = "dense"
    fusion: RewriteFusion | None = None
    """How raw and rewritten lists become one; not set: as the rewriter's card says."""
    k: int = 10
    """Tools a row."""
    detect: bool = True
    """What needs no tool gets none, where the index can tell."""
    input: InputSettings = field(default_factory=InputSettings)
    output_format: Literal["jsonl", "csv", "parquet", "trec"] | None = None
    """Not set: as the output's name says."""
    order: Literal["input", "any"] = "input"
    """any: rows stand as they were finished; resumed or not, they are the same rows."""
    chunk: int = 512
    """Rows that are finished, and safe from any crash, together."""
    most_bad: float = 0.1
    """The share of bad rows, of the first hundred or more, that stops the job."""
    cache: str | None = None
    """A file that keeps answers for other jobs with the same model, template and decoding."""
    ray: RaySettings = field(default_factory=RaySettings)

    def __post_init__(self) -> None:
        if self.rewriter is None and self.index is None:
            raise BadInput("a batch job needs a `rewriter`, an `index`, or both")
        if self.k < 1 or self.chunk < 1 or not 0 <= self.most_bad <= 1:
            raise BadInput("k and chunk are at least 1, most_bad is a share between 0 and 1")
        if self.output_format == "trec" and self.index is None:
            raise BadInput("a TREC run holds tools; name the `index` that finds them", "output_format")
