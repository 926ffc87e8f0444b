"""Note when vLLM and the retriever worked on which texts; the rest of a request is the gateway's own time.

    python serve_watch.py proxy PORT FILE       a proxy in front of vLLM that notes when vLLM had which prompt
    python serve_watch.py serve FILE CONFIG     rewrite-serve, noting when its retriever worked on which texts

One line of JSON per span: began, ended, texts. The clock is the same for all processes of a machine.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

CHAT = b"/v1/chat/completions"


class Span(NamedTuple):
    """Work on some texts."""

    began: float
    ended: float
    texts: Sequence[str]


def read(path: Path) -> list[Span]:
    """Read a file of spans."""
    return [Span(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def remainder(began: float, ended: float, spans: Iterable[Span]) -> float:
    """Seconds from `began` to `ended` that no span covers. Spans may overlap."""
    left, at = 0.0, began
    for span in sorted(spans):
        if span.began > at:
            left += min(span.began, ended) - at
        at = min(max(at, span.ended), ended)
    return left + ended - at


class SpanFile:
    """A file of spans; each is written after its work, so that writing is not measured."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def add(self, began: float, ended: float, texts: Sequence[str]) -> None:
        self._file.write(json.dumps([began, ended, list(texts)]) + "\n")


async def proxy(port: int, notes: SpanFile) -> None:
    """Listen, print the port, and pass requests on to the server at `port`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection("127.0.0.1", port)
            while await _one(reader, writer, *upstream, notes):
                pass
            upstream[1].close()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # one side has closed; close the other
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _one(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    upstream_reader: asyncio.StreamReader,
    upstream_writer: asyncio.StreamWriter,
    notes: SpanFile,
) -> bool:
    """Pass on one request and its answer; false when there are no more.

    vLLM's time begins with the last byte of the request and ends before the first byte of its answer goes back.
    """
    try:
        head, body = await _message(reader)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return False
    began = time.monotonic()
    upstream_writer.write(head + body)
    answer = b"".join(await _message(upstream_reader))
    ended = time.monotonic()
    writer.write(answer)
    await writer.drain()
    if CHAT in head.split(b"\r\n", 1)[0]:  # requests that count tokens are not vLLM's answering
        notes.add(began, ended, [json.loads(body)["messages"][-1]["content"]])
    return True


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read head and body of a request or a response."""
    head = await reader.readuntil(b"\r\n\r\n")
    low = head.lower()
    if b"transfer-encoding:" in low:
        sys.exit("the proxy does not support chunked bodies")
    length = int(low.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in low else 0
    return head, await reader.readexactly(length)


def serve(notes: SpanFile, config: str) -> int:
    """Run rewrite-serve, noting every call of its retriever."""
    from pipelines.cli.main import serve as command
    from pipelines.search import ToolSearch

    retrieve: Callable[..., Any] = ToolSearch.retrieve

    def watched(self: ToolSearch, texts: Sequence[str], *others: Any) -> Any:
        began = time.monotonic()
        rankings = retrieve(self, texts, *others)
        notes.add(began, time.monotonic(), texts)
        return rankings

    ToolSearch.retrieve = watched  # type: ignore[method-assign]
    return command([config])


if __name__ == "__main__":
    if sys.argv[1] == "proxy":
        asyncio.run(proxy(int(sys.argv[2]), SpanFile(Path(sys.argv[3]))))
    else:
        sys.exit(serve(SpanFile(Path(sys.argv[2])), sys.argv[3]))
