"""From participants to machines: the sums of docs/scaling.md for your own assumptions.

``python -m bench machines --participants 100000`` prints one line. Costs of a message are those
that ``bench readers`` measures, the disk that of ``storenode db sizes``; options replace them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from bench.support import own_options, report

DAY_S: Final = 86_400
_MB, _GB = 1e6, 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What is counted on; ``..._ms`` are of a core, ``..._kb`` thousands of bytes."""

    participants: int = 100_000
    messages_a_day: float = 20.0
    channel_size: int = 20
    connected_share: float = 0.2
    peak_factor: float = 5.0
    retention_days: float = 30.0
    busy_share: float = 0.5
    publish_node_ms: float = 2.0
    publish_postgres_ms: float = 0.64
    deliver_node_ms: float = 0.11
    read_node_ms: float = 0.003
    read_postgres_ms: float = 0.004
    follower_kb: float = 56.0
    message_kb: float = 1.9


@dataclass(frozen=True, slots=True)
class Machines:
    """What follows: per second at the peak, cores that are busy to the share that was planned.

    ``nodes``: processes, since one uses one core.
    """

    messages_per_s: float
    deliveries_per_s: float
    followers: float
    node_cores: float
    postgres_cores: float
    followers_mb: float
    disk_gb: float
    nodes: int


def machines(given: Assumptions) -> Machines:
    """Add it up."""
    messages = given.participants * given.messages_a_day / DAY_S * given.peak_factor
    live = given.channel_size * given.connected_share
    later = given.channel_size - live
    node_ms = given.publish_node_ms + live * given.deliver_node_ms + later * given.read_node_ms
    postgres_ms = given.publish_postgres_ms + later * given.read_postgres_ms
    followers = given.participants * given.connected_share
    node_cores = messages * node_ms / 1e3 / given.busy_share
    kept = given.participants * given.messages_a_day * given.retention_days
    return Machines(
        messages_per_s=messages,
        deliveries_per_s=messages * live,
        followers=followers,
        node_cores=node_cores,
        postgres_cores=messages * postgres_ms / 1e3 / given.busy_share,
        followers_mb=followers * given.follower_kb * 1e3 / _MB,
        disk_gb=kept * given.message_kb * 1e3 / _GB,
        nodes=math.ceil(node_cores),
    )


def main(arguments: list[str]) -> int:
    """Print the line."""
    parser = own_options("machines", __doc__)
    default = Assumptions()
    for each in fields(Assumptions):
        value = getattr(default, each.name)
        flag = "--" + each.name.replace("_", "-")
        parser.add_argument(flag, type=type(value), default=value, help="default: %(default)s")
    given = vars(parser.parse_args(arguments))
    if not all(math.isfinite(each) and each > 0 for each in given.values()):
        parser.error("choose numbers above zero")
    found = machines(Assumptions(**given))
    report(
        participants=given["participants"],
        **{each.name: getattr(found, each.name) for each in fields(Machines)},
    )
    return 0
