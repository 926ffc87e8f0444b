"""Errors of serving: refusals, which callers see, and rewriter failures, after which the raw ranking is returned."""

from __future__ import annotations

from typing import Literal

Reason = Literal[
    "starting", "cannot_start", "unavailable", "circuit_open", "busy", "budget", "deadline", "refused", "wrong_model",
    "garbage", "unparseable", "too_long", "failed",
]  # fmt: skip
"""Why a ranking is raw although a rewrite was wanted.

starting      the model is not up yet
cannot_start  it cannot start and is not tried again; the log has the cause, and GET /v1/models for scope write
unavailable   it cannot be reached, broke off, or cannot answer now
circuit_open  it failed several times in a row and is not asked for a while
busy          too many utterances wait for it
budget        the key has used its `tokens_per_minute`
deadline      it did not answer in time
refused       it rejected the request: unknown model, no access
wrong_model   another model answered
garbage       the response is not that of a chat model
unparseable   its template cannot read the answer
too_long      the utterance does not fit into the model's context
failed        a bug of the gateway; see its log
"""

NotAsked = Literal["off", "no_rewriter", "card", "detector", "confident"]
"""Why the rewriter was not asked, which is no failure.

off          the request says `rewrite: off`
no_rewriter  this server has none
card         the fusion of its card, or of the config, gives the raw ranking everything
detector     the utterance needs no tool
confident    the raw ranking's first tool scores at least `skip_rewrite_above`
"""


RerankReason = Literal["starting", "unavailable", "deadline", "busy", "not_finite", "failed"]
"""Why tools are in their first order although there is a reranker.

starting     the model is not up yet
unavailable  it cannot be reached
deadline     there was no time left for it
busy         too many utterances wait for it
not_finite   its answer is no number
failed       it failed; see the log
"""


STORE_DOWN = "the vector store does not answer; try again later"
"""The sentence for callers of every protocol."""
FAULT = "the server failed; its log has the details"
"""The same after a bug."""


class RewriteFailure(Exception):
    """There is no rewrite. Hidden from the caller, who gets the raw ranking."""

    def __init__(self, reason: Reason, detail: str = "", blame_model: bool = True) -> None:
        """`blame_model`: count it as a failure of the model, not only of this utterance."""
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.blame_model = reason, blame_model


class Refusal(Exception):
    """An error response: a status, a code for programs and a sentence for people."""

    def __init__(self, status: int, code: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after


def overloaded(cause: str, retry_after: float = 1.0) -> Refusal:
    """A 429."""
    return Refusal(429, "too_many_requests", f"{cause}; try again later", retry_after)
