"""The OpenAPI document: correct, complete, and followed by the server for any input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from doubles import BM25_ONLY, ModelServer, plain_context, varied_tools
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS
from serving import Running, running

CHECKED = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from serving import rewriter

    from retrievers.index import build

    folder = tmp_path_factory.mktemp("openapi")
    build(folder / "index", varied_tools(40), BM25_ONLY, plain_context())
    model = ModelServer()
    config: dict[str, Any] = {
        "index": str(folder / "index"),
        "retriever": "bm25",
        "anonymous": ["search", "write", "admin"],
        "admin": True,
        "feedback": str(folder / "feedback"),
        "rewriter": rewriter(model),
    }
    with running(config) as made:
        made.until_ready()
        yield made
    model.stop()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
def test_the_server_keeps_to_its_document(server: Running, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    # A body that is too long for its field may be too long for the server.
    schema.config.checks.negative_data_rejection.expected_statuses.append("413")
    tested = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query or operation.path_parameters):
            continue  # nothing that could be wrong

        @settings(
            max_examples=15,
            deadline=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def keeps(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=CHECKS.get_by_names(CHECKED))

        keeps()
        tested += 1
    assert tested >= 8


def test_the_document_is_whole(server: Running) -> None:
    document = server.client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) == {
        "/healthz", "/readyz", "/metrics", "/v1/search", "/v1/search/stream", "/v1/rewrite", "/v1/feedback",
            "/v1/models", "/v1/tools",
        "/v1/tools/{tool_id}", "/v1/admin/import", "/v1/admin/reload", "/v1/admin/held", "/v1/admin/held/approve",
            "/v1/admin/held/reject",
        "/v1/about", "/v1/explain", "/v1/labels", "/v1/catalogue/read", "/v1/findings", "/v1/reports",
            "/v1/reports/{name}",
            "/v1/call", "/v1/upstreams", "/v1/admin/calls",
    }  # fmt: skip
    for path, methods in document["paths"].items():
        for method, facts in methods.items():
            assert facts["description"], f"{method} {path}"
            assert {"400", "401", "403", "429", "500"} <= facts["responses"].keys(), f"{method} {path}"
    assert document["components"]["schemas"]["SearchRequest"]["additionalProperties"] is False
    assert "HTTPValidationError" not in str(document)


def test_the_document_tells_this_servers_limits(tmp_path: Path) -> None:
    from retrievers.index import build

    build(tmp_path / "index", varied_tools(5), BM25_ONLY, plain_context())
    limits = {"characters": 100, "utterances": 3, "k": 7, "tools": 2}
    with running({"index": str(tmp_path / "index"), "retriever": "bm25", "limits": limits}) as server:
        properties = server.client.get("/openapi.json").json()["components"]["schemas"]["SearchRequest"]["properties"]
        assert properties["k"]["maximum"] == 7
        one, several = properties["utterance"]["anyOf"]
        assert (one["maxLength"], several["maxItems"], several["items"]["maxLength"]) == (100, 3, 100)
        for body in ({"utterance": "a" * 101}, {"utterance": ["a"] * 4}, {"utterance": "a", "k": 8}):
            assert server.post("/v1/search", **body).status_code == 422
        assert server.post("/v1/search", utterance=["a" * 100] * 3, k=7).status_code == 200
