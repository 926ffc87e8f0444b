"""The same job on Ray Data: one task reads chunks, actors expand them, this process keeps what they send back.

Ours are the actors, not Ray's own processor for vLLM: any backend runs in them, the path of a query is the one that
every other command takes, and an actor that dies costs its chunk a second try and nothing else. A chunk is one row of
the data set, so nobody can tear it apart; reading is bounded by Ray's own back-pressure.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.batch.answer_cache import Answers, Known
from pipelines.batch.engines import Todo
from pipelines.batch.expand import Done, Expander
from pipelines.batch.journal import Tally
from pipelines.batch.plan import Plan, load
from pipelines.batch.rows import Raw, Row, RowReader, Unusable
from pipelines.exit_codes import EXIT_CODES, error_line
from retrievers.errors import BadInput
from rewrite.errors import BackendDown

QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}
"""Set where the user has not."""
OURS = tuple(EXIT_CODES)
"""Errors that a user gets as one line. Anything else is a fault of the program, and Ray's to raise."""
STORE_BYTES = 2**28
"""The object store of a cluster of our own: a few chunks are all that is ever in it."""


@dataclass(frozen=True, slots=True)
class OnRay:
    """On a cluster, or on one that is started here for this job."""

    plan: Plan
    reader: RowReader
    device: str | None = None

    def run(self, todo: Todo, answers: Answers) -> Iterator[Done]:
        """Finished chunks as the actors send them."""
        if next(todo.chunks(), None) is None:
            return
        settings = self.plan.config.ray
        with_ray = _start(settings.address)
        try:
            with _one_chunk_a_block():
                yield from self._flow(with_ray, todo, answers.path)
        finally:
            if settings.address is None:
                with_ray.shutdown()

    def _flow(self, ray: Any, todo: Todo, answers: Path) -> Iterator[Done]:
        from ray.data import ActorPoolStrategy

        settings = self.plan.config.ray
        chunks = ray.data.read_datasource(
            _chunk_source(todo, self.reader, self.plan, answers.absolute()),
            override_num_blocks=1,
            num_cpus=0,
            label_selector={"ray.io/node-id": ray.get_runtime_context().get_node_id()},  # where the input lies
        )
        expanded = chunks.map_batches(
            _Worker,
            fn_constructor_args=(_from_anywhere(self.plan), self.reader, self.device, todo.size),
            batch_size=1,
            batch_format="numpy",
            compute=ActorPoolStrategy(size=settings.workers),
            num_cpus=settings.cpus,
            num_gpus=settings.gpus or None,
        )
        try:
            for batch in expanded.iter_batches(batch_size=1, batch_format="numpy", prefetch_batches=0):
                for sent in batch["done"]:
                    yield _unpacked(json.loads(sent))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, OURS):
                raise error.cause from None  # Ray would tell its whole way through here
            raise
        except ray.exceptions.RayError as error:
            raise BackendDown(
                f"Ray failed ({' '.join(str(error).split())[:300]}); run the same command again"
            ) from error


class _Worker:
    """An actor: a rewriter and an index of its own, one chunk at a time."""

    def __init__(self, plan: Plan, reader: RowReader, device: str | None, size: int) -> None:
        self._size, self._known, self._trouble = size, _Sent(), ""
        try:
            self._expander = Expander(load(plan, device), reader, plan.keys(), self._known, plan.config.k)
        except OURS as error:
            self._trouble = _told(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """What is ours to tell is sent as such: Ray would try a user's mistake again for ever."""
        if self._trouble:
            return {"done": [self._trouble]}
        found = []
        for sent in batch["chunk"]:
            facts = json.loads(sent)
            self._known.answers = {key: Known(*known) for key, known in facts["known"].items()}
            rows = [(int(number), _raw(raw)) for number, raw in facts["rows"]]
            try:
                found += [_packed(done) for done in self._expander.run(iter([(facts["chunk"], rows)]), self._size)]
            except OURS as error:
                found.append(_told(error))
        return {"done": found}


class _Sent:
    """Answers that came with the chunk."""

    def __init__(self) -> None:
        self.answers: dict[str, Known] = {}

    def get(self, keys: Sequence[str]) -> dict[str, Known]:
        """Those that are known."""
        return {key: self.answers[key] for key in keys if key in self.answers}


def _from_anywhere(plan: Plan) -> Plan:
    """The plan with whole paths: an actor's working folder is not ours."""
    config, parts = plan.config, plan.rewriter
    if config.index is not None:
        config = replace(config, index=str(Path(config.index).expanduser().absolute()))
    if parts is not None:
        model, adapter = (path and path.absolute() for path in (parts.model, parts.adapter))
        parts = replace(parts, model=model, adapter=adapter)
    return replace(plan, config=config, rewriter=parts)


def _chunk_source(todo: Todo, reader: RowReader, plan: Plan, answers: Path) -> Any:
    """A data source of one task, which reads where the input and the answers lie."""
    import pyarrow
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    def blocks() -> Iterable[Any]:
        key = plan.keys()
        known = Answers(answers)
        for number, rows in todo.chunks():
            read = [reader.read(place, raw) for place, raw in rows]
            keys = list(dict.fromkeys(key(row.text) for row in read if isinstance(row, Row)))
            facts = {
                "chunk": number,
                "rows": [(place, _plain(raw)) for place, raw in rows],
                "known": {
                    name: (each.text, each.tokens, each.finished, each.cut) for name, each in known.get(keys).items()
                },
            }
            yield pyarrow.table({"chunk": [json.dumps(facts, default=str)]})

    class Chunks(Datasource):  # type: ignore[misc]
        """The chunks that are not done."""

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[Any]:
            """One, so that chunks come in order."""
            return [ReadTask(blocks, BlockMetadata(None, None, None, None))]

        def estimate_inmemory_data_size(self) -> int | None:
            """Nobody knows."""
            return None

    return Chunks()


@contextmanager
def _one_chunk_a_block() -> Iterator[None]:
    """Ray Data gathers small rows into large blocks and gives a block to one actor; a chunk is work enough for one."""
    from ray.data import DataContext

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    world = DataContext.get_current()
    before = world.target_max_block_size, world.enable_progress_bars
    world.target_max_block_size, world.enable_progress_bars = 1, False
    try:
        yield
    finally:
        world.target_max_block_size, world.enable_progress_bars = before


def _start(address: str | None) -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise BadInput("Ray is not installed; run `pip install 'toolrewrite[ray]'`, or leave --engine out") from error
    if ray.is_initialized():
        return ray
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    own: dict[str, Any] = {} if address else {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BadInput(
            f"Ray cannot be reached at {address or 'this machine'} ({' '.join(str(error).split())})"
        ) from error
    return ray


def _plain(raw: Raw) -> Any:
    """A raw row as JSON takes it; bytes that are no UTF-8 survive as they are."""
    if isinstance(raw, bytes):
        return raw.decode("utf-8", "surrogateescape")
    return {"": str(raw)} if isinstance(raw, Exception) else {"cells": raw}


def _raw(plain: Any) -> Raw:
    if isinstance(plain, str):
        return plain.encode("utf-8", "surrogateescape")
    if "" in plain:
        return Unusable(plain[""])
    cells: dict[str, Any] = plain["cells"]
    return cells


def _packed(done: Done) -> str:
    answers = {
        key: (each.text, each.tokens, each.finished, each.cut, each.refused) for key, each in done.answers.items()
    }
    lines = [line.decode("utf-8") for line in done.lines]
    return json.dumps({"chunk": done.chunk, "lines": lines, "tally": asdict(done.tally), "answers": answers})


def _unpacked(facts: dict[str, Any]) -> Done:
    if "trouble" in facts:
        kinds = {kind.__name__: kind for kind in EXIT_CODES}
        raise kinds.get(facts["trouble"], RuntimeError)(facts["message"])
    answers = {key: Known(*known) for key, known in facts["answers"].items()}
    return Done(facts["chunk"], [line.encode("utf-8") for line in facts["lines"]], Tally(**facts["tally"]), answers)


def _told(error: Exception) -> str:
    """An error as the driver raises it again: by the name in the table of exit codes."""
    kind = next(kind for kind in type(error).__mro__ if kind in EXIT_CODES)
    return json.dumps({"trouble": kind.__name__, "message": error_line(error)})
