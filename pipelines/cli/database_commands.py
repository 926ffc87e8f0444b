"""`rewrite-index push` and `pull`: between an index folder and the database that gateways share."""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import TYPE_CHECKING

from pipelines.cli.index_commands import say
from pipelines.context import make_context
from pipelines.database.settings import DatabaseSettings
from retrievers.index import Change, Index
from rewrite.errors import RewriteError

if TYPE_CHECKING:
    from pipelines.database.session import Database


def push(arguments: argparse.Namespace) -> int:
    database, started = _database(arguments), time.monotonic()
    from pipelines.database.transfer import push as push_index

    index = Index(arguments.index, make_context())
    if arguments.dry_run:
        return _compare(arguments, database, len(index.tools))
    return _tell(f"{arguments.index} -> {database.name}", push_index(index, database, arguments.replace), started)


def pull(arguments: argparse.Namespace) -> int:
    database, started = _database(arguments), time.monotonic()
    from pipelines.database.transfer import pull as pull_index
    from pipelines.database.transfer import pull_feedback

    if arguments.dry_run:
        return _compare(arguments, database, None)
    change = pull_index(database, arguments.index, make_context(arguments.device), arguments.wait)
    if arguments.feedback:
        say(f"{arguments.feedback}: {pull_feedback(database, arguments.feedback)} confirmations")
    return _tell(f"{database.name} -> {arguments.index}", change, started)


def _database(arguments: argparse.Namespace) -> Database:
    settings = DatabaseSettings(arguments.variable, arguments.schema)
    try:
        from pipelines.database.session import Database
    except ModuleNotFoundError as error:
        raise RewriteError(f"a shared catalogue needs {error.name}; run `pip install 'toolrewrite[shared]'`") from error
    return Database(settings)


def _compare(arguments: argparse.Namespace, database: Database, tools: int | None) -> int:
    from pipelines.database.transfer import describe

    if tools is not None:
        say(f"{arguments.index}: {tools} tools")
    say(f"{database.name}: {describe(database)}")
    return 0


def _tell(what: str, change: Change, started: float) -> int:
    counts = {name: value for name, value in dataclasses.asdict(change).items() if isinstance(value, int) and value}
    told = ", ".join(f"{value} {name}" for name, value in counts.items()) or "nothing to do"
    say(f"{what}: {told}, fingerprint {change.fingerprint}, {time.monotonic() - started:.1f} s")
    return 0
