"""What can be set of a shared catalogue. Stdlib only, so that reading a config costs nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from retrievers.errors import BadInput

VARIABLE = "TOOLREWRITE_DATABASE"


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """A PostgreSQL database. Its address and password are never in a config, so that no config gives them away."""

    variable: str = VARIABLE
    """The environment variable with the connection string; where it is not set, libpq's own count ($PGHOST, …)."""
    schema: str = "toolrewrite"
    """Where the tables lie: a catalogue each."""
    connect_seconds: float = 5.0
    statement_seconds: float = 15.0
    """For one statement, and for one's turn to write."""
    start_seconds: float = 30.0
    """For the database to come up before a gateway gives up starting."""
    feedback: bool = True
    """What callers confirm goes into the database, for all gateways together."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", self.schema):
            raise BadInput("a schema's name is made of small letters, digits and _", "schema")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.variable):
            raise BadInput("the name of an environment variable, which holds the connection string", "variable")
        if min(self.connect_seconds, self.statement_seconds) <= 0 or self.start_seconds < 0:
            raise BadInput("connect_seconds and statement_seconds are positive, start_seconds is not negative")
