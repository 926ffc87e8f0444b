"""A job on Ray Data: one task reads chunks, actors expand them, this process writes what they return.

It uses its own actors instead of Ray's processor for vLLM: any backend runs in them, a query takes the same path as in
every other command, and a dead actor costs its chunk a second try. A chunk is one row of the data set, so Ray cannot
split it; Ray's back-pressure bounds reading.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.batch.answer_cache import AnswerCache, CachedAnswer
from pipelines.batch.engines import PendingChunks
from pipelines.batch.expand import Expander, FinishedChunk
from pipelines.batch.journal import RowCounts
from pipelines.batch.plan import BatchPlan, load_parts
from pipelines.batch.rows import InputRow, Raw, RowReader, UnusableRow
from pipelines.exit_codes import EXIT_CODES, error_line
from retrievers.errors import BadInput
from rewrite.errors import BackendDown

ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Set unless the user has set them."""
USER_ERRORS = tuple(EXIT_CODES)
"""Errors that a user gets as one line. Anything else is a fault of the program, and Ray's to raise."""
OBJECT_STORE_BYTES = 2**28
"""Object store of a local cluster: it only ever holds a few chunks."""


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Expands chunks on a cluster, or on one that is started here for this job."""

    plan: BatchPlan
    reader: RowReader
    device: str | None = None

    def run(self, pending: PendingChunks, cache: AnswerCache) -> Iterator[FinishedChunk]:
        """Yield finished chunks as the actors return them."""
        if next(pending.chunks(), None) is None:
            return
        settings = self.plan.config.ray
        ray = _start_ray(settings.address)
        try:
            with _one_chunk_per_block():
                yield from self._flow(ray, pending, cache.path)
        finally:
            if settings.address is None:
                ray.shutdown()

    def _flow(self, ray: Any, pending: PendingChunks, cache: Path) -> Iterator[FinishedChunk]:
        from ray.data import ActorPoolStrategy

        settings = self.plan.config.ray
        chunks = ray.data.read_datasource(
            _chunk_source(pending, self.reader, self.plan, cache.absolute()),
            override_num_blocks=1,
            num_cpus=0,
            label_selector={"ray.io/node-id": ray.get_runtime_context().get_node_id()},  # the node with the input
        )
        expanded = chunks.map_batches(
            _ExpandActor,
            fn_constructor_args=(_absolute_paths(self.plan), self.reader, self.device, pending.size),
            batch_size=1,
            batch_format="numpy",
            compute=ActorPoolStrategy(size=settings.workers),
            num_cpus=settings.cpus,
            num_gpus=settings.gpus or None,
        )
        try:
            for batch in expanded.iter_batches(batch_size=1, batch_format="numpy", prefetch_batches=0):
                for message in batch["done"]:
                    yield _decode_chunk(json.loads(message))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, USER_ERRORS):
                raise error.cause from None  # without Ray's own traceback
            raise
        except ray.exceptions.RayError as error:
            raise BackendDown(
                f"Ray failed ({' '.join(str(error).split())[:300]}); run the same command again"
            ) from error


class _ExpandActor:
    """An actor with its own rewriter and index; takes one chunk at a time."""

    def __init__(self, plan: BatchPlan, reader: RowReader, device: str | None, size: int) -> None:
        self._size, self._cache, self._error = size, _SentAnswers(), ""
        try:
            self._expander = Expander(load_parts(plan, device), reader, plan.key_function(), self._cache, plan.config.k)
        except USER_ERRORS as error:
            self._error = _encode_error(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return user errors as messages: Ray would retry a raised one for ever."""
        if self._error:
            return {"done": [self._error]}
        messages = []
        for message in batch["chunk"]:
            facts = json.loads(message)
            self._cache.answers = {key: CachedAnswer(*answer) for key, answer in facts["cached"].items()}
            rows = [(int(number), _from_json(raw)) for number, raw in facts["rows"]]
            try:
                chunks = self._expander.run(iter([(facts["chunk"], rows)]), self._size)
                messages += [_encode_chunk(chunk) for chunk in chunks]
            except USER_ERRORS as error:
                messages.append(_encode_error(error))
        return {"done": messages}


class _SentAnswers:
    """The cached answers that came with a chunk."""

    def __init__(self) -> None:
        self.answers: dict[str, CachedAnswer] = {}

    def get(self, keys: Sequence[str]) -> dict[str, CachedAnswer]:
        return {key: self.answers[key] for key in keys if key in self.answers}


def _absolute_paths(plan: BatchPlan) -> BatchPlan:
    """The plan with absolute paths: an actor has another working folder."""
    config, parts = plan.config, plan.rewriter
    if config.index is not None:
        config = replace(config, index=str(Path(config.index).expanduser().absolute()))
    if parts is not None:
        model, adapter = (path and path.absolute() for path in (parts.model, parts.adapter))
        parts = replace(parts, model=model, adapter=adapter)
    return replace(plan, config=config, rewriter=parts)


def _chunk_source(pending: PendingChunks, reader: RowReader, plan: BatchPlan, cache: Path) -> Any:
    """A data source with one task, which runs where the input and the cache are."""
    import pyarrow
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    def blocks() -> Iterable[Any]:
        key = plan.key_function()
        answers = AnswerCache(cache)
        for number, rows in pending.chunks():
            parsed = [reader.read(row, raw) for row, raw in rows]
            keys = list(dict.fromkeys(key(row.text) for row in parsed if isinstance(row, InputRow)))
            facts = {
                "chunk": number,
                "rows": [(row, _to_json(raw)) for row, raw in rows],
                "cached": {name: astuple(answer) for name, answer in answers.get(keys).items()},
            }
            yield pyarrow.table({"chunk": [json.dumps(facts, default=str)]})

    class Chunks(Datasource):  # type: ignore[misc]
        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[Any]:
            return [ReadTask(blocks, BlockMetadata(None, None, None, None))]  # one task keeps the order

        def estimate_inmemory_data_size(self) -> int | None:
            return None

    return Chunks()


@contextmanager
def _one_chunk_per_block() -> Iterator[None]:
    """Keep Ray Data from gathering chunks into larger blocks, each of which would go to one actor."""
    from ray.data import DataContext

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = DataContext.get_current()
    before = context.target_max_block_size, context.enable_progress_bars
    context.target_max_block_size, context.enable_progress_bars = 1, False
    try:
        yield
    finally:
        context.target_max_block_size, context.enable_progress_bars = before


def _start_ray(address: str | None) -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise BadInput("Ray is not installed; run `pip install 'toolrewrite[ray]'`, or leave --engine out") from error
    if ray.is_initialized():
        return ray
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    local: dict[str, Any] = {} if address else {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BadInput(
            f"Ray cannot be reached at {address or 'this machine'} ({' '.join(str(error).split())})"
        ) from error
    return ray


def _to_json(raw: Raw) -> Any:
    """A raw row as JSON; invalid UTF-8 is preserved."""
    if isinstance(raw, bytes):
        return raw.decode("utf-8", "surrogateescape")
    return {"": str(raw)} if isinstance(raw, Exception) else {"cells": raw}


def _from_json(value: Any) -> Raw:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if "" in value:
        return UnusableRow(value[""])
    cells: dict[str, Any] = value["cells"]
    return cells


def _encode_chunk(chunk: FinishedChunk) -> str:
    answers = {key: astuple(answer) for key, answer in chunk.answers.items()}
    lines = [line.decode("utf-8") for line in chunk.lines]
    return json.dumps({"chunk": chunk.chunk, "lines": lines, "counts": asdict(chunk.counts), "answers": answers})


def _decode_chunk(facts: dict[str, Any]) -> FinishedChunk:
    if "error" in facts:
        kinds = {kind.__name__: kind for kind in EXIT_CODES}
        raise kinds.get(facts["error"], RuntimeError)(facts["message"])
    answers = {key: CachedAnswer(*answer) for key, answer in facts["answers"].items()}
    lines = [line.encode("utf-8") for line in facts["lines"]]
    return FinishedChunk(facts["chunk"], lines, RowCounts(**facts["counts"]), answers)


def _encode_error(error: Exception) -> str:
    """An error by its name in the table of exit codes, for the driver to raise."""
    kind = next(kind for kind in type(error).__mro__ if kind in EXIT_CODES)
    return json.dumps({"error": kind.__name__, "message": error_line(error)})
