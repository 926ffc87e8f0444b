"""Routes of the page and its files. They hold no data of the catalogue, so they need no key."""

from __future__ import annotations

from fastapi import Request, Response

from pipelines.serve.errors import Refusal
from pipelines.serve.http.dependencies import make_router
from pipelines.serve.page.assets import FRAME_POLICY, POLICY, Asset, Assets

ASSETS = Assets()
router = make_router(shown=False)


@router.get("/")
async def page(request: Request) -> Response:
    """The page: ask, browse, add, view reports."""
    return _send_page(request, ASSETS.page("index"), POLICY)


@router.get("/report")
async def report(request: Request) -> Response:
    """The frame of a report: it fetches the report with the caller's key, which a plain link cannot send."""
    return _send_page(request, ASSETS.page("report"), FRAME_POLICY)


@router.get("/page/{version}/{name}")
async def file(version: str, name: str) -> Response:
    """A file of the page; its URL changes with its content."""
    asset = ASSETS.find(version, name)
    if asset is None:
        raise Refusal(404, "not_found", "there is no such file; load the page again")
    return _send(asset, {"Cache-Control": "public, max-age=31536000, immutable"})


def _send_page(request: Request, asset: Asset, policy: str) -> Response:
    headers = {
        "ETag": asset.etag,
        "Cache-Control": "no-cache",
        "Content-Security-Policy": policy,
        "Cross-Origin-Opener-Policy": "same-origin",
    }
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return _send(asset, headers)


def _send(asset: Asset, headers: dict[str, str]) -> Response:
    own = {"Content-Type": asset.type, "Cross-Origin-Resource-Policy": "same-origin"}
    return Response(asset.data, headers={**own, **headers})
