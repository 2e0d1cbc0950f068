"""Sessions of two small stores: what an operator pays every few minutes when little happens.

Two nodes hold the same messages, all in memory, and gossip is off. They reconcile many times
without a difference, then each time with one message that the caller lacks, which is transferred
and stored; in clear text, and over TLS. The figures are processor time a session, of both nodes and
both Postgres; that of publishing is measured before and subtracted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from bench.data import content_topic
from bench.support import options, report
from bench.sync import OFFSET_NS, SPAN_NS, Pair, stores
from storenode.client.blocking_client import Admin, Client
from storenode.client.message import Message
from storenode.connection.channel import TlsIdentity

WARM_UP: Final = 10
SETTLE_S: Final = 0.05


def cost_ms(pair: Pair, work: Callable[[], object], count: int) -> dict[str, float]:
    """Return the milliseconds of both nodes and of both Postgres for each call of some work."""
    before = pair.used()
    for _ in range(count):
        work()
        time.sleep(SETTLE_S)  # what was stored reaches the index
    return {
        f"{part}_ms": sum(
            getattr(now, part) - getattr(then, part)
            for now, then in zip(pair.used(), before, strict=True)
        )
        / count
        * 1e3
        for part in ("node", "postgres")
    }


def measure(case: str, pair: Pair, sessions: int, tls: TlsIdentity | None) -> None:
    """Measure both kinds of sessions of a pair."""
    caller, callee = pair.caller.node, pair.callee.node
    with Admin(caller.admin, tls=tls) as admin, Client(callee.listen, tls=tls) as client:

        def reconcile() -> None:
            done = admin.synchronize(start=0)
            assert done.in_sync, done

        def publish() -> None:
            client.publish(Message(b"new", content_topic(0), timestamp=time.time_ns() - OFFSET_NS))

        def reconcile_one() -> None:
            publish()
            time.sleep(SETTLE_S)
            reconcile()

        for _ in range(WARM_UP):
            reconcile_one()
        equal = cost_ms(pair, reconcile, sessions)
        published = cost_ms(pair, publish, sessions)
        reconcile()
        one = cost_ms(pair, reconcile_one, sessions)
        one = {part: cost - published[part] for part, cost in one.items()}
        report(benchmark="sessions", case=f"equal, {case}", **equal)
        report(benchmark="sessions", case=f"one difference, {case}", **one)


def main() -> None:
    """Measure in clear text and over TLS."""
    given = options(__doc__, 1_000, sessions=100)
    end_ns = time.time_ns() - OFFSET_NS
    with stores((end_ns - SPAN_NS, end_ns), given.messages) as two:
        with two.clear() as pair:
            measure("in clear text", pair, given.sessions, None)
        with two.secured() as pair:
            ca = (two.caller.parent / "ca.pem").read_bytes()
            measure("over TLS", pair, given.sessions, TlsIdentity(ca=ca))
