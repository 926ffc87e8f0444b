"""Give a LangChain chat model the tools that a question needs. $GATEWAY is the URL of the server."""

import os

import httpx
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool


def tools_for(question, run):
    """`run(tool_id, arguments)` calls the tool."""
    body = {"utterance": question, "k": 5, "format": "openai"}
    response = httpx.post(f"{os.environ['GATEWAY']}/v1/search", json=body).raise_for_status().json()
    definitions = response["results"][0]["definitions"]

    def tool(name, description, parameters):
        call = lambda **arguments: run(definitions["names"][name], arguments)  # noqa: E731
        schema = parameters | {"title": name}
        return StructuredTool(name=name, description=description or name, args_schema=schema, func=call)

    return [tool(**definition["function"]) for definition in definitions["tools"]]


def answer(model, question, run):
    """Ask the model until it calls no more tools."""
    tools = {tool.name: tool for tool in tools_for(question, run)}
    messages = [HumanMessage(question)]
    while True:
        messages.append(model.bind_tools(list(tools.values())).invoke(messages))
        if not messages[-1].tool_calls:
            return messages[-1].content
        messages += [tools[call["name"]].invoke(call) for call in messages[-1].tool_calls]
