"""Tables of the shared catalogue, and their migrations.

Migrations only add tables and columns, so gateways of the previous version keep working during an upgrade. The first
gateway to connect runs them, under an advisory lock. With current tables, a role without CREATE rights is enough.
"""

from __future__ import annotations

from psycopg import sql

from pipelines.database.session import Connection
from retrievers.errors import IndexBroken

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE catalogue (        -- one row: settings and current version
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        version bigint NOT NULL,
        settings text NOT NULL      -- parts of a tool that are indexed, retrievers with the hashes of their models
    );
    CREATE TABLE versions (         -- history; a replica whose version is missing here reads everything
        version bigint PRIMARY KEY,
        stamp uuid NOT NULL DEFAULT gen_random_uuid(),
        at timestamptz NOT NULL DEFAULT now(),
        added integer NOT NULL,
        updated integer NOT NULL,
        removed integer NOT NULL
    );
    CREATE TABLE tools (
        id text COLLATE "C" PRIMARY KEY,
        facts text,                 -- the tool as a line of JSON; NULL: removed at this version
        document bytea,             -- the hash of its text, the key of its vectors
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
    """Bring the tables up to date; tables of a newer version are refused."""
    if last_migration(connection, schema) == len(MIGRATIONS):
        return
    # Held until the end of the transaction: two gateways that start together must not both create the tables.
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 7))", [f"toolrewrite/{schema}"])
    done = last_migration(connection, schema)
    if done > len(MIGRATIONS):
        raise IndexBroken(
            f"the tables in schema {schema} have version {done}, this toolrewrite knows {len(MIGRATIONS)}; update it"
        )
    if not done:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        connection.execute("CREATE TABLE migrations (number integer PRIMARY KEY, at timestamptz DEFAULT now())")
    for number, statements in enumerate(MIGRATIONS[done:], done + 1):
        connection.execute(statements.encode())
        connection.execute("INSERT INTO migrations (number) VALUES (%s)", [number])


def last_migration(connection: Connection, schema: str) -> int:
    """Number of the last migration; 0 without tables."""
    # Not to_regclass: its cache may not know tables that were created while this transaction waited for the lock.
    query = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'migrations'"
    if connection.execute(query, [schema]).fetchone() is None:
        return 0
    row = connection.execute("SELECT max(number) FROM migrations").fetchone()
    return int(row[0] or 0) if row else 0
