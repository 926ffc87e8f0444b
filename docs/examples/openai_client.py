"""Give an OpenAI model the tools that a question needs. Reads $GATEWAY, $OPENAI_API_KEY and $MODEL."""

import json
import os

import httpx
from openai import OpenAI


def answer(question, run):
    """`run(tool_id, arguments)` calls the tool."""
    body = {"utterance": question, "k": 5, "format": "openai"}
    headers = {"X-API-Key": os.environ["GATEWAY_KEY"]} if "GATEWAY_KEY" in os.environ else {}
    response = httpx.post(f"{os.environ['GATEWAY']}/v1/search", json=body, headers=headers).raise_for_status().json()
    tools = response["results"][0]["definitions"]
    client, messages = OpenAI(), [{"role": "user", "content": question}]
    while True:
        reply = client.chat.completions.create(model=os.environ["MODEL"], messages=messages, tools=tools["tools"])
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            name, back = call.function.name, tools["arguments"].get(call.function.name, {})
            arguments = {back.get(key, key): value for key, value in json.loads(call.function.arguments).items()}
            result = json.dumps(run(tools["names"][name], arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
