"""``storenode scan`` and ``query`` of everything, printed to a pipe, against a library's scan.

Each is a process of its own that begins from nothing, also the one that scans by the library. With
``--against``, the path of another installation of the command, that one runs in turn with this one
on the same node, and what the two print is compared.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256

from bench.data import PUBSUB_TOPIC, rows
from bench.support import Bench, bench_node, publish, report, seconds, settle
from tests.support.node import COMMAND, clean_environment

REPEATS = 3
FORMS = {
    "scan": ("scan",),
    "scan_json": ("scan", "--json"),
    "query": ("query", "--all", "--forward", "--limit", "1000"),
    "query_json": ("query", "--all", "--forward", "--limit", "1000", "--json"),
}
_LIBRARY = """
import sys
from storenode.client import Client
with Client(sys.argv[1]) as client:
    print(sum(1 for _ in client.scan(pubsub_topic=sys.argv[2])))
"""


def printed(bench: Bench, program: Sequence[str]) -> bytes:
    """Run a program to its end; the digest of what it printed."""
    environment = clean_environment(STORENODE_NODE=bench.node.listen)
    with subprocess.Popen(program, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        digest = sha256()
        while data := process.stdout.read(1 << 20):
            digest.update(data)
    assert process.returncode == 0, f"{program} ended with {process.returncode}"
    return digest.digest()


def main() -> None:
    """Measure all forms in turn; the best of three each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--against", metavar="PROGRAM", help="another installation's storenode")
    given = parser.parse_args()
    count = given.messages
    with bench_node("--max-clock-drift", "off") as bench:
        publish(bench, rows(count))
        settle(bench)
        library = [sys.executable, "-c", _LIBRARY, bench.node.listen, PUBSUB_TOPIC]
        programs = {"library": library}
        for name, arguments in FORMS.items():
            programs[name] = [COMMAND, *arguments]
            if given.against:
                programs[f"{name}_other"] = [given.against, *arguments]
        best: dict[str, float] = {}
        digests: dict[str, bytes] = {}
        for _ in range(REPEATS):
            for name, program in programs.items():

                def run(name: str = name, program: list[str] = program) -> None:
                    digests[name] = printed(bench, program)

                best[name] = min(best.get(name, float("inf")), seconds(run))
    for name in FORMS:
        other = digests.get(f"{name}_other", digests[name])
        assert other == digests[name], f"the two installations print different lines for {name}"
    report(
        benchmark="cli",
        messages=count,
        **{f"{name}_per_s": count / taken for name, taken in best.items()},
        **{f"{name}_ratio": best["library"] / best[name] for name in programs if name != "library"},
    )


if __name__ == "__main__":
    main()
