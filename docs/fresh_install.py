"""A new environment with the package in it and nothing of this repository, and questions to its server.

Used by `make release-check` and `make lower-ends`. Both download packages, which no test does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUEST = "is the ferry even going tonight in this wind? next one from Oban pls"
TOOL = "raillark/next_departures"
"""A tool of the sample that REQUEST needs."""


def variables(folder: Path) -> dict[str, str]:
    """Variables of a process that sees neither this repository nor models which were converted before."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "TOOLREWRITE_CACHE": str(folder / "cache")}


def build_wheel(folder: Path) -> Path:
    """Build the wheel into a folder, and leave nothing of the build in the repository."""
    leftovers = [path for path in (ROOT / "build", ROOT / "toolrewrite.egg-info") if not path.exists()]
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    try:
        subprocess.run([*pip, "--wheel-dir", str(folder), str(ROOT)], check=True, capture_output=True, text=True)
    finally:
        for path in leftovers:  # others are of an earlier build, or of `make setup`
            shutil.rmtree(path, ignore_errors=True)
    [wheel] = folder.glob("toolrewrite-*.whl")
    return wheel


def make_environment(folder: Path) -> None:
    """An empty environment in folder/venv; not even the packages of this Python are seen."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, env=variables(folder))


def install(folder: Path, *words: str) -> None:
    """Install by the environment's own pip, with all dependencies."""
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *words]
    subprocess.run(pip, check=True, cwd=folder, env=variables(folder))


def ask_server(folder: Path, *words: str, utterance: str = REQUEST) -> list[str]:
    """Start `rewrite-serve` of the environment on a free port and ask it once; returns the ids of the tools."""
    command = [str(folder / "venv/bin/rewrite-serve"), *words, "--set", "port=0"]
    with subprocess.Popen(command, cwd=folder, env=variables(folder), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                raise RuntimeError("rewrite-serve did not start")
            url = line.split()[1].rstrip(",")
            body = json.dumps({"utterance": utterance}).encode()
            request = urllib.request.Request(f"{url}/v1/search", body, {"Content-Type": "application/json"})
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
                [result] = json.load(answer)["results"]
            return [tool["id"] for tool in result["tools"]]
        finally:
            server.terminate()
