"""The nodes and the participants of the demo: certificates, options, channels and links."""

from __future__ import annotations

import http.client
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import grpc
import trustme

from storenode.connection.channel import TlsIdentity
from storenode.sds.bloom import FilterShape
from storenode.sds.config import ChannelConfig, RepairConfig

NODES: Final = ("n1", "n2", "n3")
WAYS: Final = ("gossip", "transfer", "resume")
"""Values of the label ``source`` for messages from other nodes; `transfer` is reconciliation."""

SEND_EVERY_S: Final = 0.06
"""Mean pause between two lines of all channels together."""

LOSS: Final = 0.2
"""The share of messages that a bad link loses."""

_REPAIR: Final = RepairConfig(request_min_ms=500, request_max_ms=1_500, requests_per_message=16)

_TIMEOUT_S: Final = 60.0
_LIFETIME: Final = timedelta(days=1)
"""The lifetime of certificates; the authority's key is in no file."""

_STORED: Final = re.compile(
    rb'^storenode_messages_stored_total\{source="(\w+)"\} ([0-9.e+]+)$', re.MULTILINE
)


class Certificates:
    """An authority, and what nodes and clients need to trust each other by it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self._ca = directory / "ca.pem"
        self._ca.write_bytes(self._authority.cert_pem.bytes())

    def issue(self, name: str) -> TlsIdentity:
        """Make a certificate for a name and 127.0.0.1."""
        until = datetime.now(UTC) + _LIFETIME
        issued = self._authority.issue_cert(name, "127.0.0.1", not_after=until)
        return TlsIdentity(
            ca=self._authority.cert_pem.bytes(),
            cert=issued.cert_chain_pems[0].bytes(),
            key=issued.private_key_pem.bytes(),
        )

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials of a new client."""
        tls = self.issue("client.demo.storenode")
        return grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)

    def node_options(self, name: str) -> list[str]:
        """Write a certificate of a node and its key, and return the options that name them."""
        identity = self.issue(node_id(name))
        cert, key = (self._directory / f"{name}.{kind}" for kind in ("pem", "key"))
        cert.write_bytes(identity.cert or b"")
        key.touch(mode=0o600)
        key.write_bytes(identity.key or b"")
        ca = str(self._ca)
        return [
            *("--peer-listen", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key)),
            *("--tls-ca", ca, "--client-ca", ca),
        ]


def peer_options(peers: Mapping[str, str], without: Collection[str]) -> list[str]:
    """Return the options of a node with peers at some addresses."""
    options = [
        *("--sync-interval", "0" if "reconciliation" in without else "5s", "--sync-offset", "2s"),
        *("--gossip", "off" if "gossip" in without else "on"),
    ]
    for name, address in peers.items():
        options += ["--allow-peer", node_id(name), "--peer", f"{node_id(name)}@{address}"]
    return options


def node_id(name: str) -> str:
    """Return the ID of a node: the DNS name of its certificate."""
    return f"{name}.demo.storenode"


def count_stored(metrics_address: str) -> Counter[str]:
    """Return the number of messages that a node has stored since its start, by source; blocks."""
    connection = http.client.HTTPConnection(metrics_address, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read()
    finally:
        connection.close()
    return Counter({key.decode(): int(float(count)) for key, count in _STORED.findall(text)})


@dataclass(frozen=True, slots=True)
class Character:
    """A participant of the cast: the node that it reaches first, and whether its link is bad."""

    name: str
    channel_id: str
    home: str
    has_bad_link: bool = False

    def configure(self, *, repairs: bool) -> ChannelConfig:
        """Return a configuration with short intervals, with or without SDS-Repair."""
        return ChannelConfig(
            self.channel_id,
            self.name,
            filter=FilterShape(1_000, 0.01),
            history_entries=6,
            sync_min_ms=1_500,
            sync_max_ms=3_000,
            repair=_REPAIR if repairs else None,
        )


READER: Final = "bela"
"""The reader of the conversation of which her link loses a line."""

NEIGHBOUR: Final = "lena"
"""The sender behind the node that is cut off."""

ROAMER: Final = "kim"
"""The only reader of these lines, who then moves to the other side."""

LISTENER: Final = "joe"
"""The participant of the same channel on the other side."""

LEAVER: Final = "hugo"
"""The participant that leaves, and joins again on the same state."""

CAST: Final = (
    Character("ada", "atlas", "n1"),
    Character(READER, "atlas", "n2", has_bad_link=True),
    Character("cora", "atlas", "n3"),
    Character("dan", "birch", "n1", has_bad_link=True),
    Character("elsa", "birch", "n2"),
    Character("finn", "birch", "n3"),
    Character("gina", "cedar", "n1"),
    Character(LEAVER, "cedar", "n2"),
    Character("ines", "cedar", "n3", has_bad_link=True),
    Character(LISTENER, "delta", "n1"),
    Character(ROAMER, "delta", "n3"),
    Character(NEIGHBOUR, "delta", "n3"),
)
