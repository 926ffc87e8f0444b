"""`rewrite-index push` and `pull`: between an index folder and the database that gateways share."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from pipelines.cli.index_change import describe_change
from pipelines.context import make_context
from pipelines.database.settings import DatabaseSettings
from pipelines.index.build import admit_tools
from retrievers.index import Index
from rewrite.errors import RewriteError

if TYPE_CHECKING:
    from pipelines.database.session import Database


def run_push(arguments: argparse.Namespace) -> int:
    database, started = _connect(arguments), time.monotonic()
    from pipelines.database.transfer import describe, push

    index = Index(arguments.index, make_context())
    if arguments.dry_run:
        print(f"{arguments.index}: {len(index.tools)} tools")
        print(f"{database.name}: {describe(database)}")
        return 0
    change = push(index, database, arguments.replace)
    admit_tools(list(index.tools.values()))
    print(f"{arguments.index} -> {database.name}: {describe_change(change)}, {time.monotonic() - started:.1f} s")
    return 0


def run_pull(arguments: argparse.Namespace) -> int:
    database, started = _connect(arguments), time.monotonic()
    from pipelines.database.transfer import describe, pull, pull_feedback

    if arguments.dry_run:
        print(f"{database.name}: {describe(database)}")
        return 0
    change = pull(database, arguments.index, make_context(arguments.device), arguments.wait)
    admit_tools(list(Index(arguments.index, make_context()).tools.values()))
    if arguments.feedback:
        print(f"{arguments.feedback}: {pull_feedback(database, arguments.feedback)} confirmations")
    print(f"{database.name} -> {arguments.index}: {describe_change(change)}, {time.monotonic() - started:.1f} s")
    return 0


def _connect(arguments: argparse.Namespace) -> Database:
    settings = DatabaseSettings(arguments.variable, arguments.schema)
    try:
        from pipelines.database.session import Database
    except ModuleNotFoundError as error:
        raise RewriteError(f"a shared catalogue needs {error.name}; run `pip install 'toolrewrite[shared]'`") from error
    return Database(settings)
