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
from pipelines.batch.engines import ChunkEngine, InProcessEngine
from pipelines.batch.job import BatchJob
from pipelines.batch.job_files import JobPaths
from pipelines.batch.outputs import make_output
from pipelines.batch.plan import BatchPlan, make_plan
from pipelines.batch.rows import RowReader
from pipelines.batch.settings import BatchConfig
from pipelines.batch.sources import InputFile, InputPipe, open_input
from pipelines.batch.stream import stream_rows
from pipelines.batch.summary import BatchSummary
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
    """Expand rows: those of a file, of a data set of the library `datasets`, or any utterances.

    With an `output` this is the command, resumable, and returns its `BatchSummary`. Without one it returns a data set
    for a data set and a list for anything else; bad rows are then left out.
    """
    if config is None:
        raise TypeError("rewrite_batch needs a config: a BatchConfig or the path of a YAML file")
    if not isinstance(config, BatchConfig):
        config = configs.load(Path(config), BatchConfig)
    with tempfile.TemporaryDirectory() as scratch:
        is_dataset = hasattr(rows, "to_parquet")
        source, settings = _write_rows(rows, Path(scratch), config)
        if output is not None:
            return run(source, str(output), settings, engine, device, fresh, retry_errors, show_progress)
        target = Path(scratch) / ("out.parquet" if is_dataset else "out.jsonl")
        settings = replace(settings, output_format="parquet" if is_dataset else "jsonl")
        run(source, str(target), settings, engine, device, fresh, retry_errors, show_progress)
        if is_dataset:
            from datasets import Dataset

            return Dataset.from_parquet(str(target), keep_in_memory=True)
        return [json.loads(line) for line in target.read_bytes().splitlines()]


def _write_rows(rows: Any, folder: Path, config: BatchConfig) -> tuple[str, BatchConfig]:
    """Write rows to a file; return its path and the config that reads it."""
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
) -> BatchSummary:
    """Run the command; "-" is standard input and output."""
    if fresh and retry:
        raise BadInput("--fresh does everything again, --retry-errors only bad rows; choose one of them")
    plan = make_plan(config, device)
    if plan.warning:
        log.warning("%s", plan.warning)
    if output == "-":
        if retry or engine != "local":
            raise BadInput("a job to standard output cannot be resumed or run on Ray; name an output file")
        return stream_rows(plan, _tag(plan), _open_once(rows, config), sys.stdout.buffer, sys.stderr, device)
    paths = JobPaths(Path(output))
    if paths.output.is_dir():
        raise BadInput(f"{paths.output} is a folder; name the file to write")
    if rows != "-" and Path(rows).exists() and paths.output.exists() and Path(rows).samefile(paths.output):
        raise BadInput(f"{rows} is both input and output; name another output")
    with disk_room(paths.output.parent):
        if fresh:
            paths.clear()
        source = _spool_stdin(paths, config) if rows == "-" else open_input(Path(rows), config.input)
    content, count = source.measure()
    shape = config.input.shape or source.shape()
    reader = RowReader(config.input, shape, source.format == "txt")
    writer = make_output(output, config, shape, _tag(plan))
    job = BatchJob(plan, source, reader, paths, writer, content, count, retry)
    return job.run(_make_engine(engine, plan, reader, device), show)


def _make_engine(name: EngineName, plan: BatchPlan, reader: RowReader, device: str | None) -> ChunkEngine:
    if name == "local":
        return InProcessEngine(plan, reader, device)
    from pipelines.batch.ray_engine import RayEngine

    return RayEngine(plan, reader, device)


def _tag(plan: BatchPlan) -> str:
    """The rewriter's name, else the retriever's."""
    if plan.rewriter is None or plan.config.rewriter is None:
        return plan.config.retriever
    facts = plan.rewriter.facts
    name = facts.get("model") or facts.get("path") or facts.get("base") or facts["backend"]
    return str(name).rstrip("/").split("/")[-1]


def _spool_stdin(paths: JobPaths, config: BatchConfig) -> InputFile:
    """Copy standard input to a file: a resumed job reads it again and checks that it is the same."""
    paths.work.mkdir(parents=True, exist_ok=True)
    path = paths.work / f"input.{config.input.format or 'jsonl'}"
    part = path.with_name(f".part-{path.name}")
    with part.open("wb") as stream:
        shutil.copyfileobj(sys.stdin.buffer, stream)
    os.replace(part, path)
    return InputFile(path.absolute(), config.input.format or "jsonl")


def _open_once(rows: str, config: BatchConfig) -> InputFile | InputPipe:
    if rows != "-":
        return open_input(Path(rows), config.input)
    if config.input.format == "parquet":
        raise BadInput("a Parquet file cannot be read from a pipe; name the file")
    return InputPipe(sys.stdin.buffer, config.input.format or "jsonl")
