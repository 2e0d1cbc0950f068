"""A node that notes which functions are entered: ``ways_node.py SOCKET TREE ARGUMENT...``.

It runs the command of the checkout TREE with the arguments. Who connects to SOCKET sends `BEGIN`
and is answered when recording has begun, then `END` and is answered with a line of JSON: the file
and the qualified name of everything that was entered in between, in order.
"""

from __future__ import annotations

import json
import runpy
import socket
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

BEGIN: Final = b"b"
END: Final = b"e"


class Recorder:
    """Notes the code objects that are entered while it is switched on."""

    def __init__(self) -> None:
        self._codes: dict[CodeType, None] | None = None

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Take one event of the profiler."""
        if event == "call" and (codes := self._codes) is not None:
            codes[frame.f_code] = None

    def serve(self, path: str) -> None:
        """Do as the one connection to a socket says, until it ends."""
        with socket.create_server(path, family=socket.AF_UNIX) as server:
            connection, _ = server.accept()
        with connection:
            while connection.recv(1) == BEGIN:
                codes: dict[CodeType, None] = {}
                self._codes = codes
                connection.sendall(BEGIN)
                connection.recv(1)
                self._codes = None
                found = [(code.co_filename, code.co_qualname) for code in list(codes)]
                connection.sendall(json.dumps(found).encode() + b"\n")


def main() -> None:
    """Run the command under the recorder."""
    path, tree, *arguments = sys.argv[1:]
    # In the place of this directory, whose names are not the checkout's.
    sys.path[0] = tree
    sys.argv = ["storenode", *arguments]
    recorder = Recorder()
    threading.Thread(target=recorder.serve, args=(path,), daemon=True).start()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    package = "storenode" if Path(tree, "storenode").exists() else "store"
    runpy.run_module(f"{package}.cli", run_name="__main__")


if __name__ == "__main__":
    main()
