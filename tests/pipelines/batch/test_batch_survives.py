"""kill -9 at any moment and a full disk: the same command again ends with the same bytes.

The killing is real: children die before every one of their steps on the disk (a write is torn in half first), and from
outside at random times, again and again until the job gets through.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doubles import BM25_ONLY, MEMORY, plain_context, varied_tools
from killing import die_before_step, in_a_child, started
from waiting import PATIENCE, until

from pipelines.batch.api import run
from pipelines.batch.settings import BatchConfig
from pipelines.rewriters import RewriterSettings
from retrievers.index import build
from rewrite.settings import RulesSettings

RULES = RewriterSettings(template="needs", backend=RulesSettings())
RANDOM_KILLS = 25
FILES = ("out.jsonl", "out.jsonl.errors.jsonl")


def write_input(path: Path, rows: int) -> None:
    """Many equal rows, some bad ones."""
    lines = [json.dumps({"_id": str(n), "text": f"find parcel {n % 17} and book a hotel"}) for n in range(rows)]
    lines[5::40] = ["{broken"] * len(lines[5::40])
    path.write_text("\n".join(lines) + "\n")


def work(folder: Path, chunk: int, retry: bool = False, index: str | None = None) -> None:
    config = BatchConfig(rewriter=RULES, chunk_size=chunk, index=index, retriever="bm25")
    run(str(folder / "in.jsonl"), str(folder / "out.jsonl"), config, retry=retry, show=False)


def state(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


def drive(place: str) -> None:
    """Runs in a process of its own, which forks one for every kill; tells what came of it."""
    folder, found = Path(place), {"steps": 0, "retry steps": 0, "random": 0, "wrong": 0}
    build(folder / "index", varied_tools(40), BM25_ONLY, plain_context())
    (folder / "whole").mkdir()
    write_input(folder / "whole" / "in.jsonl", 60)
    work(folder / "whole", 8)
    expected = state(folder / "whole")
    assert len(expected) == 2
    for number in range(1, 1000):
        torn = folder / "torn"
        shutil.rmtree(torn, ignore_errors=True)
        torn.mkdir()
        shutil.copy(folder / "whole" / "in.jsonl", torn)
        code = in_a_child(lambda torn=torn, number=number: (die_before_step(number), work(torn, 8)))  # type: ignore[misc]
        if code == 0:
            break
        found["steps"] += 1
        in_a_child(lambda torn=torn, number=number: (die_before_step(number // 2 + 1), work(torn, 8)))  # type: ignore[misc]
        work(torn, 8)
        found["wrong"] += state(torn) != expected
    drive_retry(folder, found)
    drive_random(folder, found)
    sys.stdout.write(json.dumps(found))


def drive_retry(folder: Path, found: dict[str, int]) -> None:
    """Dies in the midst of trying mended rows again."""
    mended = (folder / "whole" / "in.jsonl").read_text().replace("{broken", '"mended"')
    (folder / "direct").mkdir()
    (folder / "direct" / "in.jsonl").write_text(mended)
    work(folder / "direct", 8)
    for number in range(1, 1000):
        torn = folder / "again"
        shutil.rmtree(torn, ignore_errors=True)
        shutil.copytree(folder / "whole", torn)
        (torn / "in.jsonl").write_text(mended)
        code = in_a_child(lambda torn=torn, number=number: (die_before_step(number), work(torn, 8, True)))  # type: ignore[misc]
        if code == 0:
            return
        found["retry steps"] += 1
        work(torn, 8, retry=True)
        found["wrong"] += state(torn) != state(folder / "direct")


def drive_random(folder: Path, found: dict[str, int]) -> None:
    """Dies at any moment, SQLite's own writes among them, several times in a job."""
    chance, index = random.Random(0), str(folder / "index")
    long = folder / "long"
    long.mkdir()
    write_input(long / "in.jsonl", 600)
    started = time.monotonic()
    work(long, 16, index=index)
    duration = time.monotonic() - started
    while found["random"] < RANDOM_KILLS:
        torn = folder / "randomly"
        shutil.rmtree(torn, ignore_errors=True)
        torn.mkdir()
        shutil.copy(long / "in.jsonl", torn)
        while in_a_child(lambda torn=torn: work(torn, 16, index=index), chance.uniform(0, duration)) != 0:  # type: ignore[misc]
            found["random"] += 1
        work(torn, 16, index=index)
        found["wrong"] += state(torn) != state(long)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


def run_here(function: str, place: Path) -> str:
    """Calls a function of this file in a fresh process; returns its output."""
    code = f"import sys, test_batch_survives as here; here.{function}(sys.argv[1])"
    paths = os.pathsep.join((str(Path(__file__).parent), os.environ["PYTHONPATH"]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(place)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_killed_at_any_moment_the_same_command_ends_with_the_same_bytes(place: Path) -> None:
    found = json.loads(run_here("drive", place))
    assert found["wrong"] == 0
    assert found["steps"] > 40
    assert found["retry steps"] > 20
    assert found["random"] >= RANDOM_KILLS


def limited(folder: Path, size: int) -> subprocess.CompletedProcess[str]:
    """The command under a limit on the size of files, which looks like a full disk."""
    (folder / "config.yaml").write_text("rewriter: {template: needs, backend: {kind: rules}}\nchunk_size: 20\n")

    def cramp() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    code = "from pipelines.cli.main import batch; raise SystemExit(batch())"
    words = [str(folder / "in.jsonl"), str(folder / "out.jsonl"), "--config", str(folder / "config.yaml")]
    options: dict[str, Any] = {"preexec_fn": cramp} if size else {}
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a job with all the room it wants."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_input(folder / "in.jsonl", 400)
    assert limited(folder, 0).returncode == 0
    return state(folder)


@pytest.mark.parametrize("size", [10, 5_000, 20_000, 40_000])
def test_a_full_disk_stops_cleanly_and_the_job_goes_on(
    tmp_path: Path, size: int, undisturbed: dict[str, bytes]
) -> None:
    write_input(tmp_path / "in.jsonl", 400)
    full = limited(tmp_path, size)
    assert full.returncode == 2, full.stderr
    assert "no room left" in full.stderr
    assert full.stderr.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()
    assert limited(tmp_path, 0).returncode == 0
    assert state(tmp_path) == undisturbed


def drive_model(place: str) -> None:
    """Runs in a process of its own, which loads the libraries once and forks one for every run of the command."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401

    import rewrite.backends.in_process  # noqa: F401
    from pipelines.cli.main import batch

    folder = Path(place)

    def job(name: str) -> None:
        words = [str(folder / name / file) for file in ("in.jsonl", "out.jsonl")]
        raise SystemExit(batch([*words, "--config", str(folder / "config.yaml")]))

    shard = folder / "killed" / "out.jsonl.work" / "shard-00000.jsonl"
    child = os.fork()
    if not child:
        job("killed")
    try:
        until(lambda: shard.exists() and shard.read_bytes().count(b"\n=") >= 2, 0.005, patience=2 * PATIENCE)
    finally:
        os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    for name in ("killed", "whole"):
        child = os.fork()
        if not child:
            job(name)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_language_model_answers_a_resumed_job_as_an_uninterrupted_one(tmp_path: Path, tiny_lm: Path) -> None:
    """Greedy answers of a real model hang, in their last digits, on what else is in the batch."""
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        lines = [json.dumps(f"request {n * n % 41} " + "and more " * (n % 9)) for n in range(60)]
        (tmp_path / name / "in.jsonl").write_text("\n".join(lines))
    (tmp_path / "config.yaml").write_text(
        f"rewriter: {{base: {tiny_lm}, template: needs, sampling: {{max_tokens: 12}}}}\nchunk_size: 7\n"
    )
    run_here("drive_model", tmp_path)
    assert state(tmp_path / "killed") == state(tmp_path / "whole") != {}
    assert json.loads((tmp_path / "killed" / "out.jsonl.batch.json").read_text())["summary"]["resumed"] >= 14


def test_ctrl_c_is_told_and_kept(tmp_path: Path) -> None:
    write_input(tmp_path / "in.jsonl", 60_000)
    (tmp_path / "config.yaml").write_text("rewriter: {template: needs, backend: {kind: rules}}\nchunk_size: 50\n")
    words = [str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--config", str(tmp_path / "config.yaml")]
    code = "from pipelines.cli.main import batch; raise SystemExit(batch())"
    shard = tmp_path / "out.jsonl.work" / "shard-00000.jsonl"
    with started(
        [sys.executable, "-c", code, *words],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs start without it
    ) as job:
        until(lambda: shard.exists() and shard.stat().st_size, 0.01, patience=2 * PATIENCE)
        job.send_signal(signal.SIGINT)
        _, told = job.communicate(timeout=2 * PATIENCE)
    assert job.returncode == 130
    assert told == "rewrite-batch: interrupted; finished rows are kept: run the same command again to continue\n"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0
    assert "by an earlier run" in done.stdout
