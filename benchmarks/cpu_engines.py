"""Compare engines of the rewriter on a CPU: ONNX Runtime GenAI and vLLM answer the same prompts, one client.

    python benchmarks/cpu_engines.py --base bundled:smollm2-135m       minutes on two cores, most of them vLLM's start

Engines take turns, prompt by prompt, with a bundled template. vLLM caches prefixes and is a server in a
process of its own, as configs/serve/sample.yaml starts it. Prompts that an engine answers with fewer than `--tokens`
tokens are left out.
Prints seconds per rewrite by the clock and of CPU time, which other work on the machine does not change, and ratios;
`--out` writes JSON.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path

import psutil
from harness import FigureTable, machine, make_parser, write_json
from http_load import ChildProcess, percentile, utterances
from serve_rewriting import wait_for

from pipelines.models import find_model
from pipelines.rewriters import find_converted
from pipelines.serve.rewriter.settings import ManagedVllm
from pipelines.serve.rewriter.vllm_process import MODEL_NAME, command_line
from rewrite.backends.base import Backend
from rewrite.backends.onnx_engine import OnnxBackend
from rewrite.backends.server import ServerBackend
from rewrite.settings import OnnxSettings, Sampling, ServerSettings
from rewrite.template import load_template
from rewrite.types import RewriteRequest

TRIED = 10
"""Prompts per request that are tried, to find some with answers of all tokens."""


def main() -> None:
    """Start vLLM, then measure."""
    parser = make_parser(__doc__)
    parser.add_argument("--base", default="bundled:smollm2-135m", help="the model (bundled:smollm2-135m)")
    parser.add_argument("--template", default="needs", help="bundled template of the prompts (needs)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens per answer (32)")
    parser.add_argument("--requests", type=int, default=5, help="per round (5)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 4])
    parser.add_argument("--threads", type=int, default=1, help="of every engine (1, vLLM's own choice on two cores)")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    model, table = find_model(options.base), FigureTable()
    engines: dict[str, Backend] = {
        f"ONNX Runtime GenAI, {bits} bits": OnnxBackend(OnnxSettings(bits=bits), find_converted(model, None, bits))
        for bits in options.bits
    }
    vllm, port = start_vllm(model, options.threads)
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        engines["vLLM"] = ServerBackend(ServerSettings(f"http://127.0.0.1:{port}/v1", MODEL_NAME, timeout=600))
        own, server = psutil.Process(), psutil.Process(vllm.process.pid)
        clocks: dict[str, Callable[[str], float]] = {
            "by the clock": lambda name: time.perf_counter(),
            "CPU time": lambda name: cpu_seconds(server) if name == "vLLM" else sum(own.cpu_times()[:2]),
        }
        measure(engines, clocks, options, table)
    finally:
        vllm.end()
    write_json(options.out, {"figures": table.rows, "cores": os.cpu_count(), **machine()})


def start_vllm(model: Path, threads: int) -> tuple[ChildProcess, int]:
    """vLLM with the options of `rewrite-serve`, and its port. It binds each thread to a core."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    flags = command_line(ManagedVllm(context=1024, eager=True), model, 0, port)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    if threads > 1:
        variables["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
    return ChildProcess(command, new_session=True, **variables), port


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process and its children so far."""
    times = [member.cpu_times() for member in (process, *process.children(recursive=True))]
    return float(sum(used.user + used.system for used in times))


Times = dict[str, dict[str, list[float]]]
"""Seconds by clock and engine."""


def measure(
    engines: dict[str, Backend],
    clocks: dict[str, Callable[[str], float]],
    options: argparse.Namespace,
    table: FigureTable,
) -> None:
    """Medians per round."""
    prompts = choose_prompts(engines, options)
    medians: Times = {clock: {name: [] for name in engines} for clock in clocks}
    for number in range(options.rounds):
        times = measure_round(engines, clocks, prompts, options.tokens, bool(number % 2))
        for clock, name in product(clocks, engines):
            medians[clock][name].append(percentile(times[clock][name], 0.5))
    for clock, by_engine in medians.items():
        load = f"load {os.getloadavg()[0]:.1f}"
        table.title(f"a rewrite of {options.tokens} tokens, one client, threads per engine: {options.threads}, {load}")
        for name, values in by_engine.items():
            table.note(f"p50, {name}, {clock}", "s", values, digits=2)
        for name in engines:
            if name != "vLLM":
                table.note_ratio(f"vLLM / {name}, {clock}", by_engine["vLLM"], by_engine[name])


def choose_prompts(engines: dict[str, Backend], options: argparse.Namespace) -> list[str]:
    """Prompts that every engine answers with all tokens: where one ends sooner differs between processors. They warm
    the engines up."""
    template, chosen = load_template(options.template), list[str]()
    for text in islice(utterances(), TRIED * options.requests):
        prompt = template.render(RewriteRequest(text))
        if all(answer(engine, prompt, options.tokens) == options.tokens for engine in engines.values()):
            chosen.append(prompt)
        if len(chosen) == options.requests:
            return chosen
    sys.exit(f"{len(chosen)} of {TRIED * options.requests} prompts have answers of {options.tokens} tokens by all")


def answer(engine: Backend, prompt: str, tokens: int) -> int:
    """Tokens of the answer."""
    [[answer]] = engine.generate([prompt], Sampling(max_tokens=tokens))
    return answer.tokens


def measure_round(
    engines: dict[str, Backend],
    clocks: dict[str, Callable[[str], float]],
    prompts: list[str],
    tokens: int,
    turned: bool,
) -> Times:
    """Seconds of each answer."""
    times: Times = {clock: {name: [] for name in engines} for clock in clocks}
    for prompt, name in product(prompts, sorted(engines, reverse=turned)):
        began = {clock: read(name) for clock, read in clocks.items()}
        written = answer(engines[name], prompt, tokens)
        ended = {clock: read(name) for clock, read in clocks.items()}
        if written != tokens:
            sys.exit(f"{name} gave {written} tokens in place of {tokens} at a second time")
        for clock in clocks:
            times[clock][name].append(ended[clock] - began[clock])
    return times


if __name__ == "__main__":
    main()
