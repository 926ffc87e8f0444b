"""The route that explains a raw ranking: the ranks of a retriever's parts, and the votes of earlier queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fastapi import Response

from pipelines.serve.http.dependencies import BODY, CallerDep, GatewayDep, check_query, errors, make_router, reply
from pipelines.serve.page import schemas
from pipelines.serve.results import may_find_in
from pipelines.serve.search_jobs import PartsJob
from retrievers.types import ToolId

DEPTH = 50
"""Tools per part."""
router = make_router("page")


@router.post("/v1/explain", response_model=schemas.ExplainResponse, responses=errors(*BODY, 503))
async def explain(body: schemas.ExplainRequest, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Show what the raw ranking of an utterance was made of. Earlier queries are counted, never shown."""
    check_query(gateway, caller, "explain", body.utterance, min(DEPTH, gateway.config.limits.k), rewrite=False)
    snapshot = gateway.catalogue.current
    may_find = None if caller.access.finds_all else may_find_in(snapshot, caller.access)

    def allowed(tools: Sequence[ToolId]) -> list[ToolId]:
        return [tool for tool in tools if may_find is None or may_find(tool)]

    depth = DEPTH if may_find is None else len(snapshot.index.tools)
    [made] = await gateway.service.batcher.run(PartsJob(snapshot.search, depth), [body.utterance])
    voters = [set(tools) for votes in made.votes if (tools := allowed(votes))]
    answer = schemas.ExplainResponse(
        parts=[
            schemas.PartOut(name=name, tools=allowed(ranking.ids)[:DEPTH]) for name, ranking in made.rankings.items()
        ],
        voters=len(voters),
        votes=Counter(tool for tools in voters for tool in tools),
    )
    return reply(answer)
