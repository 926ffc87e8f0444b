"""Feedback of all gateways in one table."""

from __future__ import annotations

import json
from typing import Any

from pipelines.database.session import Connection, Session


class FeedbackPool:
    """Appends to the database; a record is committed when `append` returns."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def append(self, record: dict[str, Any]) -> None:
        # As text: PostgreSQL's JSON types cannot hold \\u0000, which users may send.
        line = json.dumps(record)
        self._session.run(lambda connection: connection.execute("INSERT INTO feedback (record) VALUES (%s)", [line]))

    def close(self) -> None:
        self._session.close()


def read_pool(connection: Connection) -> list[str]:
    """All records as lines of JSON, oldest first."""
    return [str(record) for (record,) in connection.execute("SELECT record FROM feedback ORDER BY number")]
