"""What can go wrong in this room, each a child of the builtin a stranger would catch.

Unfit (ValueError)               a template, model, adapter or setting that cannot do what is asked of it
Refused (Unfit)                  a prompt that a server will not answer; another one it may
BackendDown (ConnectionError)    the model that should answer does not; never turned into an empty answer
Interrupted (RuntimeError)       training was stopped on purpose; the message names the checkpoint it goes on from
"""

from __future__ import annotations


class Unfit(ValueError):
    """A template, model, adapter or setting that cannot do what is asked of it; the message names the way out."""


class Refused(Unfit):
    """The server will not answer this one prompt."""


class BackendDown(ConnectionError):
    """The model that should answer does not."""


class Interrupted(RuntimeError):
    """Training was stopped on purpose; the message names the checkpoint from which it goes on."""
