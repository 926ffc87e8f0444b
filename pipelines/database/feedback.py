"""What callers confirm, in one pool for all gateways."""

from __future__ import annotations

import json
from typing import Any

from pipelines.database.session import Connection, Session


class FeedbackPool:
    """Appends to the database; a record is safe when this returns."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def append(self, record: dict[str, Any]) -> None:
        """Keeps one confirmation."""
        # As text: JSON's \\u0000, which a user may well send, is nothing that PostgreSQL's own JSON can hold.
        line = json.dumps(record)
        self._session.run(lambda connection: connection.execute("INSERT INTO feedback (record) VALUES (%s)", [line]))

    def close(self) -> None:
        """Lets the database go."""
        self._session.close()


def read_pool(connection: Connection) -> list[str]:
    """Every record, oldest first, as a line of JSON."""
    return [str(record) for (record,) in connection.execute("SELECT record FROM feedback ORDER BY number")]
