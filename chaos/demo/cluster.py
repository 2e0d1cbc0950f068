"""The nodes of the demo: their certificates, their options, and what they count."""

from __future__ import annotations

import http.client
import re
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import grpc
import trustme

from storenode.connection.channel import TlsIdentity

NODES: Final = ("n1", "n2", "n3")
WAYS: Final = ("gossip", "transfer", "resume")
"""Values of the label ``source`` for messages from other nodes; `transfer` is reconciliation."""

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
            *("--tls-cert", str(cert), "--tls-key", str(key)),
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
