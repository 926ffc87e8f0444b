"""The tools a question needs as LlamaIndex tools, for any LLM that calls functions. $GATEWAY says where."""

import os
from typing import Any

import httpx
from llama_index.core.tools import FunctionTool
from pydantic import create_model


def tools_for(question, run):
    """`run(tool_id, arguments)` calls the tool, wherever it lives."""
    body = {"utterance": question, "k": 5, "format": "openai"}
    found = httpx.post(f"{os.environ['GATEWAY']}/v1/search", json=body).raise_for_status().json()
    made = found["results"][0]["definitions"]

    def tool(name, description, parameters):
        needed = parameters.get("required", [])
        fields = {key: (Any, ...) if key in needed else (Any, None) for key in parameters["properties"]}
        call = lambda **arguments: run(made["names"][name], arguments)  # noqa: E731
        schema = create_model(name, **fields)
        return FunctionTool.from_defaults(call, name=name, description=description or name, fn_schema=schema)

    return [tool(**each["function"]) for each in made["tools"]]


def answer(llm, question, run):
    """One step: the model chooses, the tool runs."""
    return str(llm.predict_and_call(tools_for(question, run), user_msg=question))
