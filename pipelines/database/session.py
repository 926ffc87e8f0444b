"""Connections to PostgreSQL: connect, reconnect, run transactions, translate errors.

The connection string holds a password. It is read from the environment and passed only to libpq: no log and no message
repeats it, nor libpq's own message about a string that it cannot parse, which quotes parts of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Self, TypeVar

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from pipelines.database.errors import DatabaseDown, OutcomeUnknown
from pipelines.database.settings import DatabaseSettings
from retrievers.errors import BadInput, IndexBusy, IndexMissing, OutOfDisk

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")
CONNECT_SECONDS = 5
RETRY_SECONDS = 0.5
"""Seconds before a database that could not be reached is tried again."""
_SESSION = """
SELECT set_config('search_path', %(path)s, false), set_config('statement_timeout', %(milliseconds)s, false),
       set_config('lock_timeout', %(milliseconds)s, false),
       set_config('idle_in_transaction_session_timeout', %(idle)s, false),
       -- A confirmed change must survive a crash, also if the server's default is off; stricter settings stay.
       set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                  ELSE current_setting('synchronous_commit') END, false)
"""


class Database:
    """Address and settings of one database."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self.settings = settings
        given = os.environ.get(settings.variable, "")
        if not given and not any(os.environ.get(name) for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE")):
            raise BadInput(
                f"${settings.variable} is not set; it names the database: "
                "postgresql://user:password@host/name?sslmode=verify-full"
            )
        try:
            named = conninfo_to_dict(given)
        except psycopg.Error:
            raise BadInput(f"${settings.variable} is no connection string that PostgreSQL understands") from None
        # Keepalives: a server that disappears is noticed within half a minute instead of hours.
        defaults = {
            "application_name": "toolrewrite",
            "connect_timeout": CONNECT_SECONDS,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
        }
        self._parameters: dict[str, Any] = {**defaults, **named, "client_encoding": "utf-8"}
        self._secrets = [str(named[name]) for name in ("password", "sslpassword") if named.get(name)]

    @property
    def name(self) -> str:
        """The database's name in messages."""
        return f"the database of ${self.settings.variable}"

    def connect(self) -> Connection:
        """A new connection with its session configured."""
        milliseconds = round(1000 * self.settings.statement_seconds)
        session = {
            "path": f'"{self.settings.schema}"', "milliseconds": str(milliseconds), "idle": str(4 * milliseconds)
        }  # fmt: skip
        with self.translate_errors():
            connection: Connection = psycopg.connect(**self._parameters)
            try:
                connection.execute(_SESSION, session)
                connection.commit()
            except BaseException:
                connection.close()
                raise
            return connection

    async def listen(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """A new connection that is notified of every change."""
        connection = await psycopg.AsyncConnection.connect(**self._parameters, autocommit=True)
        try:
            # LISTEN takes no parameters; the settings check the name, and it is quoted here as well.
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.settings.schema)))
        except BaseException:
            await connection.close()
            raise
        return connection

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise psycopg's errors as ours."""
        try:
            yield
        except errors.DiskFull as error:
            raise OutOfDisk(f"{self.name} has no room left; nothing was changed") from error
        except (errors.LockNotAvailable, errors.QueryCanceled, errors.DeadlockDetected) as error:
            raise IndexBusy(f"{self.name} is busy; nothing was changed") from error
        except errors.UndefinedTable:
            raise IndexMissing(f"{self.name} holds no catalogue yet; fill it with `rewrite-index push`") from None
        except psycopg.DataError as error:
            raise BadInput(f"{self.name} cannot keep this: {self.safe(error)}") from error
        except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
            raise DatabaseDown(f"{self.name} does not answer ({self.safe(error)})") from None
        except errors.InsufficientPrivilege as error:
            raise DatabaseDown(f"{self.name} does not allow it ({self.safe(error)})") from None

    def safe(self, error: BaseException) -> str:
        """The first line of an error, with secrets replaced."""
        lines = str(error).strip().splitlines()
        text = lines[0] if lines else type(error).__name__
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text[:300]


class Session:
    """One connection, opened on demand and reopened when lost; one transaction at a time."""

    def __init__(self, database: Database) -> None:
        self.database, self._lock = database, Lock()
        self._connection: Connection | None = None
        self._last_error, self._retry_at = "", 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, work: Callable[[Connection], T], reading: bool = False) -> T:
        """Run `work` in one transaction. `reading`: read-only, from one snapshot."""
        if not self._lock.acquire(timeout=self.database.settings.statement_seconds):
            raise IndexBusy(f"{self.database.name} is busy; nothing was changed")
        try:
            with self.database.translate_errors():
                return self._run_with_retry(work, reading)
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _run_with_retry(self, work: Callable[[Connection], T], reading: bool) -> T:
        used = self._connection is not None
        try:
            return self._transaction(work, reading)
        except (psycopg.OperationalError, psycopg.InterfaceError):
            # An old connection may be lost while the database is up: retry once, unless the commit had begun.
            if not used or self._connection is not None:
                raise
        return self._transaction(work, reading)

    def _connect(self) -> Connection:
        """The open connection, or a new one. Fails at once within RETRY_SECONDS of a failed attempt."""
        if self._connection is None:
            if time.monotonic() < self._retry_at:
                raise DatabaseDown(self._last_error)
            try:
                self._connection = self.database.connect()
            except DatabaseDown as error:
                self._last_error, self._retry_at = str(error), time.monotonic() + RETRY_SECONDS
                raise
        return self._connection

    def _transaction(self, work: Callable[[Connection], T], reading: bool) -> T:
        connection = self._connect()
        committing = False
        try:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ if reading else None
            connection.read_only = reading
            result = work(connection)
            committing = not reading
            connection.commit()
            return result
        except BaseException as error:
            if not connection.closed and isinstance(error, Exception):
                connection.rollback()
            if connection.closed or not isinstance(error, Exception):
                self._disconnect()
                if committing and isinstance(error, psycopg.Error):
                    raise OutcomeUnknown(f"{self.database.name} broke off while it was saving a change") from None
            raise

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
