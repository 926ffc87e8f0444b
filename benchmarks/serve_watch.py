"""Who had a request when: what is left when the time at vLLM and in the retriever is taken away is the gateway's own.

    python serve_watch.py proxy PORT FILE       between the askers and vLLM: notes when vLLM had which prompt
    python serve_watch.py serve FILE CONFIG     rewrite-serve: notes when its retriever was at work on which texts

One line of JSON a span: began, ended, texts. The clock is the machine's, the same for all its processes.
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
    """Somebody was at work on these texts."""

    began: float
    ended: float
    texts: Sequence[str]


def read(path: Path) -> list[Span]:
    """The spans that a process has noted."""
    return [Span(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def remainder(began: float, ended: float, spans: Iterable[Span]) -> float:
    """Seconds from `began` to `ended` in which nobody of the spans was at work. Spans may overlap."""
    left, at = 0.0, began
    for span in sorted(spans):
        if span.began > at:
            left += min(span.began, ended) - at
        at = min(max(at, span.ended), ended)
    return left + ended - at


class Notes:
    """A file of spans. A line is written when its span is over, so that nobody waits for it who is measured."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def add(self, began: float, ended: float, texts: Sequence[str]) -> None:
        """One more."""
        self._file.write(json.dumps([began, ended, list(texts)]) + "\n")


async def proxy(port: int, notes: Notes) -> None:
    """Listens, says where, and hands on what comes to the server at `port`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection("127.0.0.1", port)
            while await _one(reader, writer, *upstream, notes):
                pass
            upstream[1].close()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # one of the two has gone; so does the other
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _one(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answers: asyncio.StreamReader,
    asks: asyncio.StreamWriter,
    notes: Notes,
) -> bool:
    """One request and its answer; false when there are no more.

    vLLM's time begins when the last byte of a request is here and ends before the first byte of its answer goes back:
    sending the one and receiving the other is the asker's, handing both on is nobody's.
    """
    try:
        head, body = await _message(reader)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return False
    began = time.monotonic()
    asks.write(head + body)
    answer = b"".join(await _message(answers))
    ended = time.monotonic()
    writer.write(answer)
    await writer.drain()
    if CHAT in head.split(b"\r\n", 1)[0]:  # counting tokens is no part of asking bare vLLM
        notes.add(began, ended, [json.loads(body)["messages"][-1]["content"]])
    return True


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of a request or a response, the body as long as the head says."""
    head = await reader.readuntil(b"\r\n\r\n")
    low = head.lower()
    if b"transfer-encoding:" in low:
        sys.exit("the proxy knows no chunks")
    length = int(low.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in low else 0
    return head, await reader.readexactly(length)


def serve(notes: Notes, config: str) -> int:
    """The gateway as it is, with a note of every call of its retriever."""
    from pipelines.cli.main import serve as command
    from pipelines.search import ToolSearch

    ask: Callable[..., Any] = ToolSearch.retrieve

    def watched(self: ToolSearch, texts: Sequence[str], *others: Any) -> Any:
        began = time.monotonic()
        found = ask(self, texts, *others)
        notes.add(began, time.monotonic(), texts)
        return found

    ToolSearch.retrieve = watched  # type: ignore[method-assign]
    return command([config])


if __name__ == "__main__":
    if sys.argv[1] == "proxy":
        asyncio.run(proxy(int(sys.argv[2]), Notes(Path(sys.argv[3]))))
    else:
        sys.exit(serve(Notes(Path(sys.argv[2])), sys.argv[3]))
