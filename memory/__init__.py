"""Stores: runs, harness and policy lineage, traces, work ledger, executed steps.

SQLite in WAL mode by default, Postgres by URL. See :class:`memory.store.Store`.
"""

from memory.errors import StoreError
from memory.store import Store

__all__ = ["Store", "StoreError"]
