"""The route that explains a raw ranking: the ranks of a retriever's parts, and the votes of earlier queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import islice

from fastapi import Response

from pipelines.serve.calls.settings import AccessRules
from pipelines.serve.catalogue.live_index import Snapshot
from pipelines.serve.http.dependencies import BODY, CallerDep, GatewayDep, check_query, errors, make_router, reply
from pipelines.serve.page import schemas
from pipelines.serve.results import ToolFilter, may_find_in
from pipelines.serve.search_jobs import DEEPER, PartsJob
from pipelines.serve.service import SearchService
from retrievers.base import RankingParts
from retrievers.types import ToolId

DEPTH = 50
"""Tools per part."""
router = make_router("page")


@router.post("/v1/explain", response_model=schemas.ExplainResponse, responses=errors(*BODY, 503))
async def explain(body: schemas.ExplainRequest, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Show what the raw ranking of an utterance was made of. Earlier queries are counted, never shown. Costs as much
    as a search for 50 tools."""
    check_query(gateway, caller, "explain", body.utterance, min(DEPTH, gateway.config.limits.k), rewrite=False)
    return reply(await _explain(gateway.service, gateway.catalogue.current, caller.access, body.utterance))


async def _explain(
    service: SearchService, snapshot: Snapshot, access: AccessRules, utterance: str
) -> schemas.ExplainResponse:
    """The parts as far as the caller may see them; searches deeper until each has enough tools, or no more of them."""
    is_allowed = None if access.finds_all else may_find_in(snapshot, access)
    num_tools, searched = len(snapshot.index.tools), DEPTH
    while True:
        [made] = await service.batcher.run(PartsJob(snapshot.search, searched), [utterance])
        answer = await service.answers.run(partial(_make_answer, made, is_allowed))
        missing = [part.name for part in answer.parts if len(part.tools) < DEPTH]
        if searched >= num_tools or all(len(made.rankings[name]) < searched for name in missing):
            return answer
        searched = min(num_tools, searched * DEEPER)


def _make_answer(made: RankingParts, is_allowed: ToolFilter | None) -> schemas.ExplainResponse:
    """Tools beyond the last that is shown are not looked at: the test of a tool reads it."""

    def allowed(tools: Iterable[ToolId]) -> Iterable[ToolId]:
        return tools if is_allowed is None else filter(is_allowed, tools)

    voters = [tools for votes in made.votes if (tools := set(allowed(votes)))]
    return schemas.ExplainResponse(
        parts=[
            schemas.PartOut(name=name, tools=list(islice(allowed(ranking.ids), DEPTH)))
            for name, ranking in made.rankings.items()
        ],
        voters=len(voters),
        votes=Counter(tool for tools in voters for tool in tools),
    )
