"""A model that plays by a script, over HTTP: it calls the first tool it is given, then answers. As strict as the real
APIs are about what it is sent."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from jsonschema import Draft202012Validator


class Strict(AssertionError):
    """The API would have refused this."""


def check_tool(name: str, schema: dict[str, Any], longest: int) -> None:
    """What OpenAI and Anthropic hold against a tool."""
    if not re.fullmatch(rf"[A-Za-z0-9_-]{{1,{longest}}}", name):
        raise Strict(f"the name {name!r} is illegal")
    Draft202012Validator.check_schema(schema)
    if schema.get("type") != "object" or {"oneOf", "anyOf", "allOf", "enum", "not"} & schema.keys():
        raise Strict("the arguments are no plain object")
    if strange := [key for key in schema["properties"] if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", key)]:
        raise Strict(f"the argument {strange[0]!r} is illegal")
    if set(schema.get("required", [])) - schema["properties"].keys():
        raise Strict("what is required is not there")


def arguments_for(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments that the schema allows."""
    values = {"string": "Athens", "integer": 3, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}
    made = {key: values.get(schema["properties"][key].get("type"), "Athens") for key in schema.get("required", [])}
    Draft202012Validator(schema).validate(made)
    return made


class ScriptedModel(ThreadingHTTPServer):
    """Speaks OpenAI's chat completions and Anthropic's messages."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.faults: list[str] = []
        self.requests: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def openai(self, body: dict[str, Any]) -> dict[str, Any]:
        """A chat completion."""
        functions = [tool["function"] for tool in body["tools"]]
        for function in functions:
            check_tool(function["name"], function["parameters"], 64)
        last = body["messages"][-1]
        message: dict[str, Any] = {"role": "assistant", "content": None}
        if last["role"] == "tool":
            message["content"] = f"The tool says {last['content']}"
        else:
            arguments = json.dumps(arguments_for(functions[0]["parameters"]))
            function = {"name": functions[0]["name"], "arguments": arguments}
            message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
        reason = "stop" if message["content"] else "tool_calls"
        return {
            "id": "chat_1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }

    def anthropic(self, body: dict[str, Any]) -> dict[str, Any]:
        """A message: searches first, calls what the search refers to, answers."""
        tools = {tool["name"]: tool for tool in body["tools"]}
        for name, tool in tools.items():
            check_tool(name, tool["input_schema"], 128)
        if all(tool.get("defer_loading") for tool in tools.values()):
            raise Strict("at least one tool must not be deferred")
        last = body["messages"][-1]["content"]
        if isinstance(last, str):
            block = {"type": "tool_use", "id": "toolu_1", "name": "search_tools", "input": {"query": last}}
        elif isinstance(last[0]["content"], list):
            named = [each["tool_name"] for each in last[0]["content"] if each["type"] == "tool_reference"]
            if strangers := set(named) - tools.keys():
                raise Strict(f"{strangers} are referred to and not given")
            chosen = tools[named[0]]
            given = arguments_for(chosen["input_schema"])
            block = {"type": "tool_use", "id": "toolu_2", "name": chosen["name"], "input": given}
        else:
            block = {"type": "text", "text": f"The tool says {last[0]['content']}"}
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [block],
            "stop_reason": "tool_use" if block["type"] == "tool_use" else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedModel

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        speak = self.server.openai if self.path.endswith("/chat/completions") else self.server.anthropic
        try:
            status, answer = 200, speak(body)
        except Exception as error:
            self.server.faults.append(str(error))
            status, answer = 400, {"error": {"type": "invalid_request_error", "message": str(error)}}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass
