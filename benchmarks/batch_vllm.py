"""rewrite-batch with vLLM against vLLM's own `run-batch`: the same model, rows and prompts, in one run on one machine.

    python benchmarks/batch_vllm.py [--rows 500] [--model bundled:smollm2-135m] [--tokens 24] [--rounds 2]

Both start a process, load the model, answer every row greedily and write a file. They take turns; the better round of
each counts. Also compared: whether the answers are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipelines.data.dataset import load_dataset
from pipelines.models import find_model
from rewrite.template import load_template
from rewrite.types import Answer, Ask

CONTEXT = 1024
OURS = "from pipelines.cli.main import batch; raise SystemExit(batch())"
ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def write_inputs(folder: Path, texts: list[str], model: Path, tokens: int) -> None:
    """The rows for us, and the very prompts that we make of them as requests for run-batch."""
    template = load_template("needs")
    rows = [{"id": str(place), "text": text} for place, text in enumerate(texts)]
    (folder / "ours.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    requests = [
        {
            "custom_id": row["id"],
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": str(model),
                "messages": template.render(Ask(row["text"])),
                "max_tokens": tokens,
                "temperature": 0.0,
                "seed": 0,
            },
        }
        for row in rows
    ]
    (folder / "theirs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in requests))
    (folder / "config.yaml").write_text(
        f"rewriter:\n  base: {model}\n  template: needs\n  backend: {{kind: vllm, context: {CONTEXT}, eager: true}}\n"
        f"  sampling: {{most_tokens: {tokens}}}\n"
    )


def timed(words: list[str], log: Path) -> float:
    """Seconds that a command takes."""
    started = time.monotonic()
    with log.open("wb") as stream:
        done = subprocess.run(words, env={**ENVIRONMENT, **os.environ}, stdout=stream, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SystemExit(log.read_text()[-3000:])
    return time.monotonic() - started


def ours(folder: Path) -> float:
    """Our command."""
    words = [sys.executable, "-c", OURS, str(folder / "ours.jsonl"), str(folder / "ours.out.jsonl"), "--fresh"]
    return timed([*words, "--config", str(folder / "config.yaml")], folder / "ours.log")


def theirs(folder: Path, model: Path) -> float:
    """vLLM's."""
    words = [sys.executable, "-m", "vllm.entrypoints.openai.run_batch", "-i", str(folder / "theirs.jsonl")]
    words += ["-o", str(folder / "theirs.out.jsonl"), "--model", str(model), "--max-model-len", str(CONTEXT)]
    words += ["--enforce-eager", "--generation-config", "vllm"]
    if "cpu" in version():
        words += ["--dtype", "float32"]
    return timed(words, folder / "theirs.log")


def version() -> str:
    """vLLM's, with what it was built for."""
    from vllm.platforms import current_platform

    return str(current_platform.device_type)


def same(folder: Path) -> tuple[int, int]:
    """Rows whose queries are the same, and rows."""
    template = load_template("needs")
    mine = {row["id"]: row["queries"] for row in map(json.loads, (folder / "ours.out.jsonl").open())}
    answers = {
        row["custom_id"]: row["response"]["body"] for row in map(json.loads, (folder / "theirs.out.jsonl").open())
    }
    read = {}
    for name, body in answers.items():
        choice = body["choices"][0]
        answer = Answer(choice["message"]["content"] or "", 0, choice["finish_reason"] != "length")
        read[name] = list(template.parse(answer).lines)
    return sum(mine[name] == read[name] for name in mine), len(mine)


def main() -> None:
    """Both, in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--model", default="bundled:smollm2-135m")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    arguments = parser.parse_args()
    model = find_model(arguments.model)
    texts = list(dict.fromkeys(query.text for query in load_dataset("bundled:sample").queries.values()))
    texts = texts[: arguments.rows]
    print(f"{platform.machine()}, {os.cpu_count()} cores, vLLM on {version()}, {len(texts)} rows, {arguments.model}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_inputs(folder, texts, model, arguments.tokens)
        found: dict[str, list[float]] = {"rewrite-batch": [], "vllm run-batch": []}
        for number in range(arguments.rounds):
            for name in sorted(found, reverse=bool(number % 2)):
                found[name].append(ours(folder) if name == "rewrite-batch" else theirs(folder, model))
                print(f"{name} {found[name][-1]:.1f} s, load {os.getloadavg()[0]:.1f}", flush=True)
        equal, rows = same(folder)
    mine, other = (min(each) for each in found.values())
    print(f"rows a second from start to finished file: {rows / mine:.3f} against {rows / other:.3f}")
    print(f"ratio {other / mine:.3f}; the same queries for {equal} of {rows} rows")
    if arguments.out:
        arguments.out.write_text(json.dumps({"rows": rows, "same": equal, "seconds": found}) + "\n")


if __name__ == "__main__":
    main()
