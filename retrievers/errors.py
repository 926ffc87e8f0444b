"""Errors of retrievers, each a subclass of the builtin that a caller would catch."""

from __future__ import annotations


class BadInput(ValueError):
    """A file or value the user gave is wrong; the message names the file, the line and the way out."""


class IndexMissing(FileNotFoundError):
    """The folder holds no finished index; the message says how to build one."""


class IndexBroken(OSError):
    """The index is half written, damaged or of another format; the message names the file and the way out."""


class IndexBusy(TimeoutError):
    """Another writer held the index too long; nothing was changed."""


class ModelMissing(FileNotFoundError):
    """A model is not on this machine and cannot be fetched; the message says what to install or set."""


class ModelMismatch(ValueError):
    """The index was made with other weights than those at hand."""


class OutOfDisk(OSError):
    """The disk, the quota or the file size limit is exhausted; existing files are untouched."""


class ReadOnlyDisk(OSError):
    """A folder cannot be written: a read-only disk, or one of another user; existing files are untouched."""


class OutOfMemory(MemoryError):
    """A GPU or the machine has no memory left for a model; the message names the way out."""


class StoreDown(ConnectionError):
    """An external vector store does not answer."""
