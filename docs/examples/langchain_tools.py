"""The tools a question needs as LangChain tools, for any chat model that takes some. $GATEWAY says where."""

import os

import httpx
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool


def tools_for(question, run):
    """`run(tool_id, arguments)` calls the tool, wherever it lives."""
    body = {"utterance": question, "k": 5, "format": "openai"}
    found = httpx.post(f"{os.environ['GATEWAY']}/v1/search", json=body).raise_for_status().json()
    made = found["results"][0]["definitions"]

    def tool(name, description, parameters):
        call = lambda **arguments: run(made["names"][name], arguments)  # noqa: E731
        schema = parameters | {"title": name}
        return StructuredTool(name=name, description=description or name, args_schema=schema, func=call)

    return [tool(**each["function"]) for each in made["tools"]]


def answer(model, question, run):
    """Asks the model until it calls no more tools."""
    tools = {tool.name: tool for tool in tools_for(question, run)}
    messages = [HumanMessage(question)]
    while True:
        messages.append(model.bind_tools(list(tools.values())).invoke(messages))
        if not messages[-1].tool_calls:
            return messages[-1].content
        messages += [tools[call["name"]].invoke(call) for call in messages[-1].tool_calls]
