"""Connections to PostgreSQL: how they are made, used again, given up, and how their errors are told.

The connection string holds a password. It is read from the environment, kept here, and leaves this file only towards
libpq: neither logs nor messages carry it, nor libpq's own words on a string that it cannot read, which repeat parts of
it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from pipelines.database.errors import DatabaseDown, OutcomeUnknown
from pipelines.database.settings import DatabaseSettings
from retrievers.errors import BadInput, IndexBusy, IndexMissing, OutOfDisk

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")
LEFT_ALONE = 0.5
"""Seconds that a database which cannot be reached is left alone."""
_SESSION = """
SELECT set_config('search_path', %(path)s, false), set_config('statement_timeout', %(milliseconds)s, false),
       set_config('lock_timeout', %(milliseconds)s, false),
       set_config('idle_in_transaction_session_timeout', %(idle)s, false),
       -- What was answered must survive a crash, whatever the server's default; stricter settings stay.
       set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                  ELSE current_setting('synchronous_commit') END, false)
"""


class Database:
    """The way to one database."""

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
        # A server that is gone without a word is noticed in half a minute rather than in hours.
        defaults = {
            "application_name": "toolrewrite",
            "connect_timeout": max(1, round(settings.connect_seconds)),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
        }
        self._parameters: dict[str, Any] = {**defaults, **named, "client_encoding": "utf-8"}
        self._secrets = [str(named[name]) for name in ("password", "sslpassword") if named.get(name)]

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"the database of ${self.settings.variable}"

    def connect(self) -> Connection:
        """A connection of one's own, its session set up."""
        with self.told():
            connection: Connection = psycopg.connect(**self._parameters)
            try:
                connection.execute(_SESSION, self._session())
                connection.commit()
            except BaseException:
                connection.close()
                raise
            return connection

    async def listen(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """A connection that hears of every change from now on."""
        connection = await psycopg.AsyncConnection.connect(**self._parameters, autocommit=True)
        try:
            # LISTEN takes no parameters; the name was checked with the settings, and is quoted here nevertheless.
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.settings.schema)))
        except BaseException:
            await connection.close()
            raise
        return connection

    @contextmanager
    def told(self) -> Iterator[None]:
        """Turns errors of the database into ours."""
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
        """The first line of an error, without secrets."""
        lines = str(error).strip().splitlines()
        text = lines[0] if lines else type(error).__name__
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text[:300]

    def _session(self) -> dict[str, str]:
        milliseconds = round(1000 * self.settings.statement_seconds)
        return {
            "path": f'"{self.settings.schema}"',
            "milliseconds": str(milliseconds),
            "idle": str(4 * milliseconds),
        }


class Session:
    """One connection, made when it is needed and again when it is lost; one transaction at a time."""

    def __init__(self, database: Database) -> None:
        self.database, self._turn = database, Lock()
        self._connection: Connection | None = None
        self._down, self._until = "", 0.0

    def run(self, work: Callable[[Connection], T], reading: bool = False) -> T:
        """Does the work in one transaction: all of it, or nothing. `reading`: of one state, without changing it."""
        if not self._turn.acquire(timeout=self.database.settings.statement_seconds):
            raise IndexBusy(f"{self.database.name} is busy; nothing was changed")
        try:
            with self.database.told():
                return self._twice(work, reading)
        finally:
            self._turn.release()

    def close(self) -> None:
        """Lets the connection go."""
        with self._turn:
            self._drop()

    def _twice(self, work: Callable[[Connection], T], reading: bool) -> T:
        used = self._connection is not None
        try:
            return self._once(work, reading)
        except (psycopg.OperationalError, psycopg.InterfaceError):
            # A connection that was lost since it was last used says nothing of the database now. Only what was not
            # yet being committed is tried again.
            if not used or self._connection is not None:
                raise
        return self._once(work, reading)

    def _connected(self) -> Connection:
        """The connection. A database that was away a moment ago is not asked again: nobody waits in line to be told."""
        if self._connection is None:
            if time.monotonic() < self._until:
                raise DatabaseDown(self._down)
            try:
                self._connection = self.database.connect()
            except DatabaseDown as error:
                self._down, self._until = str(error), time.monotonic() + LEFT_ALONE
                raise
        return self._connection

    def _once(self, work: Callable[[Connection], T], reading: bool) -> T:
        connection = self._connected()
        committing = False
        try:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ if reading else None
            connection.read_only = reading
            done = work(connection)
            committing = not reading
            connection.commit()
            return done
        except BaseException as error:
            if not connection.closed and isinstance(error, Exception):
                connection.rollback()
            if connection.closed or not isinstance(error, Exception):
                self._drop()
                if committing and isinstance(error, psycopg.Error):
                    raise OutcomeUnknown(f"{self.database.name} broke off while it saved a change") from None
            raise

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
