"""`storenode capacity`: machines for a number of participants.

The costs of a message were measured by ``bench readers`` and ``storenode db sizes``;
docs/scaling.md has the table for three sizes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import click

from store.config.options import declare, options_of
from storenode.cli.options.layers import LayeredCommand, option
from storenode.cli.options.types import Parsed

DAY_S: Final = 86_400
_MOST: Final = 1e12


def _positive(text: str, most: float = _MOST) -> float:
    value = float(text)
    if not 0 < value <= most:
        raise ValueError(f"{text} is not a number above 0 and up to {most:g}")
    return value


_number = partial(declare, "Options", kind=Parsed("number", "NUMBER", _positive))
_share = partial(_number, kind=Parsed("share", "SHARE", partial(_positive, most=1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """The load, and the costs of a message; kB are thousands of bytes."""

    participants: float = _number("People or devices that publish.", default=100_000)
    messages_a_day: float = _number("Messages of a participant a day.", default=20)
    channel_size: float = _number("Participants of a channel.", default=20)
    connected_share: float = _share("Share of the participants that are connected.", default=0.2)
    peak_factor: float = _number("Messages of the peak hour per message of a mean hour.", default=5)
    retention_days: float = _number("Days for which messages are stored.", default=30)
    busy_share: float = _share("Share of a core that is planned to be used.", default=0.5)
    publish_node_ms: float = _number("Milliseconds of the node's core for a publish.", default=2.0)
    publish_postgres_ms: float = _number(
        "Milliseconds of a Postgres core for a publish.", default=0.64
    )
    deliver_node_ms: float = _number("Milliseconds of the node for a delivery.", default=0.11)
    read_node_ms: float = _number(
        "Milliseconds of the node for a message of a scan.", default=0.003
    )
    read_postgres_ms: float = _number(
        "Milliseconds of Postgres for a message of a scan.", default=0.004
    )
    follower_kb: float = _number("Memory of the node for a connected follower, in kB.", default=56)
    message_kb: float = _number("Disk for a message, in kB.", default=1.9)


class Capacity(NamedTuple):
    """The machines for a load at its peak; each of the ``nodes`` uses one core."""

    messages_per_s: float
    deliveries_per_s: float
    followers: float
    node_cores: float
    postgres_cores: float
    followers_mb: float
    disk_gb: float
    nodes: int


def capacity(load: Assumptions) -> Capacity:
    """Compute what a load needs."""
    a_day = load.participants * load.messages_a_day
    messages = a_day / DAY_S * load.peak_factor
    live = load.channel_size * load.connected_share
    later = load.channel_size - live
    node_ms = load.publish_node_ms + live * load.deliver_node_ms + later * load.read_node_ms
    postgres_ms = load.publish_postgres_ms + later * load.read_postgres_ms
    followers = load.participants * load.connected_share
    node_cores = messages * node_ms / 1e3 / load.busy_share
    return Capacity(
        messages_per_s=messages,
        deliveries_per_s=messages * live,
        followers=followers,
        node_cores=node_cores,
        postgres_cores=messages * postgres_ms / 1e3 / load.busy_share,
        followers_mb=followers * load.follower_kb / 1e3,
        disk_gb=a_day * load.retention_days * load.message_kb / 1e6,
        nodes=math.ceil(node_cores),
    )


def _lines(found: Capacity) -> Iterator[str]:
    rows = {
        "messages a second, peak": _rounded(found.messages_per_s),
        "deliveries a second, peak": _rounded(found.deliveries_per_s),
        "followers": f"{found.followers:,.0f}",
        "nodes, one core each": f"{found.nodes:,}",
        "cores of nodes": _rounded(found.node_cores),
        "cores of Postgres": _rounded(found.postgres_cores),
        "memory for followers": f"{_rounded(found.followers_mb)} MB",
        "disk, one copy": f"{_rounded(found.disk_gb)} GB",
    }
    return (f"{name:<26}{value}" for name, value in rows.items())


def _rounded(value: float) -> str:
    digits = max(0, 1 - math.floor(math.log10(value))) if 0 < value < 100 else 0
    return f"{value:,.{digits}f}"


@click.command("capacity", cls=LayeredCommand)
@options_of(Assumptions)
@option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def capacity_command(*, as_json: bool, **load: float) -> None:
    """Compute the machines for a number of participants.

    The costs were measured on one machine with two cores: measure your own with `bench readers`
    before you buy. Cores are those of the peak hour.
    """
    found = capacity(Assumptions(**load))
    click.echo(json.dumps(found._asdict()) if as_json else "\n".join(_lines(found)))
