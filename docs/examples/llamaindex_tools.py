"""Give a LlamaIndex LLM the tools that a question needs. $GATEWAY is the URL of the server."""

import os
from typing import Any

import httpx
from llama_index.core.tools import FunctionTool
from pydantic import create_model


def tools_for(question, run):
    """`run(tool_id, arguments)` calls the tool."""
    body = {"utterance": question, "k": 5, "format": "openai"}
    response = httpx.post(f"{os.environ['GATEWAY']}/v1/search", json=body).raise_for_status().json()
    definitions = response["results"][0]["definitions"]

    def tool(name, description, parameters):
        needed = parameters.get("required", [])
        fields = {key: (Any, ...) if key in needed else (Any, None) for key in parameters["properties"]}
        call = lambda **arguments: run(definitions["names"][name], arguments)  # noqa: E731
        schema = create_model(name, **fields)
        return FunctionTool.from_defaults(call, name=name, description=description or name, fn_schema=schema)

    return [tool(**definition["function"]) for definition in definitions["tools"]]


def answer(llm, question, run):
    """One step: the model chooses, the tool runs."""
    return str(llm.predict_and_call(tools_for(question, run), user_msg=question))
