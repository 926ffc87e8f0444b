"""Tools as response bodies. Loads no web framework: the process that reads catalogues makes some too."""

from __future__ import annotations

import json
from dataclasses import asdict

from pipelines.serve.schemas import tools as schemas
from retrievers.types import Tool


def tool_out(tool: Tool) -> schemas.ToolOut:
    """The response body of a tool. A schema that is not JSON, as old catalogues may have, is sent as text."""
    try:
        schema = json.loads(tool.schema) if tool.schema else None
    except ValueError:
        schema = tool.schema
    call = json.loads(tool.call) if tool.call else None
    return schemas.ToolOut.model_construct(
        id=tool.id,
        name=tool.name,
        description=tool.description,
        parameters=[schemas.ToolParameter.model_construct(**asdict(parameter)) for parameter in tool.parameters],
        category=tool.category,
        provider=tool.provider,
        arguments=schema,
        call=call,
    )
