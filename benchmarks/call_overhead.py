"""Compare a call through the gateway with a call of the same MCP server without it, in one run.

    python benchmarks/call_overhead.py [--calls 100] [--rounds 10]        about 2 minutes
    chrt -r 1 python benchmarks/call_overhead.py                          on a machine that is not free

Over HTTP and standard input, with 1 and with 32 clients of the official SDK in this process. The two ways take turns,
round by round. Prints p50 and p99 in milliseconds, the difference and the ratio, and the CPU time of the gateway per
call; --out writes them as JSON. The clients reach the gateway over HTTP, also in front of a command.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from harness import machine, make_parser, write_json
from http_load import ROOT, ChildProcess, GatewayProcess
from mcp import Client, StdioServerParameters

from pipelines.context import make_context
from pipelines.data.sample_data import sample_folder
from retrievers.catalogue import read_catalogue
from retrievers.index import build
from retrievers.settings import BM25Settings

SERVER = str(ROOT / "benchmarks" / "counting_server.py")


async def time_calls(clients: list[Client], through_gateway: str, calls: int) -> list[float]:
    """Seconds per call; `through_gateway`: the server's name there, empty for a direct call."""

    async def work(client: Client) -> list[float]:
        seconds = []
        for number in range(max(1, calls // len(clients))):
            arguments: dict[str, Any] = {"number": str(number), "values": [1, 2, number]}
            began = time.perf_counter()
            if through_gateway:
                call = {"id": f"{through_gateway}/add", "arguments": arguments}
                result = await client.call_tool("call_tool", call)
            else:
                result = await client.call_tool("add", arguments)
            seconds.append(time.perf_counter() - began)
            assert result.structured_content["sum"] == 3 + number, result
        return seconds

    return [second for part in await asyncio.gather(*map(work, clients)) for second in part]


async def connect(stack: AsyncExitStack, server: Any, number: int) -> list[Client]:
    """Connected clients; of a command, several share one process, as a server on standard input has one client."""
    shared = isinstance(server, StdioServerParameters)
    clients = [await stack.enter_async_context(Client(server)) for _ in range(1 if shared else number)]
    for client in clients:
        await client.list_tools()
    return clients * (number if shared else 1)


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def measure(
    ways: dict[str, tuple[Any, str]], gateway: psutil.Process, calls: int, rounds: int
) -> list[dict[str, Any]]:
    """Figures per transport and number of clients."""
    rows = []
    for transport in ("http", "stdio"):
        for number in (1, 32):
            async with AsyncExitStack() as stack:
                pair = {way: ways[f"{transport} {way}"] for way in ("direct", "gateway")}
                clients = {way: await connect(stack, server, number) for way, (server, _) in pair.items()}
                seconds: dict[str, list[float]] = {way: [] for way in pair}
                began = 0.0
                for round_number in range(rounds + 1):
                    began = cpu_seconds(gateway) if round_number == 1 else began
                    for way in sorted(pair, reverse=bool(round_number % 2)):
                        taken = await time_calls(clients[way], pair[way][1], calls)
                        seconds[way] += taken if round_number else []  # the first round warms up
            figures = {way: np.percentile(np.array(taken) * 1e3, [50, 99]) for way, taken in seconds.items()}
            cpu = 1e3 * (cpu_seconds(gateway) - began) / len(seconds["gateway"])
            row: dict[str, Any] = {"transport": transport, "clients": number, "gateway_cpu_ms": cpu}
            for index, name in enumerate(("p50", "p99")):
                direct, through = (float(figures[way][index]) for way in ("direct", "gateway"))
                row[name] = {"direct": direct, "gateway": through, "added": through - direct, "ratio": through / direct}
            rows.append(row)
            print_row(row)
    return rows


def print_row(row: dict[str, Any]) -> None:
    """Print one line per percentile, and one for the gateway's CPU time."""
    for name in ("p50", "p99"):
        figures = row[name]
        print(
            f"{row['transport']:6} {row['clients']:3} clients  {name}  direct {figures['direct']:8.2f} ms  "
            f"gateway {figures['gateway']:8.2f} ms  added {figures['added']:7.2f} ms  ratio {figures['ratio']:5.2f}",
            flush=True,
        )
    print(
        f"{row['transport']:6} {row['clients']:3} clients  CPU of the gateway {row['gateway_cpu_ms']:.2f} ms per call"
    )


def main() -> None:
    """Start both servers and the gateway, and measure."""
    parser = make_parser(__doc__)
    parser.add_argument("--calls", type=int, default=100, help="calls per way and round (100)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds, after one that is not counted (10)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder / "index", read_catalogue(sample_folder()), {"bm25": BM25Settings()}, make_context("cpu"))
        upstream = ChildProcess([sys.executable, SERVER, "--http"])
        url = upstream.read_line().strip()
        gateway = GatewayProcess(
            folder,
            {
                "index": str(folder / "index"),
                "anonymous": ["search", "call"],
                "imports": {"hosts": ["127.0.0.1"], "allow_private": True},
                "trust": {"vetted": ["http", "stdio"]},
                "mcp": [{"name": "http", "url": url}, {"name": "stdio", "command": [sys.executable, SERVER]}],
            },
        )
        try:
            time.sleep(8.0)  # both lists must be read
            here = f"http://127.0.0.1:{gateway.port}/mcp"
            command = StdioServerParameters(command=sys.executable, args=[SERVER])
            ways = {
                "http direct": (url, ""),
                "http gateway": (here, "http"),
                "stdio direct": (command, ""),
                "stdio gateway": (here, "stdio"),
            }
            watched = psutil.Process(gateway.process.pid)
            rows = asyncio.run(measure(ways, watched, options.calls, options.rounds))
        finally:
            gateway.end()
            upstream.end()
    write_json(options.out, {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
