"""Compare engines of the rewriter on a CPU: ONNX Runtime GenAI and vLLM answer the same prompts, one client.

    python benchmarks/cpu_engines.py --base bundled:smollm2-135m       minutes on two cores, most of them vLLM's start

Engines take turns, prompt by prompt, with a bundled template. vLLM caches prefixes and is a server in a
process of its own, as configs/serve/sample.yaml starts it. An answer of fewer than `--tokens` tokens is not counted.
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
    """Medians per round. Not counted: a first round, in which engines warm up, and one where an engine has no answer
    of all tokens."""
    medians: Times = {clock: {name: [] for name in engines} for clock in clocks}
    for number in range(options.rounds + 1):
        times = measure_round(engines, clocks, options, bool(number % 2))
        if number and all(times["CPU time"].values()):
            for clock, name in product(clocks, engines):
                medians[clock][name].append(percentile(times[clock][name], 0.5))
    if not medians["CPU time"]["vLLM"]:
        sys.exit(f"in no round every engine gave an answer of {options.tokens} tokens; try more --requests")
    for clock, by_engine in medians.items():
        load = f"load {os.getloadavg()[0]:.1f}"
        table.title(f"a rewrite of {options.tokens} tokens, one client, threads per engine: {options.threads}, {load}")
        for name, values in by_engine.items():
            table.note(f"p50, {name}, {clock}", "s", values, digits=2)
        for name in engines:
            if name != "vLLM":
                table.note_ratio(f"vLLM / {name}, {clock}", by_engine["vLLM"], by_engine[name])


def measure_round(
    engines: dict[str, Backend], clocks: dict[str, Callable[[str], float]], options: argparse.Namespace, turned: bool
) -> Times:
    """Seconds of each answer that has all tokens."""
    template, sampling = load_template(options.template), Sampling(max_tokens=options.tokens)
    times: Times = {clock: {name: [] for name in engines} for clock in clocks}
    for text in islice(utterances(), options.requests):
        prompt = template.render(RewriteRequest(text))
        for name in sorted(engines, reverse=turned):
            began = {clock: read(name) for clock, read in clocks.items()}
            [[answer]] = engines[name].generate([prompt], sampling)
            ended = {clock: read(name) for clock, read in clocks.items()}
            if answer.tokens == options.tokens:
                for clock in clocks:
                    times[clock][name].append(ended[clock] - began[clock])
    return times


if __name__ == "__main__":
    main()
