"""Settings of a batch job. Stdlib only, so that reading a config costs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from pipelines.rerank.settings import RerankSettings
from pipelines.rewriters import RewriterSettings
from retrievers.errors import BadInput

InputFormat = Literal["jsonl", "csv", "parquet", "txt"]
OutputFormat = Literal["jsonl", "csv", "parquet", "trec"]
Shape = Literal["plain", "openai"]


@dataclass(frozen=True, slots=True)
class InputSettings:
    """The form of the input, where its name and its first row do not show it."""

    format: InputFormat | None = None
    shape: Shape | None = None
    """openai: requests of OpenAI's batch API; the output then has the shape of its answers."""
    text: str | None = None
    """The key or column of the utterance; not set: text, query, utterance or question."""
    id: str | None = None
    """The key or column of the id; not set: _id, id or custom_id, else the row's number."""
    max_characters: Annotated[int, Ge(1)] = 8000
    """A longer utterance is a bad row."""


@dataclass(frozen=True, slots=True)
class RaySettings:
    """The cluster and the workers of --engine ray."""

    address: str | None = None
    """A cluster's address, or `auto`; not set: a cluster on this machine, for this job."""
    workers: Annotated[int, Ge(1)] = 1
    """Actors, each with its own rewriter and index."""
    cpus: Annotated[float, Ge(0)] = 1.0
    """CPUs per actor."""
    gpus: Annotated[float, Ge(0)] = 0.0
    """GPUs per actor."""


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """A batch job: the rewriter, the index, input and output."""

    rewriter: RewriterSettings | None = None
    index: str | None = None
    """Without an index only rewrites are written."""
    retriever: str = "auto"
    """The retriever of the index that answers; auto: the recommended one (docs/choosing.md)."""
    k: Annotated[int, Ge(1)] = 10
    """Tools per row."""
    detect: bool = True
    """Return no tools for queries that need none, where the index has a detector."""
    min_score: Annotated[float, Interval(ge=0, le=1)] | None = None
    """Leave out tools with a lower relevance (docs/choosing.md), which is then written beside the score."""
    min_probability: Annotated[float, Interval(ge=0, le=1)] | None = None
    """Leave out tools that are less probably needed; the probability is then written beside the score."""
    rerank: RerankSettings | None = None
    """A reranker for the first tools of every list."""
    input: InputSettings = field(default_factory=InputSettings)
    output_format: OutputFormat | None = None
    """Not set: by the output's name."""
    order: Literal["input", "any"] = "input"
    """any: rows in the order in which they were finished."""
    chunk_size: Annotated[int, Ge(1)] = 512
    """Rows that are finished, and made crash-safe, together."""
    max_bad_share: Annotated[float, Interval(ge=0, le=1)] = 0.1
    """A larger share of bad rows, of a hundred rows or more, stops the job."""
    cache: str | None = None
    """A file that keeps answers for other jobs with the same model, template and decoding."""
    ray: RaySettings = field(default_factory=RaySettings)

    def __post_init__(self) -> None:
        if self.rewriter is None and self.index is None:
            raise BadInput("a batch job needs a `rewriter`, an `index`, or both; got neither", "rewriter")
        if self.output_format == "trec" and self.index is None:
            raise BadInput("a TREC run holds tools; name the `index` that finds them", "output_format")
        for name in ("min_score", "min_probability"):
            if getattr(self, name) is not None and self.index is None:
                raise BadInput("without an `index` there are no tools that could be left out", name)
        if self.rerank is not None and self.index is None:
            raise BadInput("without an `index` there are no tools to rerank", "rerank")
