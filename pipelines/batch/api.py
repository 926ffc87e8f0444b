"""`rewrite_batch`: the command of that name for scripts and notebooks."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipelines import config as configs
from pipelines.batch.engines import Engine, Local
from pipelines.batch.job import Job, Places
from pipelines.batch.outputs import make_output
from pipelines.batch.plan import Plan, make_plan
from pipelines.batch.rows import RowReader
from pipelines.batch.settings import BatchConfig
from pipelines.batch.sources import Piped, Source, open_source
from pipelines.batch.stream import pipe
from pipelines.batch.summary import Summary
from retrievers.errors import BadInput
from retrievers.files import disk_room

if TYPE_CHECKING:
    from datasets import Dataset

EngineName = Literal["local", "ray"]
log = logging.getLogger("rewrite-batch")


def rewrite_batch(
    rows: str | Path | Dataset | Iterable[str | Mapping[str, Any]],
    output: str | Path | None = None,
    config: BatchConfig | str | Path | None = None,
    *,
    engine: EngineName = "local",
    device: str | None = None,
    fresh: bool = False,
    retry_errors: bool = False,
    show_progress: bool | None = False,
) -> Any:
    """Expands rows: those of a file, of a data set of the library `datasets`, or any utterances.

    With an `output` the job is the command's, resumable and all, and its `Summary` comes back. Without one a data set
    comes back as a data set and anything else as a list; bad rows are then missing, and counted in no file.
    """
    if config is None:
        raise TypeError("rewrite_batch needs a config: a BatchConfig or the path of a YAML file")
    if not isinstance(config, BatchConfig):
        config = configs.load(Path(config), BatchConfig)
    with tempfile.TemporaryDirectory() as scratch:
        whole = hasattr(rows, "to_parquet")
        source, settings = _written(rows, Path(scratch), config)
        if output is not None:
            return run(source, str(output), settings, engine, device, fresh, retry_errors, show_progress)
        wanted = Path(scratch) / ("out.parquet" if whole else "out.jsonl")
        settings = replace(settings, output_format="parquet" if whole else "jsonl")
        run(source, str(wanted), settings, engine, device, fresh, retry_errors, show_progress)
        if whole:
            from datasets import Dataset

            return Dataset.from_parquet(str(wanted), keep_in_memory=True)
        return [json.loads(line) for line in wanted.read_bytes().splitlines()]


def _written(rows: Any, folder: Path, config: BatchConfig) -> tuple[str, BatchConfig]:
    """Rows as a file, and the config that reads it."""
    if isinstance(rows, (str, Path)):
        return str(rows), config
    if hasattr(rows, "to_parquet"):
        rows.to_parquet(str(folder / "rows.parquet"))
        return str(folder / "rows.parquet"), replace(config, input=replace(config.input, format="parquet"))
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row if isinstance(row, str) else dict(row)) + "\n")
    return str(folder / "rows.jsonl"), replace(config, input=replace(config.input, format="jsonl"))


def run(
    rows: str,
    output: str,
    config: BatchConfig,
    engine: EngineName = "local",
    device: str | None = None,
    fresh: bool = False,
    retry: bool = False,
    show: bool | None = None,
) -> Summary:
    """The command: - stands for standard input and output."""
    if fresh and retry:
        raise BadInput("--fresh does everything again, --retry-errors only bad rows; choose one of them")
    plan = make_plan(config, device)
    if plan.warning:
        log.warning("%s", plan.warning)
    if output == "-":
        if retry or engine != "local":
            raise BadInput("what goes to standard output cannot be resumed or spread; name an output file")
        return pipe(plan, _tag(plan), _once(rows, config), sys.stdout.buffer, sys.stderr, device)
    places = Places(Path(output))
    if places.output.is_dir():
        raise BadInput(f"{places.output} is a folder; name the file to write")
    if rows != "-" and Path(rows).exists() and places.output.exists() and Path(rows).samefile(places.output):
        raise BadInput(f"{rows} is both input and output; name another output")
    with disk_room(places.output.parent):
        if fresh:
            places.clear()
        source = _spooled(places, config) if rows == "-" else open_source(Path(rows), config.input)
    content, count = source.measure()
    shape = config.input.shape or source.shape()
    reader = RowReader(config.input, shape, source.format == "txt")
    job = Job(plan, source, reader, places, make_output(output, config, shape, _tag(plan)), content, count)
    return job.run(_engine(engine, plan, reader, device), retry, show)


def _engine(name: EngineName, plan: Plan, reader: RowReader, device: str | None) -> Engine:
    if name == "local":
        return Local(plan, reader, device)
    from pipelines.batch.ray_engine import OnRay

    return OnRay(plan, reader, device)


def _tag(plan: Plan) -> str:
    """What the outcomes are signed with: the rewriter's name, else the retriever's."""
    if plan.rewriter is None or plan.config.rewriter is None:
        return plan.config.retriever
    facts = plan.rewriter.facts
    return (
        str(facts.get("model") or facts.get("path") or facts.get("base") or facts["backend"]).rstrip("/").split("/")[-1]
    )


def _spooled(places: Places, config: BatchConfig) -> Source:
    """Standard input as a file beside the output: a resumed job must read it again, and be sure that it is the same."""
    places.work.mkdir(parents=True, exist_ok=True)
    path = places.work / f"input.{config.input.format or 'jsonl'}"
    part = path.with_name(f".part-{path.name}")
    with part.open("wb") as stream:
        shutil.copyfileobj(sys.stdin.buffer, stream)
    os.replace(part, path)
    return Source(path.absolute(), config.input.format or "jsonl")


def _once(rows: str, config: BatchConfig) -> Source | Piped:
    """What is read only once."""
    if rows != "-":
        return open_source(Path(rows), config.input)
    if config.input.format == "parquet":
        raise BadInput("a Parquet file cannot be read from a pipe; name the file")
    return Piped(sys.stdin.buffer, config.input.format or "jsonl")
