"""Compare rewrite-batch on vLLM with vLLM's own `run-batch`: the same model, rows and prompts, in one run.

    python benchmarks/batch_vllm.py [--rows 500] [--model bundled:smollm2-135m] [--tokens 24] [--rounds 2]

Both start a process, load the model, answer every row greedily and write a file. They take turns; the better round of
each counts. Also compared: whether the queries are the same.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import make_parser, take_turns, write_json

from pipelines.data.dataset import load_dataset
from pipelines.models import find_model
from rewrite.template import load_template
from rewrite.types import Answer, RewriteRequest

MAX_CONTEXT = 1024
OURS = "from pipelines.cli.main import batch; raise SystemExit(batch())"
ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def write_inputs(folder: Path, texts: list[str], model: Path, tokens: int) -> None:
    """Write the rows for rewrite-batch, and the same prompts as requests for run-batch."""
    template = load_template("needs")
    ours, theirs = [], []
    for number, text in enumerate(texts):
        ours.append({"id": str(number), "text": text})
        body = {"model": str(model), "messages": template.render(RewriteRequest(text)), "max_tokens": tokens}
        body |= {"temperature": 0.0, "seed": 0}
        request = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
        theirs.append(request)
    for name, rows in {"ours": ours, "theirs": theirs}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "config.yaml").write_text(
        f"rewriter:\n  base: {model}\n  template: needs\n"
        f"  backend: {{kind: vllm, context: {MAX_CONTEXT}, eager: true}}\n  sampling: {{max_tokens: {tokens}}}\n"
    )


def run_ours(folder: Path) -> None:
    """Run rewrite-batch."""
    files = [str(folder / "ours.jsonl"), str(folder / "ours.out.jsonl"), "--config", str(folder / "config.yaml")]
    _run([sys.executable, "-c", OURS, *files, "--fresh"], folder / "ours.log")


def run_theirs(folder: Path, model: Path) -> None:
    """Run vLLM's run-batch."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.run_batch", "-i", str(folder / "theirs.jsonl")]
    command += ["-o", str(folder / "theirs.out.jsonl"), "--model", str(model), "--max-model-len", str(MAX_CONTEXT)]
    command += ["--enforce-eager", "--generation-config", "vllm"]
    _run(command + (["--dtype", "float32"] if _platform() == "cpu" else []), folder / "theirs.log")


def _run(command: list[str], log: Path) -> None:
    with log.open("wb") as stream:
        done = subprocess.run(command, env={**ENVIRONMENT, **os.environ}, stdout=stream, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SystemExit(log.read_text()[-3000:])


def _platform() -> str:
    from vllm.platforms import current_platform

    return str(current_platform.device_type)


def count_equal(folder: Path) -> tuple[int, int]:
    """Rows whose queries are the same, and all rows."""
    template = load_template("needs")
    ours = {row["id"]: row["queries"] for row in map(json.loads, (folder / "ours.out.jsonl").open())}
    theirs = {}
    for row in map(json.loads, (folder / "theirs.out.jsonl").open()):
        choice = row["response"]["body"]["choices"][0]
        answer = Answer(choice["message"]["content"] or "", 0, choice["finish_reason"] != "length")
        theirs[row["custom_id"]] = list(template.parse(answer).lines)
    return sum(ours[name] == theirs[name] for name in ours), len(ours)


def main() -> None:
    """Run both in turn, print."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--model", default="bundled:smollm2-135m")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    model = find_model(options.model)
    texts = list(dict.fromkeys(query.text for query in load_dataset("bundled:sample").queries.values()))
    print(f"{platform.machine()}, {os.cpu_count()} cores, vLLM on {_platform()}, {options.rows} rows, {options.model}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_inputs(folder, texts[: options.rows], model, options.tokens)
        runs = {"rewrite-batch": lambda _: run_ours(folder), "vllm run-batch": lambda _: run_theirs(folder, model)}
        seconds = take_turns(runs, options.rounds)
        equal, rows = count_equal(folder)
    ours, theirs = (min(values) for values in seconds.values())
    print(f"rows per second from start to finished file: {rows / ours:.3f} against {rows / theirs:.3f}")
    print(f"ratio {theirs / ours:.3f}; the same queries for {equal} of {rows} rows")
    write_json(options.out, {"rows": rows, "same": equal, "seconds": seconds})


if __name__ == "__main__":
    main()
