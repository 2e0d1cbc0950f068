"""Feed broken payloads to the compiled kernel, under the sanitizers of the C compiler.

``make fuzz-kernel`` builds `reconcile/native` with those for addresses and undefined behaviour in a
directory that it removes, and, in a process that has them preloaded, does two things with it:

1. it mutates payloads, decodes each with the kernel and without, and has a session answer it both
   ways: results, refusals and answers must be the same. Of frames of the compact mode, a quarter
   as many, each must be refused, answered, or lead to a result that the sets permit;
2. with ``--tests`` it runs the unit tests of `reconcile`, which compare every other entry point.

A finding ends it with code 1 and the seed, or the sanitizer's report. Needs gcc or clang.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from copy import copy
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chaos.fuzz.mutations import MUTATIONS

if TYPE_CHECKING:
    from reconcile.compact.session import CompactInitiator, CompactResponder
    from reconcile.ids import SyncId
    from reconcile.index import IndexView

    CompactSide = CompactInitiator | CompactResponder

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ROOT / "reconcile/native"

MODULE: Final = "reconcile._kernel"
FLAGS: Final = (
    *("-std=c11", "-O1", "-g", "-shared", "-fPIC", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "-DPy_LIMITED_API=0x030B0000",
)
IN_CHILD: Final = "STORENODE_SANITIZED_KERNEL"
"""The environment variable with the built file, in the process that has the sanitizers."""

PROGRESS: Final = 20_000

AT_ONCE: Final = 30
"""The number of missing IDs for which all IDs have one timestamp."""

FIRST: Final = 2
"""Of the payloads to begin with, the one that opens a session."""

COMPACT_SHARE: Final = 4
"""Payloads for each frame of the compact mode."""

FEW_ITEMS: Final = 700
"""IDs from which on half of the sessions cut at anchors, as others do from millions on."""

LATER: Final = 0.7
"""Share of payloads that are answered in a session's second turn: there a plan has an estimate."""


def main() -> int:
    """Build, and run this program again on what was built."""
    given = _arguments()
    built = os.environ.get(IN_CHILD)
    if built is not None:
        _use(Path(built))
        return _run_tests() if given.tests else _fuzz(given.seed, given.count)
    compiler = os.environ.get("CC", "cc")
    with tempfile.TemporaryDirectory(prefix="storenode-kernel-") as directory:
        file = Path(directory, "_kernel.abi3.so")
        sources = sorted(map(str, SOURCES.glob("*.c")))
        include = f"-I{sysconfig.get_paths()['include']}"
        subprocess.run([compiler, *FLAGS, include, *sources, "-o", str(file)], check=True)
        runtime = subprocess.run(
            [compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
        ).stdout.strip()
        again = [sys.executable, "-m", "chaos.fuzz.kernel", *sys.argv[1:]]
        environment = os.environ | {
            IN_CHILD: str(file),
            "LD_PRELOAD": runtime,
            # Python keeps memory to its end on purpose.
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
        }
        return subprocess.run(again, env=environment, cwd=ROOT, check=False).returncode


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="make fuzz-kernel")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--count", type=int, default=20_000, help="payloads [%(default)s]")
    parser.add_argument("--tests", action="store_true", help="run the unit tests instead")
    return parser.parse_args()


def _use(file: Path) -> None:
    """Let `reconcile` find this kernel in place of its own."""
    loader = ExtensionFileLoader(MODULE, str(file))
    spec = spec_from_file_location(MODULE, file, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    import reconcile  # noqa: PLC0415 - the kernel comes first

    sys.modules[MODULE] = module
    reconcile._kernel = module  # type: ignore[attr-defined]
    from reconcile import kernel  # noqa: PLC0415

    assert kernel.compiled is module, "the kernel is of another version than the package"


def _run_tests() -> int:
    import pytest  # noqa: PLC0415 - needed for the tests alone

    return int(pytest.main(["-q", "-p", "no:cacheprovider", str(ROOT / "tests/unit/reconcile")]))


def _fuzz(seed: int, count: int) -> int:
    from reconcile import kernel  # noqa: PLC0415 - after the kernel was put in its place

    view, payloads = _new_payloads(random.Random(seed))
    opening = payloads[FIRST]
    for number in range(seed, seed + count):
        rng = random.Random(number)
        data = _mutated(rng, rng.choice(payloads), payloads)
        given = [opening, data] if rng.random() < LATER else [data]
        compiled = _outcome(given, view)
        with kernel.python_only():
            plain = _outcome(given, view)
        if compiled != plain:
            print(f"seed {number}: {data.hex()}\ncompiled: {compiled}\nplain:    {plain}")
            return 1
        answer = plain[0]
        if isinstance(answer, bytes) and len(answer) < len(data) + 9_000:
            payloads.append(answer)
            del payloads[PROGRESS:]
        if (number - seed + 1) % PROGRESS == 0:
            print(f"{number - seed + 1:,} payloads", flush=True)
    print(f"{count:,} payloads from seed {seed}: compiled code and Python agree on all")
    return _fuzz_compact(seed, max(1, count // COMPACT_SHARE))


def _fuzz_compact(seed: int, count: int) -> int:
    from reconcile.compact import plan  # noqa: PLC0415

    usual = plan.NEAR_ITEMS
    plan.ANCHORED_SLICE_ITEMS = 1  # type: ignore[misc]
    given = _compact_world(random.Random(seed))
    plan.NEAR_ITEMS = FEW_ITEMS  # type: ignore[misc]
    given += _compact_world(random.Random(seed))
    frames = [frame for _, frame, _ in given]
    for number in range(seed, seed + count):
        rng = random.Random(number)
        plan.NEAR_ITEMS = rng.choice((usual, FEW_ITEMS))  # type: ignore[misc]
        side, frame, lacking = rng.choice(given)
        data = _mutated(rng, frame, frames)
        if not _is_harmless(copy(side), data, set(lacking)):
            print(f"seed {number}: {data.hex()}\nthe result is wrong")
            return 1
    print(f"{count:,} compact frames from seed {seed}: each was refused, answered or harmless")
    return 0


def _compact_world(rng: random.Random) -> list[tuple[CompactSide, bytes, list[SyncId]]]:
    """Return sides before each frame that one receives, and the IDs that the other side lacks."""
    from reconcile.compact.session import CompactInitiator, CompactResponder  # noqa: PLC0415
    from reconcile.ids import END, LOWEST, SyncIds  # noqa: PLC0415
    from reconcile.index import IndexView  # noqa: PLC0415

    spread = sorted({(rng.randrange(10**15), rng.randbytes(32)) for _ in range(3_000)})
    found: list[tuple[CompactSide, bytes, list[SyncId]]] = []
    for lacking, gap in ((1, 0), (4, 0), (50, 0), (600, 0), (20, 300), (30, 0)):
        at_once = sorted((7, hash_) for _, hash_ in spread)
        ids = at_once if lacking == AT_ONCE else spread
        sets = [
            rng.sample(some, len(some) - lacking) for some in (ids[:500] + ids[500 + gap :], ids)
        ]
        alone = [sorted(set(sets[side]) - set(sets[1 - side])) for side in (0, 1)]
        views = [IndexView.of(SyncIds.of(some)) for some in sets]
        nonces = rng.randbytes(16), rng.randbytes(16)
        first = CompactInitiator(views[0], (LOWEST, END), nonces[0])
        first.agree(nonces[1])
        sides = first, CompactResponder(views[1], (LOWEST, END), nonces, first.claim)
        frame, receiver = first.begin(), 1
        while frame:
            found.append((copy(sides[receiver]), frame, alone[receiver]))
            frame, receiver = sides[receiver].receive(frame).frame or b"", 1 - receiver
    return found


def _is_harmless(side: CompactSide, data: bytes, lacking: set[SyncId]) -> bool:
    """Return True if a side refuses a frame, answers it, or sends only what the peer lacks."""
    from reconcile.compact.session import CompactResult  # noqa: PLC0415
    from reconcile.errors import MalformedCompactError, PayloadLimitError  # noqa: PLC0415

    try:
        step = side.receive(data)
    except (MalformedCompactError, PayloadLimitError):
        return side.ended
    return not isinstance(step.outcome, CompactResult) or lacking.issuperset(step.outcome.to_send)


def _new_payloads(rng: random.Random) -> tuple[IndexView, list[bytes]]:
    """Return a view, and the payloads of sessions with it."""
    from reconcile.ids import END, LOWEST, SyncIds  # noqa: PLC0415
    from reconcile.index import IndexView  # noqa: PLC0415
    from reconcile.session import ReconcileSession as Session  # noqa: PLC0415
    from reconcile.session import Role, SessionConfig  # noqa: PLC0415
    from reconcile.session import SessionBegin as Begin  # noqa: PLC0415

    ids = sorted({(rng.randrange(10**15), rng.randbytes(32)) for _ in range(3_000)})
    ids += [(ids[-1][0] + 1, rng.randbytes(32)) for _ in range(40)]
    view = IndexView.of(SyncIds.of(sorted(ids)))
    payloads = [b"", b"\x01\x00"]
    for size in (0, 1, 20, 500, 2_900):
        theirs = IndexView.of(SyncIds.of(sorted(rng.sample(ids, size))))
        config = SessionConfig(cluster=1, shards=(), window=(LOWEST, END))
        payloads += _sent(Session(Role.INITIATOR, config), Begin(), theirs, view)
    return view, payloads


def _sent(session: Any, first: Any, own: IndexView, other: IndexView) -> list[bytes]:  # noqa: ANN401
    """Return the payloads of both sides of a session until its end."""
    from reconcile.session import PayloadReceived as Received  # noqa: PLC0415
    from reconcile.session import ReconcileSession as Session  # noqa: PLC0415
    from reconcile.session import Role, SessionConfig  # noqa: PLC0415

    peer = Session(Role.RESPONDER, SessionConfig(cluster=1, shards=()))
    sides, said = [(session, own), (peer, other)], []
    payload = _step(*sides[0], first)
    while payload:
        said.append(payload)
        sides.reverse()
        payload = _step(*sides[0], Received(payload))
    return said


def _step(session: Any, view: IndexView, given: Any) -> bytes | None:  # noqa: ANN401
    """Return the payload that a session answers with, or None."""
    from reconcile.session import ReadAnswered, ReadEffect, SendPayload  # noqa: PLC0415

    sent, inputs = None, [given]
    while inputs:
        for effect in session.step(0, inputs.pop()):
            match effect:
                case ReadEffect():
                    inputs.append(ReadAnswered(view.answer(effect.read)))
                case SendPayload():
                    sent = effect.payload
    return sent


def _outcome(given: list[bytes], view: IndexView) -> tuple[object, ...]:
    """Return the answer to the last payload and the result, or the refusal."""
    from reconcile.codec import MalformedPayloadError, PayloadLimitError  # noqa: PLC0415
    from reconcile.session import PayloadReceived as Received  # noqa: PLC0415
    from reconcile.session import ReconcileSession as Session  # noqa: PLC0415
    from reconcile.session import Role, SessionConfig  # noqa: PLC0415

    session = Session(Role.RESPONDER, SessionConfig(cluster=1, shards=()))
    try:
        for data in given:
            answer = _step(session, view, Received(data))
        found = session._to_send, session._to_receive  # the result is only of a session that ends
        return answer, *(ids.pairs() for ids in found)
    except (MalformedPayloadError, PayloadLimitError) as refusal:
        return type(refusal).__name__, str(refusal)


def _mutated(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
        data = rng.choice(MUTATIONS)(data, rng, others)
    return data


if __name__ == "__main__":
    raise SystemExit(main())
