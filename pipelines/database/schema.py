"""The tables, and how an older database becomes one of today.

Migrations are only ever added to, and only ever add: gateways of the version before go on working while newer ones
come up. Whoever connects first brings the tables up to date; an advisory lock lets one at a time. A role that may not
create tables is enough where they are up to date already.
"""

from __future__ import annotations

from psycopg import sql

from pipelines.database.session import Connection
from retrievers.errors import IndexBroken

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE catalogue (        -- one row: what the catalogue is, and which version it has reached
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        version bigint NOT NULL,
        settings text NOT NULL      -- parts of a tool that are read, retrievers with the hashes of their models
    );
    CREATE TABLE versions (         -- what happened; a version that is not here cannot be followed from
        version bigint PRIMARY KEY,
        stamp uuid NOT NULL DEFAULT gen_random_uuid(),
        at timestamptz NOT NULL DEFAULT now(),
        added integer NOT NULL,
        updated integer NOT NULL,
        removed integer NOT NULL
    );
    CREATE TABLE tools (
        id text COLLATE "C" PRIMARY KEY,
        facts text,                 -- the tool as a line of JSON; NULL: it was removed at this version
        document bytea,             -- the hash of its text, by which its vectors are known
        version bigint NOT NULL     -- when it last changed
    );
    CREATE INDEX tools_version ON tools (version);
    CREATE INDEX tools_document ON tools (document);
    CREATE INDEX tools_removed ON tools (version) WHERE facts IS NULL;
    CREATE TABLE embeddings (
        model text,
        document bytea,
        vector bytea NOT NULL,      -- 32-bit floats, little endian
        PRIMARY KEY (model, document)
    );
    CREATE TABLE files (            -- trained models, by the hash of their content
        sha256 text,
        part integer,
        data bytea NOT NULL,
        PRIMARY KEY (sha256, part)
    );
    CREATE TABLE feedback (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        at timestamptz NOT NULL DEFAULT now(),
        record text NOT NULL
    );
    """,
)


def migrate(connection: Connection, schema: str) -> None:
    """Brings the tables up to date; refuses those of a newer version than this one."""
    if reached(connection, schema) == len(MIGRATIONS):
        return
    # Until the end of the transaction. Two gateways that start together would otherwise both create the tables.
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 7))", [f"toolrewrite/{schema}"])
    found = reached(connection, schema)
    if found > len(MIGRATIONS):
        raise IndexBroken(
            f"the tables in schema {schema} are of version {found}, this version of toolrewrite knows "
            f"{len(MIGRATIONS)}; update it"
        )
    if not found:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        connection.execute("CREATE TABLE migrations (number integer PRIMARY KEY, at timestamptz DEFAULT now())")
    for number, statements in enumerate(MIGRATIONS[found:], found + 1):
        connection.execute(statements.encode())
        connection.execute("INSERT INTO migrations (number) VALUES (%s)", [number])


def reached(connection: Connection, schema: str) -> int:
    """The number of the last migration that these tables have seen; 0: there are none."""
    # Not to_regclass: it answers from a cache, which after waiting for the lock does not know of the new tables yet.
    query = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'migrations'"
    if connection.execute(query, [schema]).fetchone() is None:
        return 0
    row = connection.execute("SELECT max(number) FROM migrations").fetchone()
    return int(row[0] or 0) if row else 0
