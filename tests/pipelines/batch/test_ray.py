"""The same job on a real Ray: the same bytes, whoever dies on the way."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from doubles import BM25_ONLY, plain_context, varied_tools
from killing import started
from waiting import PATIENCE, until

from pipelines.batch.api import rewrite_batch
from pipelines.batch.settings import BatchConfig, RaySettings
from pipelines.cli.main import batch
from pipelines.rewriters import RewriterSettings
from retrievers.index import build
from rewrite.errors import BackendDown
from rewrite.settings import ServerSettings

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
ROWS = 1200
CHUNK = 20
COMMAND = [sys.executable, "-c", "from pipelines.cli.main import batch; raise SystemExit(batch())"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Input, index, config, and what a job in one process makes of them."""
    folder = tmp_path_factory.mktemp("ray")
    build(folder / "index", varied_tools(40), BM25_ONLY, plain_context())
    lines = [json.dumps({"_id": str(n), "text": f"find parcel {n % 300} and book a hotel"}) for n in range(ROWS)]
    lines[7::200] = ["{broken", "", '{"text": 5}', "[]", '"\\ud800"', "nonsense"]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "config.yaml").write_text(
        f"rewriter: {{template: needs, backend: {{kind: rules}}}}\nindex: {folder / 'index'}\nretriever: bm25\n"
        f"chunk_size: {CHUNK}\nray: {{workers: 2, cpus: 0.5}}\n"
    )
    rewrite_batch(folder / "in.jsonl", folder / "local.jsonl", folder / "config.yaml")
    return folder


def drive(folder: Path) -> None:
    """Runs jobs on one cluster. In a process of its own: Ray leaves threads and a handler of SIGTERM behind in one."""
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2**28)
    config, out = folder / "cluster.yaml", folder / "ray.jsonl"
    config.write_text((folder / "config.yaml").read_text().replace("ray: {", "ray: {address: auto, "))
    summary = rewrite_batch(folder / "in.jsonl", out, config, engine="ray")
    result: dict[str, Any] = {"first": [summary.rows, summary.bad]}
    for ending in ("", ".errors.jsonl"):
        shutil.copy(f"{out}{ending}", folder / f"first.jsonl{ending}")
    (folder / "mended.jsonl").write_text((folder / "in.jsonl").read_text().replace("{broken", '"mended"'))
    summary = rewrite_batch(folder / "mended.jsonl", out, config, engine="ray", retry_errors=True)
    result["again"] = [summary.rows, summary.bad]
    server = ServerSettings("http://127.0.0.1:9/v1", "m", retries=0, timeout=1)
    absent = BatchConfig(
        rewriter=RewriterSettings(template="needs", backend=server), ray=RaySettings(address="auto", cpus=0.5)
    )
    (folder / "one.jsonl").write_text('"find a train"\n')
    try:
        rewrite_batch(folder / "one.jsonl", folder / "none.jsonl", absent, engine="ray")
    except BackendDown as error:
        result["trouble"] = str(error)
    result["kept"] = ray.is_initialized()  # a cluster that the config names is not the job's to end
    output = io.StringIO()
    with redirect_stdout(output):
        result["resumed"] = [batch(words(folder, "killed.jsonl"))]
    result["resumed"].append(output.getvalue())
    result["ended"] = not ray.is_initialized()  # one that it does not name is
    (folder / "result.json").write_text(json.dumps(result))


@pytest.fixture(scope="module")
def killed(place: Path) -> int:
    """First an actor dies, then the process that started everything; returns the finished chunks they leave."""
    shard = place / "killed.jsonl.work" / "shard-00000.jsonl"
    with started([*COMMAND, *words(place, "killed.jsonl")], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        wait_for_chunks(shard, 3, job)
        victims = workers(job)
        assert victims
        victims[0].send_signal(signal.SIGKILL)
        wait_for_chunks(shard, chunks_done(shard) + 3, job)
        orphans = workers(job)
        assert orphans
        job.send_signal(signal.SIGKILL)
        assert job.wait() == -signal.SIGKILL
    assert not psutil.wait_procs(orphans, timeout=PATIENCE)[1], "no worker outlives the process that it works for"
    return chunks_done(shard)


@pytest.fixture(scope="module")
def result(place: Path, killed: int) -> dict[str, Any]:
    """The results of all jobs on the cluster."""
    paths = os.pathsep.join(map(str, (Path(__file__).parent, *sys.path)))
    code = "import sys; from pathlib import Path; from test_ray import drive; drive(Path(sys.argv[1]))"
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code, str(place)],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=300,
        )
        # Ray gives its own processes thirty seconds to start, which cannot be set and is too little on a busy machine.
        if done.returncode == 0 or "The current node timed out during startup" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads((place / "result.json").read_text())
    return facts


def check(place: Path, name: str) -> None:
    for ending in ("", ".errors.jsonl"):
        assert (place / f"{name}{ending}").read_bytes() == (place / f"local.jsonl{ending}").read_bytes()


def workers(job: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The actors that expand chunks for a job."""
    found = []
    for each in psutil.Process(job.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # gone, or a zombie, since we looked
            if any("MapWorker" in word for word in each.cmdline()):
                found.append(each)
    return found


def chunks_done(path: Path) -> int:
    return path.read_bytes().count(b"\n=") if path.exists() else 0


def wait_for_chunks(path: Path, count: int, job: subprocess.Popen[bytes]) -> None:
    until(lambda: chunks_done(path) >= count or job.poll() is not None, patience=2 * PATIENCE)
    assert job.poll() is None, "the job ended before it could be killed"


def words(place: Path, name: str) -> list[str]:
    """The command line of the job without the command."""
    return [str(place / "in.jsonl"), str(place / name), "--config", str(place / "config.yaml"), "--engine", "ray"]


def test_workers_and_driver_are_killed_and_the_bytes_are_the_same(
    place: Path, killed: int, result: dict[str, Any]
) -> None:
    """The second run finishes what the killed one began."""
    assert 6 <= killed < ROWS / CHUNK
    code, output = result["resumed"]
    assert code == 0
    assert f"{killed * CHUNK} of them by an earlier run" in output
    check(place, "killed.jsonl")


def test_the_outcome_is_that_of_one_process_and_mended_rows_are_tried_again(
    place: Path, result: dict[str, Any]
) -> None:
    check(place, "first.jsonl")
    assert result["first"] == [ROWS, 6]
    assert result["again"] == [ROWS, 5]


def test_only_a_cluster_that_the_config_does_not_name_ends_with_the_job(result: dict[str, Any]) -> None:
    assert result["kept"]
    assert result["ended"]


def test_trouble_in_a_worker_is_told_as_it_would_be_here(place: Path, result: dict[str, Any]) -> None:
    assert "does not answer" in result["trouble"]
    assert not (place / "none.jsonl").exists()
