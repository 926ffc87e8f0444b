"""The examples of docs/examples run unchanged, with a real gateway and a scripted model."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from doubles import BM25_ONLY, plain_context, varied_tools
from paths import ROOT
from scripted import ScriptedModel, arguments_for
from serving import Running, running

from retrievers.index import build

EXAMPLES = ROOT / "docs" / "examples"
QUESTION = "will I need an umbrella in Athens tomorrow"
UMBRELLA = {
    "name": "umbrella advice / näheres",
    "description": "Tells whether somebody needs an umbrella tomorrow.",
    "provider": "Weather",
    "schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedModel]:
    scripted = ScriptedModel()
    for name, value in {
        "MODEL": "scripted",
        "OPENAI_BASE_URL": f"{scripted.url}/v1",
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": scripted.url,
        "ANTHROPIC_API_KEY": "none",
        "LANGSMITH_TRACING": "false",
    }.items():
        monkeypatch.setenv(name, value)
    yield scripted
    scripted.shutdown()
    scripted.server_close()
    assert scripted.faults == []


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    build(tmp_path / "index", varied_tools(60), BM25_ONLY, plain_context())
    with running({"index": str(tmp_path / "index"), "retriever": "bm25"}) as server:
        assert server.client.put("/v1/tools/weather/umbrella", json=UMBRELLA).status_code == 200
        monkeypatch.setenv("GATEWAY", server.url)
        yield server


@pytest.fixture
def calls() -> list[tuple[str, dict[str, Any]]]:
    return []


@pytest.fixture
def run(calls: list[tuple[str, dict[str, Any]]]) -> Callable[[str, dict[str, Any]], dict[str, str]]:
    def called(tool: str, arguments: dict[str, Any]) -> dict[str, str]:
        calls.append((tool, {key: value for key, value in arguments.items() if value is not None}))
        return {"umbrella": "yes"}

    return called


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_the_openai_client(gateway: Running, model: ScriptedModel, run: Any, calls: list[Any]) -> None:
    assert example("openai_client")["answer"](QUESTION, run) == 'The tool says {"umbrella": "yes"}'
    assert calls == [("weather/umbrella", {"city": "Athens"})]


def test_the_anthropic_client_searches_for_its_tools(
    gateway: Running, model: ScriptedModel, run: Any, calls: list[Any]
) -> None:
    assert example("anthropic_client")["answer"](QUESTION, run) == 'The tool says {"umbrella": "yes"}'
    assert calls == [("weather/umbrella", {"city": "Athens"})]
    first, second, _ = model.requests
    assert [tool["name"] for tool in first["tools"]] == ["search_tools"]
    assert all(tool["defer_loading"] for tool in second["tools"][1:])


def test_langchain(gateway: Running, model: ScriptedModel, run: Any, calls: list[Any]) -> None:
    from langchain_openai import ChatOpenAI

    reply = example("langchain_tools")["answer"](ChatOpenAI(model="scripted"), QUESTION, run)
    assert "yes" in reply
    assert calls == [("weather/umbrella", {"city": "Athens"})]


def test_llamaindex(gateway: Running, run: Any, calls: list[Any]) -> None:
    reply = example("llamaindex_tools")["answer"](scripted_llm(), QUESTION, run)
    assert "yes" in reply
    assert calls == [("weather/umbrella", {"city": "Athens"})]


def scripted_llm() -> Any:
    """LlamaIndex's own interface to models that call functions, played by the script."""
    from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
    from llama_index.core.llms.function_calling import FunctionCallingLLM
    from llama_index.core.llms.llm import ToolSelection

    class Scripted(FunctionCallingLLM):
        @property
        def metadata(self) -> LLMMetadata:
            return LLMMetadata(is_function_calling_model=True)

        def _prepare_chat_with_tools(self, tools: Any, user_msg: Any = None, **_: Any) -> dict[str, Any]:
            return {"messages": [ChatMessage(content=user_msg)], "tools": [tool.metadata for tool in tools]}

        def chat(self, messages: Any, tools: Any = (), **_: Any) -> ChatResponse:
            chosen = tools[0]
            given = arguments_for(chosen.get_parameters_dict())
            message = ChatMessage(role="assistant", content="", additional_kwargs={"call": (chosen.name, given)})
            return ChatResponse(message=message)

        def get_tool_calls_from_response(self, response: ChatResponse, **_: Any) -> list[ToolSelection]:
            name, given = response.message.additional_kwargs["call"]
            return [ToolSelection(tool_id="1", tool_name=name, tool_kwargs=given)]

        def complete(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        acomplete = achat = astream_chat = astream_complete = stream_chat = stream_complete = complete

    return Scripted()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    lines = [line for line in path.read_text().split("\n") if line.strip() and not line.startswith(("import", "from"))]
    assert len(lines) <= 30
