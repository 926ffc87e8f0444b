"""Work that ends when its caller leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from pipelines.serve.http.asgi import Receive

T = TypeVar("T")


class CallerLeft(ConnectionError):
    """The caller has closed the connection."""


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of the work; if the caller leaves first, the work is cancelled and CallerLeft raised."""
    task, has_left = asyncio.current_task(), False
    assert task is not None

    async def watch() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left = True
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and task.uncancel() == 0:  # not cancelled by the server as well
            raise CallerLeft from None
        raise
    finally:
        watching.cancel()
