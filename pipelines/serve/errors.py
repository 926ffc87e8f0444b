"""What goes wrong in serving: refusals that the caller sees, and trouble with the rewriter that he is spared."""

from __future__ import annotations

from typing import Literal

Reason = Literal[
    "starting", "unavailable", "circuit_open", "busy", "deadline", "refused", "wrong_model", "garbage",
    "unparseable", "too_long", "failed",
]  # fmt: skip
"""Why a ranking is the raw one although a rewrite was wanted.

starting      the model is not up yet
unavailable   it cannot be reached, broke off, or said that it cannot answer now
circuit_open  it failed several times in a row and is left alone for a moment
busy          too many utterances wait for it already
deadline      it did not answer in time
refused       it does not take the request: unknown model, no access
wrong_model   another model than the one asked has answered
garbage       what it sent is no answer of a chat model
unparseable   the model wrote nothing that its template reads
too_long      the utterance does not fit into the model
failed        a fault of the gateway itself; the log has it
"""


class Trouble(Exception):
    """The rewriter gave no rewrite. Never an error to the caller: the raw ranking stands."""

    def __init__(self, reason: Reason, told: str = "", blame: bool = True) -> None:
        """`blame`: whether it speaks against the model, or merely against this one utterance."""
        super().__init__(f"{reason}: {told}" if told else reason)
        self.reason, self.blame = reason, blame


class Refusal(Exception):
    """An answer with an error in it: a status, a word for programs and a sentence for people."""

    def __init__(self, status: int, code: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after


def overloaded(what: str, retry_after: float = 1.0) -> Refusal:
    """Too much at a time: come back later."""
    return Refusal(429, "too_many_requests", f"{what}; try again later", retry_after)
