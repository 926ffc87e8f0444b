"""Errors of this package; each derives from the builtin that a caller would catch."""

from __future__ import annotations


class RewriteError(ValueError):
    """A template, model, adapter or setting that cannot be used; the message names the way out."""


class PromptRefused(RewriteError):
    """The server refuses this one prompt."""


class BackendDown(ConnectionError):
    """The model does not answer. This is never turned into an empty answer."""


class Interrupted(RuntimeError):
    """Training was stopped on purpose; it can be resumed from its last checkpoint."""
