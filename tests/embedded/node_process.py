"""A process that runs an embedded Postgres, for tests that kill or demote such a process.

usage: node_process.py DATA_DIR JSON

The JSON object may give `uid`, an account to become for good. It prints one line of JSON when the
server is ready or has failed, and stops at the end of its standard input.
"""

import json
import os
import sys
from pathlib import Path

from store.embedded import EmbeddedPostgres, EmbeddedPostgresError


def main(data_dir: str, options: dict[str, object]) -> None:
    uid = options.get("uid")
    if isinstance(uid, int):
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    server = EmbeddedPostgres(Path(data_dir))
    try:
        said: dict[str, object] = {"url": server.start(), "pid": server.pid}
    except EmbeddedPostgresError as error:
        said = {"error": str(error)}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
