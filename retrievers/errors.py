"""What can go wrong in this room, each a child of the builtin a stranger would catch.

BadInput (ValueError)                a file or value the user gave is wrong; the message names file and line
IndexMissing (FileNotFoundError)     no finished index in that folder
IndexBroken (OSError)                an index that is half written, damaged, or of another format
IndexBusy (TimeoutError)             another writer held the folder too long
ModelMissing (FileNotFoundError)     a model that is neither here nor to be fetched
ModelMismatch (ValueError)           the index was made with other weights than the ones at hand
StoreDown (ConnectionError)          a store of vectors elsewhere that does not answer
OutOfDisk (OSError)                  the disk, the quota or the file size limit is exhausted
OutOfMemory (MemoryError)            a GPU, or the machine, has no memory left for a model
"""

from __future__ import annotations


class BadInput(ValueError):
    """A file or value the user gave is wrong; the message names the file, the line and the way out."""


class IndexMissing(FileNotFoundError):
    """No finished index there; the message says how to build one."""


class IndexBroken(OSError):
    """The index cannot be read as it is; the message names the file and the way out."""


class IndexBusy(TimeoutError):
    """Another writer holds the index; nothing was changed."""


class ModelMissing(FileNotFoundError):
    """A model that is not here; the message says what to install or set."""


class ModelMismatch(ValueError):
    """Vectors of one model cannot be searched with another."""


class OutOfDisk(OSError):
    """No room left; what was there before is untouched."""


class OutOfMemory(MemoryError):
    """No memory left for what was to be loaded, which says nothing against it; the message names the way out."""


class StoreDown(ConnectionError):
    """Vectors lie elsewhere, and that place does not answer."""
