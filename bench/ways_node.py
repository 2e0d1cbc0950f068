"""A node that records what a call costs it: ``ways_node.py SOCKET ARGUMENT...``.

It runs the command with the arguments. A client of SOCKET sends `BEGIN` and is
answered when recording has begun, then `END` and is answered with a line of JSON: the file and
the qualified name of each function that was entered in between, in order, and counts of dataclasses
of which instances were made, statements sent to Postgres, commits of writes and new connections.
"""

from __future__ import annotations

import json
import re
import runpy
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

BEGIN: Final = b"b"
END: Final = b"e"

_PROJECT: Final = frozenset({"store", "storenode", "reconcile"})
_WRITE: Final = re.compile(
    r"\b(insert\s+into|update|delete\s+from|merge\s+into|copy)\b", re.IGNORECASE
)


class Recorder:
    """A profile function that records the functions entered while it is switched on."""

    def __init__(self) -> None:
        self._codes: dict[CodeType, None] | None = None
        self._counts: Counter[str] = Counter()
        self._dataclasses: set[type] = set()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Record one event of the profiler."""
        if event == "call" and (codes := self._codes) is not None:
            code = frame.f_code
            codes[code] = None
            if code.co_name == "__init__" and code.co_filename == "<string>":
                # The constructor that the dataclass decorator makes.
                made = type(frame.f_locals["self"])
                if made.__module__.partition(".")[0] in _PROJECT:
                    self._dataclasses.add(made)

    def count(self, name: str) -> None:
        """Count an event while recording is switched on."""
        if self._codes is not None:
            self._counts[name] += 1

    def serve(self, path: str) -> None:
        """Serve the one connection to a socket until it ends."""
        with socket.create_server(path, family=socket.AF_UNIX) as server:
            connection, _ = server.accept()
        with connection:
            while connection.recv(1) == BEGIN:
                codes: dict[CodeType, None] = {}
                self._counts.clear()
                self._dataclasses.clear()
                self._codes = codes
                connection.sendall(BEGIN)
                connection.recv(1)
                self._codes = None
                found = [(code.co_filename, code.co_qualname) for code in list(codes)]
                counts = dict(self._counts) | {"dataclasses": len(self._dataclasses)}
                answer = {"steps": found, "counts": counts}
                connection.sendall(json.dumps(answer).encode() + b"\n")


def record_statements(recorder: Recorder) -> None:
    """Let psycopg count statements, commits of writes and connections from now on."""
    for cursor in (psycopg.Cursor, psycopg.AsyncCursor):
        for name in ("execute", "executemany", "copy", "stream"):
            _wrap(cursor, name, lambda cursor, query: _count_statement(recorder, cursor, query))
    for connection in (psycopg.Connection, psycopg.AsyncConnection):
        connect = vars(connection)["connect"].__func__
        counting = _counting(connect, lambda *_: recorder.count("connections"))
        setattr(connection, "connect", classmethod(counting))  # noqa: B010 - typed as a method
        _wrap(connection, "_exec_command", lambda _, command: _count_commit(recorder, command))


def _count_statement(recorder: Recorder, cursor: Any, query: Any) -> None:  # noqa: ANN401
    recorder.count("statements")
    text = query.decode() if isinstance(query, bytes) else str(query)
    idle = cursor.connection.info.transaction_status == TransactionStatus.IDLE
    if cursor.connection.autocommit and idle and _WRITE.search(text):
        recorder.count("commits")


def _count_commit(recorder: Recorder, command: object) -> None:
    if command == b"COMMIT":
        recorder.count("commits")


def _wrap(owner: Any, name: str, note: Callable[..., None]) -> None:  # noqa: ANN401
    setattr(owner, name, _counting(getattr(owner, name), note))


def _counting(function: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    def counting(owner: object, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        note(owner, arguments[0] if arguments else options.get("query"))
        return function(owner, *arguments, **options)

    return counting


def main() -> None:
    """Run the command under the recorder."""
    path, *arguments = sys.argv[1:]
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    sys.argv = ["storenode", *arguments]
    recorder = Recorder()
    record_statements(recorder)
    threading.Thread(target=recorder.serve, args=(path,), daemon=True).start()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    runpy.run_module("storenode.cli", run_name="__main__")


if __name__ == "__main__":
    main()
