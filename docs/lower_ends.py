"""Install the oldest releases of the ranges of an extra, and run what a newcomer runs, by `make lower-ends`.

The newest releases are tested by every `make setup` and `make test`.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
CATALOGUE = ROOT / "docs/examples/leisure-openapi.yaml"
RETRIEVERS = (
    "{bm25: {kind: bm25}, dense: {kind: dense, model: bundled:multilingual}, hybrid: {kind: hybrid, of: [bm25, dense]}}"
)
COMMANDS = (
    f"rewrite-index lint {CATALOGUE}",
    f"rewrite-index build configs/index/tutorial.yaml --set catalogue={CATALOGUE} --set 'retrievers={RETRIEVERS}'",
    "rewrite-index search runs/mine/index 'free swimming lanes'",
    "rewrite-index search bundled:sample 'will I need a coat tonight'",
)


def oldest(requirement: Requirement) -> str:
    """The oldest release in a range that the package index has."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", requirement.name], check=True, capture_output=True, text=True
    )
    [line] = re.findall(r"Available versions: (.*)", listed.stdout)
    versions = [Version(text) for text in line.split(", ")]
    return f"{requirement.name}=={min(version for version in versions if version in requirement.specifier)}"


def requirements(extras: list[str]) -> Iterator[Requirement]:
    """Requirements of the package and some of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for name in extras for line in project["optional-dependencies"][name])]
    for requirement in map(Requirement, lines):
        if requirement.name != project["name"]:
            yield Requirement(f"{requirement.name}{requirement.specifier}")


def check_server(folder: Path) -> None:
    """Start a server and ask it once."""
    command = [str(folder / "venv/bin/rewrite-serve"), "runs/mine/index", "--set", "port=0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[1].rstrip(",")
            body = json.dumps({"utterance": "free swimming lanes"}).encode()
            request = urllib.request.Request(f"{url}/v1/search", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as answer:
                [result] = json.load(answer)["results"]
            sys.stdout.write(f"> {url}/v1/search\n{result['tools'][0]['id']}\n")
        finally:
            server.terminate()


def main() -> int:
    """0 if every command works with the oldest releases."""
    extras = sys.argv[1:] or ["serve", "multilingual"]
    pins = sorted(map(oldest, requirements(extras)))
    sys.stdout.write("\n".join(pins) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True)
        python = f"{folder}/venv/bin/python"
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *pins, str(ROOT)]
        leftovers = [path for path in (ROOT / "build", ROOT / "toolrewrite.egg-info") if not path.exists()]
        subprocess.run(pip, check=True)
        for path in leftovers:  # of pip's build; others are of an earlier one, or of `make setup`
            shutil.rmtree(path, ignore_errors=True)
        for line in COMMANDS:
            sys.stdout.write(f"> {line}\n")
            sys.stdout.flush()
            name, *words = shlex.split(line)
            subprocess.run([f"{folder}/venv/bin/{name}", *words], cwd=folder, check=True)
        check_server(Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
