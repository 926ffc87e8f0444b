"""What can go wrong with the database, told without its address or password.

DatabaseDown (ConnectionError)    it cannot be reached, or cannot answer; nothing was changed
OutcomeUnknown (DatabaseDown)     it went away while a change was being saved, and may have saved it
"""

from __future__ import annotations


class DatabaseDown(ConnectionError):
    """The database does not answer; nothing was changed."""


class OutcomeUnknown(DatabaseDown):
    """The database went away while a change was being saved. To repeat the change does no harm."""
