"""Names of tables, and SQL statements, in a file for each table: ``SQL.messages.read_at``.

A file is read as text. ``-- name --`` begins a statement, and comments follow it. A table and a
name in angle brackets stand for the text of another one. Names in braces are filled in by the
caller, with columns or conditions that differ; everything else is a parameter.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final, LiteralString

SCHEMA: Final = "storenode"
FINE_TABLE: Final = "messages"
COARSE_TABLES: Final = ("hashes", "sds", "topics")
COMMITS_TABLE: Final = "commits"
BUCKETS_TABLE: Final = "buckets"
PARTITIONED_TABLES: Final = (FINE_TABLE, *COARSE_TABLES, COMMITS_TABLE)
"""The partitioned tables in the order in which their locks are taken."""

_NAME: Final = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_OTHER: Final = re.compile(r"<(\w+)\.(\w+)>")
_COMMENTS: Final = re.compile(r"\A(?:--.*\n)+")


class _Statements:
    """The statements about one table, which are its attributes."""

    def __init__(self, table: str) -> None:
        text = files(__name__).joinpath(f"{table}.sql").read_text("utf-8")
        _, *parts = _NAME.split(text)
        self._texts = dict(zip(parts[::2], parts[1::2], strict=True))

    def __getattr__(self, name: str) -> LiteralString:
        """Return a statement, which is put together once."""
        if name.startswith("__") or name not in self._texts:
            raise AttributeError(name)
        text = _COMMENTS.sub("", self._texts[name].lstrip("\n")).strip()
        text = _OTHER.sub(lambda match: str(getattr(getattr(SQL, match[1]), match[2])), text)
        self.__dict__[name] = text
        return text

    @property
    def names(self) -> list[str]:
        """The names of all statements."""
        return list(self._texts)


class _Tables:
    """The files of statements."""

    def __init__(self) -> None:
        self.messages = _Statements("messages")
        self.commits = _Statements("commits")
        self.buckets = _Statements("buckets")
        self.sds = _Statements("sds")
        self.stores = _Statements("stores")
        self.partitions = _Statements("partitions")


SQL: Final = _Tables()
