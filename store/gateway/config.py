"""The configuration of `storenode gateway`, and what must hold between its options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from store.config import options as most
from store.config.options import access, limit, listener, messages, running
from store.gateway import limits
from store.gateway.addresses import (
    ListenAddress,
    PeerMultiaddr,
    parse_listen_address,
    parse_peer_address,
)
from storenode.cli.options.types import ADDRESS, POSITIVE_DURATION, Address, Parsed, size_up_to

MULTIADDR: Final = Parsed("multiaddr", "MULTIADDR", parse_listen_address)
PEER_MULTIADDR: Final = Parsed("multiaddr", "MULTIADDR", parse_peer_address)
SYNC_PEER: Final = Parsed("multiaddr", "MULTIADDR", partial(parse_peer_address, may_be_id=True))

ROUTER: Final = "router"
LEAF: Final = "leaf"
"""Values of ``--relay``."""

_PATH: Final = click.Path(dir_okay=False, path_type=Path)
_MAX_REQUEST_BYTES: Final = limits.MAX_CLIENT_UNREAD_BYTES // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The parsed options of `storenode gateway`, without those of the connection to the node."""

    listen: tuple[ListenAddress, ...] = listener(
        "Multiaddr for clients, of TCP or of a WebSocket, such as /ip4/0.0.0.0/tcp/8000/ws;"
        " port 0 picks a free one; repeatable.",
        MULTIADDR,
        multiple=True,
        default=("/ip4/127.0.0.1/tcp/8000/ws",),
    )
    metrics_listen: Address | None = listener(
        "Address of /metrics, /healthz and /readyz, plain HTTP; off unless given.", ADDRESS
    )
    key_file: Path = access(
        "File with the key that gives the gateway its peer ID; made at the first start.",
        _PATH,
        "./gateway.key",
        metavar="FILE",
    )
    wss_cert: Path | None = access(
        "PEM file with the certificate of listeners whose multiaddr ends in /tls/ws; read again"
        " when it is renewed.",
        _PATH,
        metavar="FILE",
    )
    wss_key: Path | None = access(
        "PEM file with the key of that certificate.", _PATH, metavar="FILE"
    )
    cluster: int = messages("Cluster of the network.", click.IntRange(0, most.MAX_CLUSTER), 1)
    shard: frozenset[int] = messages(
        "Shard that is served; repeatable.",
        click.IntRange(0, most.MAX_SHARD),
        multiple=True,
        default=tuple(range(8)),
    )
    no_light_push: bool = messages("Do not publish what clients push (light push).", is_flag=True)
    no_filter: bool = messages(
        "Do not push new messages to clients that subscribe (filter).", is_flag=True
    )
    relay: str | None = messages(
        "Relay messages between the Waku network and the node: as a router, which forwards without"
        " verifying proofs of RLN, or as a leaf, which only receives, from --relay-peer; off unless"
        " given.",
        click.Choice((ROUTER, LEAF)),
    )
    relay_peer: tuple[PeerMultiaddr, ...] = messages(
        "Multiaddr of a relay peer to connect to, such as /ip4/192.0.2.1/tcp/60000/p2p/ID;"
        " repeatable.",
        PEER_MULTIADDR,
        multiple=True,
    )
    nwaku_sync_peer: tuple[PeerMultiaddr, ...] = messages(
        "Multiaddr of an nwaku node to reconcile with, such as /ip4/192.0.2.1/tcp/60000/p2p/ID, or"
        " /p2p/ID of one that connects by itself; no other peer is served; repeatable. The token"
        " needs the right `backfill`.",
        SYNC_PEER,
        multiple=True,
    )
    nwaku_sync_interval: int = messages(
        "How often to reconcile with each of them.", POSITIVE_DURATION, "5m"
    )
    nwaku_sync_range: int = messages(
        "How far back a reconciliation with them looks; not farther than they do.",
        POSITIVE_DURATION,
        "1h",
    )
    max_connections: int = limit("Connections at a time.", click.IntRange(1, 65_000), 4_000)
    max_connections_per_address: int = limit(
        "Connections of one address at a time; of IPv6, of one /64.", click.IntRange(1), 64
    )
    max_new_connections_per_s: int = limit(
        "Connections that one address may open in a second.", click.IntRange(1), 20
    )
    max_requests_per_s: int = limit(
        "Requests that one address may send in a second: queries, pushes and subscriptions.",
        click.IntRange(1),
        100,
    )
    max_streams: int = limit("Streams of one connection at a time.", click.IntRange(1, 1_000), 32)
    max_request: int = limit("Size of one query.", size_up_to(_MAX_REQUEST_BYTES), "1MiB")
    log_format: str | None = running(
        "Format of the log on standard error.",
        click.Choice(("text", "json")),
        show_default="text on a terminal, else json",
    )
    log_level: str = running(
        "Minimum level to log.", click.Choice(("debug", "info", "warning", "error")), "info"
    )

    @property
    def pubsub_topics(self) -> frozenset[str]:
        """The pubsub topics of the shards."""
        return frozenset(f"/waku/2/rs/{self.cluster}/{each}" for each in self.shard)

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> GatewayConfig:
        """Check what click has parsed; raise click.UsageError if options contradict each other."""
        config = cls(**{**options, "shard": frozenset(options["shard"])})
        if (config.wss_cert is None) != (config.wss_key is None):
            raise click.UsageError("--wss-cert and --wss-key go together: give both or neither.")
        if config.relay_peer and config.relay is None:
            raise click.UsageError("--relay-peer needs --relay router or --relay leaf.")
        if config.relay == LEAF and not config.relay_peer:
            raise click.UsageError("--relay leaf needs at least one --relay-peer.")
        needs = [str(each) for each in config.listen if "tls" in each.over_tcp]
        if needs and config.wss_cert is None:
            raise click.UsageError(
                f"--listen {needs[0]} needs a certificate: give --wss-cert and --wss-key, or end it"
                " in /ws."
            )
        return config
