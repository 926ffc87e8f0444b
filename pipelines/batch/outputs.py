"""Outputs of a job: JSON lines (plain or in the shape of OpenAI's batch API), CSV, Parquet, a TREC run; gzip, zstd.

The same outcomes always give the same bytes: no dates, no names of machines.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipelines.batch.settings import BatchConfig, OutputFormat, Shape
from pipelines.batch.sources import COMPRESSIONS
from pipelines.data.trec import write_run
from retrievers.errors import BadInput
from retrievers.types import Ranking

FORMATS: dict[str, OutputFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".trec": "trec",
    ".run": "trec",
}
OPENAI_EXTRAS = ("status", "queries", "tools", "nothing_fits", "not_reranked")
"""Facts that an answer in the shape of the batch API has in addition."""
ROW_GROUP = 20_000
"""Rows of a Parquet file that are written together."""
Write = Callable[[list[bytes]], None]
"""Takes outcomes from the journal, each a JSON object."""


@dataclass(frozen=True, slots=True)
class OutputWriter:
    """Writes outcomes in one format."""

    format: OutputFormat
    shape: Shape = "plain"
    compression: str | None = None
    tag: str = "rewrite-batch"
    """The name of a TREC run, and of the model in answers of the batch API."""
    tools: bool = False
    rewrites: bool = True
    relevance: bool = False
    """Tools have a relevance beside their score."""
    probability: bool = False
    """Tools have a probability beside their score."""

    @contextmanager
    def writer(self, stream: IO[bytes]) -> Iterator[Write]:
        """Open a function that writes outcomes into a stream."""
        if self.format == "parquet":
            with self._parquet(stream) as write:
                yield write
            return
        with compress(stream, self.compression) as target:
            yield self.lines(target)

    def lines(self, stream: IO[bytes]) -> Write:
        """A function that writes outcomes into a stream as lines."""
        if self.format == "csv":
            stream.write(_cells(self._columns))

        def write(outcomes: list[bytes]) -> None:
            stream.write(b"".join(map(self._line, outcomes)))

        return write

    @property
    def _columns(self) -> list[str]:
        return ["id", "text", *(["status", "queries", "tokens"] if self.rewrites else []), *["tools"] * self.tools]

    def _line(self, outcome: bytes) -> bytes:
        if self.format == "jsonl" and self.shape == "plain":
            return outcome + b"\n"
        facts = json.loads(outcome)
        if self.format == "jsonl":
            return json.dumps(openai_answer(facts, self.tag), ensure_ascii=False).encode() + b"\n"
        if self.format == "trec":
            hits = facts["tools"]
            ranking = Ranking(tuple(hit["id"] for hit in hits), tuple(hit["score"] for hit in hits))
            return write_run({facts["id"]: ranking}, self.tag).encode()
        values = [facts[name] for name in self._columns]
        return _cells([json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value for value in values])

    @contextmanager
    def _parquet(self, stream: IO[bytes]) -> Iterator[Write]:
        import pyarrow
        import pyarrow.parquet

        numbers = ["score", *["relevance"] * self.relevance, *["probability"] * self.probability]
        hit = pyarrow.struct([("id", pyarrow.string()), *((name, pyarrow.float64()) for name in numbers)])
        kinds = {"queries": pyarrow.list_(pyarrow.string()), "tokens": pyarrow.int64(), "tools": pyarrow.list_(hit)}
        schema = pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in self._columns])
        pending: list[dict[str, Any]] = []
        with pyarrow.parquet.ParquetWriter(stream, schema, compression="zstd") as file:

            def write(outcomes: list[bytes]) -> None:
                pending.extend(map(json.loads, outcomes))
                while len(pending) >= ROW_GROUP:
                    file.write_table(pyarrow.Table.from_pylist(pending[:ROW_GROUP], schema))
                    del pending[:ROW_GROUP]

            yield write
            if pending:
                file.write_table(pyarrow.Table.from_pylist(pending, schema))


def make_output(name: str, config: BatchConfig, shape: Shape, tag: str) -> OutputWriter:
    """The writer of the output with that name."""
    endings = [ending.lower() for ending in Path(name).suffixes]
    compression = COMPRESSIONS.get(endings[-1]) if endings else None
    if compression:
        endings.pop()
    chosen = config.output_format or ("jsonl" if name == "-" else FORMATS.get(endings[-1]) if endings else None)
    if chosen is None:
        raise BadInput(
            f"{name} does not tell its format by its name; end it with .jsonl, .csv, .parquet or .trec "
            "(and .gz or .zst), or set it with --set output_format=jsonl"
        )
    if chosen == "trec" and config.index is None:
        raise BadInput("a TREC run holds tools; name the `index` that finds them")
    if chosen == "parquet" and (compression or name == "-"):
        raise BadInput(f"a Parquet file compresses itself and needs a name, got {name}; end the output with .parquet")
    if chosen != "jsonl":
        shape = "plain"
    return OutputWriter(
        chosen,
        shape,
        compression,
        tag,
        config.index is not None,
        config.rewriter is not None,
        config.min_score is not None,
        config.min_probability is not None,
    )


def openai_answer(facts: dict[str, Any], model: str) -> dict[str, Any]:
    """An outcome in the shape of OpenAI's batch API. `created` is 0, so that the same job gives the same bytes."""
    tokens = facts.get("tokens", 0)
    body: dict[str, Any] = {
        "id": f"rewrite-{facts['id']}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "\n".join(facts.get("queries", []))},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 0, "completion_tokens": tokens, "total_tokens": tokens},
        **{name: facts[name] for name in OPENAI_EXTRAS if name in facts},
    }
    response = {"status_code": 200, "request_id": f"request-{facts['id']}", "body": body}
    return {"id": f"batch-{facts['id']}", "custom_id": facts["id"], "response": response, "error": None}


def error_record(facts: dict[str, Any], shape: Shape) -> dict[str, Any]:
    """A bad row in the shape of the output."""
    if shape == "plain":
        return facts
    error = {"code": "bad_row", "message": facts["error"]}
    rest = {"line": facts["line"], "raw": facts["raw"]}
    return {"id": f"batch-{facts['id']}", "custom_id": facts["id"], "response": None, "error": error, **rest}


@contextmanager
def compress(stream: IO[bytes], compression: str | None) -> Iterator[IO[bytes]]:
    """A stream that compresses into another."""
    if compression == "gzip":
        with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as file:
            yield file  # type: ignore[misc]
    elif compression == "zstd":
        import pyarrow

        own = os.fdopen(os.dup(stream.fileno()), "wb")  # Arrow closes what it writes to
        with pyarrow.CompressedOutputStream(own, "zstd") as writer:
            yield writer
    else:
        yield stream


def _cells(values: list[Any]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(values)
    return text.getvalue().encode("utf-8")
