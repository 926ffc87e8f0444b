"""The serving benchmark's own time of the gateway: everything that neither vLLM nor the retriever had."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from waiting import PATIENCE, until

BENCHMARKS = ROOT / "benchmarks"
SLOW = 0.3


@pytest.fixture(scope="module")
def own() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    import serve_rewriting

    yield serve_rewriting
    sys.path.remove(str(BENCHMARKS))
    for name in ("serve_rewriting", "serve_watch", "http_load"):
        sys.modules.pop(name, None)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=6), st.integers(0, 15), st.integers(0, 20))
def test_what_is_left_is_every_tick_that_no_span_has(
    own: ModuleType, spans: list[tuple[int, int]], began: int, length: int
) -> None:
    busy = {tick for start, long in spans for tick in range(start, start + long)}
    left = sum(tick not in busy for tick in range(began, began + length))
    result = [own.Span(start, start + long, []) for start, long in spans]
    assert own.remainder(began, began + length, result) == left


def test_what_fell_back_is_told_and_not_counted(own: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    import http_load

    gateway, bare = http_load.LoadFigures(), http_load.LoadFigures()
    gateway.add(http_load.LoadFigures(10.0, [2.0] * 24, Counter({200: 24}), Counter(deadline=4, unavailable=1)))
    bare.add(http_load.LoadFigures(10.0, [2.0] * 20, Counter({200: 20})))
    assert (gateway.rate(), gateway.rates, bare.rate()) == (1.9, [1.9], 2.0)
    assert (gateway.summary()["per_second"], gateway.summary()["fallbacks"]) == (1.9, {"deadline": 4, "unavailable": 1})
    http_load.print_peers("rewrites", {"gateway": gateway, "vLLM": bare})
    text = capsys.readouterr().out
    assert "5 fell back" in text
    assert "0.95" in text


def test_a_request_is_charged_with_its_own_spans_alone(own: ModuleType) -> None:
    answer = {
        "results": [{"rewrite": {"lines": ["book a train"]}}],
        "timings_ms": {"rewrite": 1250.0},
    }
    exchange = own.Exchange(10.0, 12.0, {"utterance": "0001 a train"}, json.dumps(answer).encode())
    lost = own.Exchange(10.0, 12.0, {"utterance": "0002 a plane"}, b"{}")
    vllm = [own.Span(10.2, 11.4, ["so: 0001 a train"]), own.Span(10.0, 12.0, ["0009 a boat"])]
    retriever = [own.Span(11.5, 11.8, ["book a train", "book a boat"]), own.Span(10.1, 10.3, ["0001 a train"])]
    result = own.OwnTime()
    result.add([exchange, lost], vllm, [*retriever, own.Span(10.0, 12.0, ["0009 a boat"])])
    assert result.not_answered == 1
    assert result.summary()["p50_ms"] == pytest.approx(1000 * (0.1 + 0.1 + 0.2))
    assert result.in_rewrite == [pytest.approx(50.0)]


class Model(BaseHTTPRequestHandler):
    """Takes its time."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        spoken_text = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(SLOW)
        self.send_response(200)
        self.send_header("Content-Length", str(len(spoken_text)))
        self.end_headers()
        self.wfile.write(spoken_text)

    def log_message(self, *_: object) -> None: ...


def test_the_proxy_hands_on_and_notes_what_the_model_took(own: ModuleType, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        words = ["serve_watch.py", "proxy", str(server.server_address[1]), str(tmp_path / "spans.jsonl")]
        proxy = subprocess.Popen([sys.executable, *words], cwd=BENCHMARKS, stdout=subprocess.PIPE, text=True)
        try:
            assert proxy.stdout is not None
            url = f"http://127.0.0.1:{int(proxy.stdout.readline())}"
            body = {"messages": [{"content": "be brief"}, {"content": "höre"}]}
            with httpx.Client(timeout=PATIENCE, trust_env=False) as client:
                client.post(f"{url}/tokenize", json=body)
                began = time.monotonic()
                for _ in range(2):
                    assert client.post(f"{url}/v1/chat/completions", json=body).json() == body
                ended = time.monotonic()
            # What a request took is noted once its answer is on the way.
            until(lambda: (tmp_path / "spans.jsonl").read_text().count("\n") == 2)
        finally:
            proxy.terminate()
            proxy.communicate(timeout=PATIENCE)
            server.shutdown()
    import serve_watch

    spans = serve_watch.read(tmp_path / "spans.jsonl")
    assert [list(span.texts) for span in spans] == [["höre"], ["höre"]]
    assert began < spans[0].began < spans[0].ended < spans[1].began < spans[1].ended < ended
    assert all(span.ended - span.began >= SLOW for span in spans)


def test_the_polite_are_measured_beside_an_attack(tmp_path: Path) -> None:
    script, out = str(BENCHMARKS / "serve_fairness.py"), tmp_path / "fairness.json"
    flags = ["--retriever", "bm25", "--kinds", "flood", "--clients", "2", "--seconds", "1", "--warm-up", "0.2"]
    subprocess.run([sys.executable, script, *flags, "--out", str(out)], check=True, timeout=PATIENCE, cwd=ROOT)
    [row] = json.loads(out.read_text())["results"]
    assert row["hostile"]["statuses"]["200"] > 0
    assert row["idle"]["lost"] == row["beside"]["lost"] == row["beside"]["health_lost"] == 0
    assert row["beside"]["requests"] > 5
