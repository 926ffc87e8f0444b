"""Settings of the shared catalogue. Imports only the standard library, so reading a config is fast."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from retrievers.errors import BadInput

VARIABLE = "TOOLREWRITE_DATABASE"


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """A PostgreSQL database. Its address and password are in the environment, never in a config."""

    variable: str = VARIABLE
    """The environment variable with the connection string; if it is not set, libpq reads its own ($PGHOST, …)."""
    schema: str = "toolrewrite"
    """The schema of the tables, one per catalogue."""
    statement_seconds: Annotated[float, Gt(0)] = 15.0
    """Timeout of a statement, and of waiting for another writer."""
    start_seconds: Annotated[float, Ge(0)] = 30.0
    """Seconds that a starting gateway waits for the database."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", self.schema):
            raise BadInput(f"use at most 63 small letters, digits and _, got {self.schema!r}", "schema")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.variable):
            raise BadInput(f"give the name of an environment variable, got {self.variable!r}", "variable")
