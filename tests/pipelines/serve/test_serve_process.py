"""`rewrite-serve` as a process: start, error messages, shutdown."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import psutil
import pytest
import yaml
from doubles import ModelServer
from killing import started
from processes import served
from serving import PATIENT, rewriter
from waiting import PATIENCE, listens, until

from pipelines.cli import main as cli
from pipelines.serve.rewriter import child_guard


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_has_asked_is_answered_before_it_ends(index: Path, model: ModelServer, number: signal.Signals) -> None:
    told = threading.Event()
    model.manners = lambda *_: told.wait(PATIENCE) and None
    config = {"index": str(index), "anonymous": ["search"], "rewriter": rewriter(model), "deadline_ms": PATIENT}
    found: list[httpx.Response] = []
    with served(index.parent, config) as (process, url):
        port = int(url.rpartition(":")[2])
        client = httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False)
        until(lambda: client.get("/readyz").json()["rewriter"] == "ready")

        def ask(text: str) -> None:
            found.append(client.post("/v1/search", json={"utterance": text}))

        callers = [threading.Thread(target=ask, args=(f"weather {caller}",)) for caller in range(5)]
        for caller in callers:
            caller.start()
        until(lambda: len(model.asked) == 5)
        process.send_signal(number)
        until(lambda: not listens(port))  # it has heard, and answers nobody new
        told.set()
        for caller in callers:
            caller.join()
        assert [got.status_code for got in found] == [200] * 5
        assert [got.json()["results"][0]["fallback"] for got in found] == [None] * 5
        assert process.wait(PATIENCE) == 0
    assert not listens(port)


def test_a_mistake_is_one_sentence(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "serve.yaml"
    good = {"index": str(index), "retriever": "bm25", "anonymous": ["search"], "port": 0}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for change, complaint in (
            ({"index": str(tmp_path / "nowhere")}, "rewrite-index build"),
            ({"retriever": "dense"}, "it has bm25"),
            ({"rewriter": {"path": str(tmp_path)}}, "not a finished rewriter"),
            (
                {"rewriter": {"base": str(index), "template": "needs", "backend": {"kind": "transformers"}}},
                "no model weights",
            ),
            ({"deadline": 5}, "did you mean deadline_ms?"),
            ({"port": port}, f"cannot listen on 127.0.0.1:{port}"),
        ):
            path.write_text(yaml.safe_dump({**good, **change}))
            assert cli.serve([str(path)]) == 2
            told = capsys.readouterr().err
            assert complaint in told
            assert told.count("\n") == 1
    path.write_text(yaml.safe_dump(good))
    assert cli.serve([str(path), "--dry-run", "--set", "deadline_ms=500"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["deadline_ms"] == 500


@pytest.mark.parametrize("how", ["kill -9 of the parent", "the parent lets go", "the child ends"])
def test_nothing_outlives_the_one_who_started_it(tmp_path: Path, how: str) -> None:
    """A child with a child of its own, as vLLM has; child_guard between them and their starter."""
    ends = how == "the child ends"
    inner = f"""
import pathlib, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("up", flush=True)
while not pathlib.Path({str(tmp_path / "end")!r}).exists():
    time.sleep(0.02)
sys.exit(3)
"""
    parent = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-I", {child_guard.__file__!r}, sys.executable, "-c", {inner!r}],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.readline()
{"child.stdin.close()" if how == "the parent lets go" else ""}
sys.exit(child.wait())
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with started([sys.executable, "-c", parent], text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        watched = psutil.Process(int(process.stdout.readline()))
        family = [watched, *watched.children(recursive=True)]
        assert len(family) == 3
        if how == "kill -9 of the parent":
            process.kill()
        else:
            if ends:
                (tmp_path / "end").touch()
            process.stdin.write("\n")
            process.stdin.flush()
        _, alive = psutil.wait_procs(family, timeout=PATIENCE)
        for each in alive:
            each.kill()
        assert alive == []
        codes = {"kill -9 of the parent": -9, "the parent lets go": 143, "the child ends": 3}
        assert process.wait(PATIENCE) == codes[how]
