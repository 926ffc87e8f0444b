"""Feedback of all gateways in one table."""

from __future__ import annotations

import json
from typing import Any

from pipelines.database.session import Connection, Session

LATE = 100
"""Records that are read again: numbers are given before transactions end, in any order."""


class FeedbackPool:
    """Appends to the database; a record is committed when `append` returns."""

    def __init__(self, session: Session) -> None:
        self._session, self._read_up_to = session, 0

    def append(self, record: dict[str, Any]) -> None:
        # As text: PostgreSQL's JSON types cannot hold \\u0000, which users may send.
        line = json.dumps(record)
        self._session.run(lambda connection: connection.execute("INSERT INTO feedback (record) VALUES (%s)", [line]))

    def read_new(self) -> list[dict[str, Any]]:
        """Records of all servers since the last time; a few may come twice, so that none committed late is missed."""

        def read(connection: Connection) -> list[tuple[Any, ...]]:
            query = "SELECT number, record FROM feedback WHERE number > %s ORDER BY number"
            return connection.execute(query, [self._read_up_to - LATE]).fetchall()

        rows = self._session.run(read, reading=True)
        self._read_up_to = max([self._read_up_to, *(int(number) for number, _ in rows)])
        return [json.loads(record) for _, record in rows]

    def close(self) -> None:
        self._session.close()


def read_pool(connection: Connection) -> list[str]:
    """All records as lines of JSON, oldest first."""
    return [str(record) for (record,) in connection.execute("SELECT record FROM feedback ORDER BY number")]
