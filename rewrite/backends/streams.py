"""Streams: prompts in, answers out, for jobs too large for one list.

A backend that takes prompts while it answers others has its own `stream` and is never idle. Any other one answers one
batch after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rewrite.backends.base import Backend
from rewrite.settings import Sampling
from rewrite.types import Answer, Prompt

StreamResult = tuple[str, list[Answer] | str]
"""A prompt's key, and its answers or the reason why this one prompt gets none."""


class Stream(Protocol):
    """Prompts in flight through a backend."""

    @property
    def capacity(self) -> int:
        """Number of further prompts that it takes now."""
        ...

    @property
    def overlaps(self) -> bool:
        """True where later prompts do not wait for earlier ones; batches then depend on timing."""
        ...

    def push(self, prompts: Sequence[tuple[str, Prompt]]) -> None:
        """Takes prompts, each with a unique key; no more than the capacity."""
        ...

    def pull(self) -> list[StreamResult]:
        """Finished prompts; waits for the first one. Failures of the backend are raised."""
        ...

    def close(self) -> None:
        """Drops the prompts in flight."""
        ...


@runtime_checkable
class StreamingBackend(Protocol):
    """A backend with its own stream."""

    def stream(self, sampling: Sampling) -> Stream:
        """Opens a stream; one at a time."""
        ...


class BatchStream:
    """The stream of a backend without its own: all pushed prompts are answered together."""

    overlaps = False

    def __init__(self, backend: Backend, sampling: Sampling, size: int) -> None:
        self._backend, self._sampling, self._size = backend, sampling, size
        self._held: list[tuple[str, Prompt]] = []

    @property
    def capacity(self) -> int:
        return self._size - len(self._held)

    def push(self, prompts: Sequence[tuple[str, Prompt]]) -> None:
        self._held.extend(prompts)

    def pull(self) -> list[StreamResult]:
        """Answers all pushed prompts."""
        held, self._held = self._held, []
        answers = self._backend.generate([prompt for _, prompt in held], self._sampling)
        return [(key, answered) for (key, _), answered in zip(held, answers, strict=True)]

    def close(self) -> None:
        self._held = []


def open_stream(backend: Backend, sampling: Sampling, batch_size: int) -> Stream:
    """The backend's own stream, or batches of at most `batch_size` prompts."""
    if isinstance(backend, StreamingBackend):
        return backend.stream(sampling)
    return BatchStream(backend, sampling, batch_size)
