"""Tool search for an Anthropic model. Reads $GATEWAY, $ANTHROPIC_API_KEY and $MODEL."""

import json
import os

import httpx
from anthropic import Anthropic

ASK = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = {"name": "search_tools", "description": "Finds tools. Say what is to be done.", "input_schema": ASK}


def answer(question, run):
    """`run(tool_id, arguments)` calls the tool."""
    client, tools, names, messages = Anthropic(), {}, {}, [{"role": "user", "content": question}]
    while True:
        known = [SEARCH, *tools.values()]  # deferred: they cost nothing until a search refers to them
        reply = client.messages.create(model=os.environ["MODEL"], max_tokens=1024, messages=messages, tools=known)
        messages.append(
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]}
        )
        if reply.stop_reason != "tool_use":
            return "".join(block.text for block in reply.content if block.type == "text")
        results = []
        for call in (block for block in reply.content if block.type == "tool_use"):
            if call.name == "search_tools":
                body = {"utterance": call.input["query"], "k": 5, "format": "anthropic-search"}
                response = httpx.post(f"{os.environ['GATEWAY']}/v1/search", json=body).raise_for_status().json()
                definitions = response["results"][0]["definitions"]
                tools |= {tool["name"]: tool for tool in definitions["tools"]}
                names, content = names | definitions["names"], definitions["references"]
            else:
                content = json.dumps(run(names[call.name], call.input))
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": content})
        messages.append({"role": "user", "content": results})
