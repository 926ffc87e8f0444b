"""Index folders: `build`, `add`, `remove`, `confirm` (writers), `Index` (reader), `verify`."""

from retrievers.index.reader import Index
from retrievers.index.verify import verify
from retrievers.index.writer import Change, add, build, build_like, confirm, remove

__all__ = ["Change", "Index", "add", "build", "build_like", "confirm", "remove", "verify"]
