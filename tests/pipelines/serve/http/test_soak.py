"""The mixed load of the serving benchmark: it sends every kind of request, and the server refuses none."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest
from paths import ROOT
from serving import Running

from pipelines.serve.catalogue.feedback import read_feedback

Serve = Callable[..., Running]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def soak() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    import serve_load

    yield serve_load
    sys.path.remove(str(BENCHMARKS))
    for name in ("serve_load", "serve_rewriting", "serve_watch", "http_load", "harness"):
        sys.modules.pop(name, None)


def test_it_searches_changes_and_confirms_without_an_error(serve: Serve, tmp_path: Path, soak: ModuleType) -> None:
    server = serve(feedback=str(tmp_path / "feedback"))
    known = list(server.gateway.catalogue.current.index.tools)
    sent: Counter[tuple[str, str]] = Counter()
    for method, path, body in islice(soak.mixed_requests(0, known), 300):
        status = server.client.request(method, path, json=body).status_code
        assert status in (200, 404), (method, path, status)
        sent[method, "/".join(path.split("?")[0].split("/")[:3])] += status == 200
    for wanted in (
        ("POST", "/v1/search"),
        ("POST", "/v1/feedback"),
        ("PUT", "/v1/tools"),
        ("DELETE", "/v1/tools"),
        ("GET", "/v1/tools"),
        ("GET", "/metrics"),
    ):
        assert sent[wanted], wanted
    assert len(list(read_feedback(tmp_path / "feedback"))) == sent["POST", "/v1/feedback"]
