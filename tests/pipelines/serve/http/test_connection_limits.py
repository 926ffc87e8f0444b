"""Connections that send no request, half of one, or take no answer: first the attack, then the bound."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import yaml
from doubles import BM25_ONLY, plain_context, varied_tools
from killing import started
from processes import CODE
from serving import Running, running
from waiting import PATIENCE, until

from pipelines.serve.bounds.addresses import network
from pipelines.serve.http.connections import HEALTH_CONNECTIONS
from retrievers.index import build

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Never: "
SEARCH = (
    b'POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"u'
)
LOOSE = {"header_seconds": 600.0, "stall_seconds": 600.0}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("connections") / "index"
    build(folder, varied_tools(200), BM25_ONLY, plain_context())
    return folder


@contextmanager
def bounded(index: Path, **limits: float) -> Iterator[Running]:
    config = {"index": str(index), "retriever": "bm25", "connections": limits, "limits": {"body_seconds": 600.0}}
    with running(config) as server:
        yield server


def opened(stack: ExitStack, port: int, data: bytes, times: int = 1) -> list[socket.socket]:
    made = []
    for _ in range(times):
        made.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)))
        made[-1].sendall(data)
    return made


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def metric(server: Running, name: str) -> float:
    lines = server.client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"toolrewrite_{name}"))


@pytest.mark.parametrize("data", [b"", HALF], ids=["nothing is sent", "half of the headers"])
def test_headers_that_never_end_are_let_go(index: Path, data: bytes) -> None:
    with bounded(index, **LOOSE) as server, ExitStack() as stack:
        attack = opened(stack, server.port, data, 20)
        for _ in range(3):
            assert metric(server, "connections ") >= 20
        assert not any(is_closed(connection) for connection in attack)
    with bounded(index, header_seconds=0.3) as server, ExitStack() as stack:
        attack = opened(stack, server.port, data, 20)
        until(lambda: all(is_closed(connection) for connection in attack))
        assert metric(server, 'connections_closed_total{reason="headers"}') == 20


def test_headers_without_an_end_are_not_kept(index: Path) -> None:
    with bounded(index, **LOOSE) as server, ExitStack() as stack:
        [attack] = opened(stack, server.port, HALF)
        with pytest.raises(ConnectionError):
            attack.sendall(b"a" * 60_000_000)
        assert metric(server, "connections_closed_total{") >= 1
        assert server.search("weather")["results"]


def test_headers_in_pieces_are_read_and_the_next_request_has_its_own_time(index: Path) -> None:
    with bounded(index, header_seconds=0.6, idle_seconds=60.0) as server, ExitStack() as stack:
        [connection] = opened(stack, server.port, b"GET /healthz HTTP/1.1\r\nHost: loc")
        connection.sendall(b"alhost\r\n\r\n")
        assert b"200 OK" in connection.recv(4096)
        with suppress(TimeoutError):  # idle for longer than headers may take
            connection.settimeout(1.5)
            assert connection.recv(1) == b"not closed"
        connection.settimeout(PATIENCE)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in connection.recv(4096)
        connection.sendall(HALF)
        until(lambda: is_closed(connection))


def test_an_idle_connection_is_closed(index: Path) -> None:
    with bounded(index, idle_seconds=0.2) as server, ExitStack() as stack:
        [connection] = opened(stack, server.port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in connection.recv(4096)
        until(lambda: is_closed(connection))


def test_an_answer_that_is_not_taken_is_dropped(index: Path) -> None:
    """Small buffers, so that the answers of a few requests do not fit into them."""
    ask = b"GET /v1/tools?limit=200 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for limits, closes in ((LOOSE, False), ({"stall_seconds": 0.3}, True)):
        with bounded(index, **limits) as server, ExitStack() as stack:
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(ask * 200)
            if closes:
                until(lambda server=server: metric(server, 'connections_closed_total{reason="unread"}') == 1)  # type: ignore[misc]
            else:
                until(lambda server=server: metric(server, "requests_total") > 3)  # type: ignore[misc]
                assert metric(server, 'connections_closed_total{reason="unread"}') == 0


def test_one_address_cannot_take_every_connection(index: Path) -> None:
    with bounded(index, per_address=10, **LOOSE) as server, ExitStack() as stack:
        attack = opened(stack, server.port, HALF, 40)
        assert server.search("weather", k=1)["results"][0]["tools"]
        until(lambda: sum(map(is_closed, attack)) >= 30)
        assert metric(server, "connections ") <= 10


def test_health_is_answered_while_every_connection_is_busy(index: Path) -> None:
    with bounded(index, total=10, **LOOSE) as server, ExitStack() as stack:
        server.client.close()
        opened(stack, server.port, SEARCH, 10)  # running requests: none gives way
        until(lambda: httpx.get(f"{server.url}/healthz").status_code == 200)
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        refused = httpx.post(f"{server.url}/v1/search", json={"utterance": "weather"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_connections")
        assert refused.headers["retry-after"] == "1"
        extra = opened(stack, server.port, b"", HEALTH_CONNECTIONS + 5)
        until(lambda: any(map(is_closed, extra)))


def test_few_file_handles_are_enough_for_health(index: Path, tmp_path: Path) -> None:
    """The attack of the past: 400 half-sent headers, no key, few handles, and health could not be reached."""
    path = tmp_path / "serve.yaml"
    keys = {"index": str(index), "retriever": "bm25", "port": 0, "anonymous": ["search"]}
    path.write_text(yaml.safe_dump({**keys, "connections": LOOSE}))
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))"
    command = [sys.executable, "-c", f"{few}; {CODE}", str(path)]
    with started(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process, ExitStack() as stack:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1].strip(",")
        opened(stack, int(url.rpartition(":")[2]), HALF, 400)
        for _ in range(3):
            assert httpx.get(f"{url}/healthz", timeout=PATIENCE).status_code == 200
            assert httpx.post(f"{url}/v1/search", json={"utterance": "weather"}, timeout=PATIENCE).status_code == 200
        assert process.stderr is not None
        log = ""
        while "connections closed: full" not in log:  # it is logged by the next sweep
            line = process.stderr.readline()
            assert line, log
            log += line
        assert "300 file handles" in log


def test_an_address_is_a_network_of_64_bits_with_ipv6() -> None:
    assert network("10.1.2.3") == network("::ffff:10.1.2.3") == "10.1.2.3"
    assert network("2001:db8:1:2::1") == network("2001:db8:1:2:ffff::9") != network("2001:db8:1:3::1")
    assert network("fe80::1%eth0") == network("fe80::2")
    assert network("") == ""
