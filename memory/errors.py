"""Typed failures of the store; every message says what failed, what was got and what to do."""

from __future__ import annotations


class StoreError(Exception):
    """Something the store could not do. ``boundary`` names the layer for traces and the command line."""

    boundary = "store"


class SchemaTooNew(StoreError):
    """The database was written by a newer version of this program."""


class CorruptStore(StoreError):
    """The database file is damaged, or is not a database of this program."""


class DiskFull(StoreError):
    """No room (or no permission to grow) on the disk; the interrupted write left nothing behind."""


class StoreBusy(StoreError):
    """Another process held the database's write lock for longer than the busy timeout."""


class BadId(StoreError, ValueError):
    """An id cannot name a folder; also a ValueError, so that a record's validator can raise it."""


class NotFound(StoreError):
    """The asked-for record is not in this store."""


class Conflict(StoreError):
    """A record with this id is already stored with different content; nothing was changed."""


class RunBusy(StoreError):
    """Another process is executing this run."""


class TornFile(StoreError):
    """A file is missing, incomplete or altered since it was recorded."""


class IdentityMismatch(StoreError):
    """A run was asked to continue under another config, seed, suite or code version.

    Attributes:
        keys: the dotted names of the differing keys, sorted.
    """

    def __init__(self, message: str, keys: tuple[str, ...]) -> None:
        super().__init__(message)
        self.keys = keys
