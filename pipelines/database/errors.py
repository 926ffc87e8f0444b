"""Errors of the database; their messages hold neither its address nor its password."""

from __future__ import annotations


class DatabaseDown(ConnectionError):
    """The database does not answer; nothing was changed."""


class OutcomeUnknown(DatabaseDown):
    """The connection broke during a commit, which may have succeeded. Repeating the change is safe."""
