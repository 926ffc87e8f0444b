"""Prompts in, answers out, without an end: for jobs that are too large for one list.

A backend that can take a prompt while it answers others has a `stream` of its own and is never idle. Any other one
answers what it was given before it takes more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rewrite.backends.base import Backend
from rewrite.settings import Sampling
from rewrite.types import Answer, Prompt

Answered = tuple[str, list[Answer] | str]
"""A prompt's key, and its answers or why this one prompt gets none."""


class Stream(Protocol):
    """Prompts on their way through a backend."""

    @property
    def room(self) -> int:
        """How many more prompts it takes now."""
        ...

    @property
    def overlaps(self) -> bool:
        """True where prompts that come later do not wait for earlier ones; what is asked together is then chance."""
        ...

    def push(self, prompts: Sequence[tuple[str, Prompt]]) -> None:
        """Takes prompts, each under a key of its own; no more than there is room for."""
        ...

    def pull(self) -> list[Answered]:
        """What is answered by now; waits for the first where nothing is. Trouble of the backend is raised."""
        ...

    def close(self) -> None:
        """Drops what is under way."""
        ...


@runtime_checkable
class Streaming(Protocol):
    """A backend with a stream of its own."""

    def stream(self, sampling: Sampling) -> Stream:
        """A new stream; one at a time."""
        ...


class ByBatches:
    """The stream of a backend that has none: all that was pushed is answered at once."""

    overlaps = False

    def __init__(self, backend: Backend, sampling: Sampling, most: int) -> None:
        self._backend, self._sampling, self._most = backend, sampling, most
        self._held: list[tuple[str, Prompt]] = []

    @property
    def room(self) -> int:
        """How many more prompts it takes now."""
        return self._most - len(self._held)

    def push(self, prompts: Sequence[tuple[str, Prompt]]) -> None:
        """Takes prompts, each under a key of its own."""
        self._held.extend(prompts)

    def pull(self) -> list[Answered]:
        """Answers all that was pushed."""
        held, self._held = self._held, []
        answers = self._backend.generate([prompt for _, prompt in held], self._sampling)
        return [(key, found) for (key, _), found in zip(held, answers, strict=True)]

    def close(self) -> None:
        """Drops what was pushed."""
        self._held = []


def open_stream(backend: Backend, sampling: Sampling, most: int) -> Stream:
    """The backend's own stream, or batches of at most `most` prompts."""
    return backend.stream(sampling) if isinstance(backend, Streaming) else ByBatches(backend, sampling, most)
