"""The page itself and its files. They hold nothing of the catalogue, so they need no key."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from pipelines.serve.errors import Refusal
from pipelines.serve.page.assets import FRAME_POLICY, POLICY, Asset, Assets

ASSETS = Assets()
router = APIRouter(include_in_schema=False)


@router.get("/")
async def page(request: Request) -> Response:
    """Ask, browse, add, look at reports."""
    return _fresh(request, ASSETS.page("index"), POLICY)


@router.get("/report")
async def report(request: Request) -> Response:
    """What a report is shown in: it fetches the report with the caller's key, which a plain link could not send."""
    return _fresh(request, ASSETS.page("report"), FRAME_POLICY)


@router.get("/page/{version}/{name}")
async def file(version: str, name: str) -> Response:
    """A file of the page; its address changes with its content."""
    asset = ASSETS.find(version, name)
    if asset is None:
        raise Refusal(404, "not_found", "there is no such file, or not any more; load the page again")
    return _sent(asset, {"Cache-Control": "public, max-age=31536000, immutable"})


def _fresh(request: Request, asset: Asset, policy: str) -> Response:
    headers = {
        "ETag": asset.etag,
        "Cache-Control": "no-cache",
        "Content-Security-Policy": policy,
        "Cross-Origin-Opener-Policy": "same-origin",
    }
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return _sent(asset, headers)


def _sent(asset: Asset, headers: dict[str, str]) -> Response:
    own = {"Content-Type": asset.type, "Cross-Origin-Resource-Policy": "same-origin"}
    return Response(asset.data, headers={**own, **headers})
