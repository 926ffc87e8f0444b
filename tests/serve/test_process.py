"""The command as a process: how it starts, how it is told what is wrong, how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from conftest import rewriter
from doubles import ModelServer

from pipelines import cli
from pipelines.serve import guardian

CODE = "import sys; from pipelines.cli import serve; sys.exit(serve(sys.argv[1:]))"


def start(folder: Path, config: dict[str, Any]) -> tuple[subprocess.Popen[str], str]:
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump({"index": str(folder / "index"), "retriever": "bm25", "port": 0, **config}))
    process = subprocess.Popen([sys.executable, "-c", CODE, str(path)], text=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("rewrite-serve: http://127.0.0.1:"), line
    return process, line.split()[1].strip(",")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_has_asked_is_answered_before_it_ends(index: Path, model: ModelServer, number: signal.Signals) -> None:
    model.manners = lambda *_: time.sleep(1.0)  # type: ignore[func-returns-value]
    config = {"anonymous": ["search"], "rewriter": rewriter(model), "deadline_ms": 5000}
    process, url = start(index.parent, config)
    while httpx.get(f"{url}/readyz", trust_env=False).json()["rewriter"] != "ready":
        time.sleep(0.05)
    found: list[httpx.Response] = []

    def ask(text: str) -> None:
        found.append(httpx.post(f"{url}/v1/search", json={"utterance": text}, timeout=60, trust_env=False))

    callers = [threading.Thread(target=ask, args=(f"weather {caller}",)) for caller in range(5)]
    for caller in callers:
        caller.start()
    while len(model.asked) < 5:
        time.sleep(0.01)
    process.send_signal(number)
    for caller in callers:
        caller.join()
    assert [got.status_code for got in found] == [200] * 5
    assert [got.json()["results"][0]["fallback"] for got in found] == [None] * 5
    assert process.wait(60) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz", trust_env=False)


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
                {"rewriter": {"base": str(index), "template": "needs", "engine": {"kind": "transformers"}}},
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
    """A child with a child of its own, as vLLM has; the guardian between them and their starter."""
    inner = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    ends = "time.sleep(0.5); sys.exit(3)" if how == "the child ends" else "time.sleep(600)"
    inner += f"print('up', flush=True); {ends}"
    parent = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-I", {guardian.__file__!r}, sys.executable, "-c", {inner!r}],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.readline()
{"child.stdin.close()" if how == "the parent lets go" else ""}
sys.exit(child.wait())
"""
    started = subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdin is not None
    watched = psutil.Process(int(started.stdout.readline()))
    family = [watched, *watched.children(recursive=True)]
    if how == "kill -9 of the parent":
        started.kill()
    else:
        started.stdin.write("\n")
        started.stdin.flush()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    assert started.wait(60) == {"kill -9 of the parent": -9, "the parent lets go": 143, "the child ends": 3}[how]
