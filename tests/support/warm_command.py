"""The command ``storenode`` of a shell's script, forked by `tests.support.warm` from one that runs.

Run with the address of the process that forks, the command's file and its arguments. The exit code
is that of the command; signals are not passed on.
"""

import json
import os
import socket
import struct
import sys
from pathlib import Path

_LENGTH = struct.Struct("!I")


def main(address: str, *command: str) -> int:
    """Ask for a process of a command, and return its exit code."""
    asked = {"args": command, "cwd": str(Path.cwd()), "env": dict(os.environ)}
    body = json.dumps(asked).encode()
    reading, pipe = os.pipe()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [_LENGTH.pack(len(body))], [0, 1, 2, pipe])
        server.sendall(body)
    os.close(pipe)
    os.read(reading, _LENGTH.size)  # the ID of the process
    (status,) = _LENGTH.unpack(os.read(reading, _LENGTH.size))
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.exit(code if code >= 0 else 128 - code)
