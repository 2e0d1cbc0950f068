"""Certificates, and a node that demands TLS and tokens, with the files that its clients need."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import trustme

from tests.support.node import NodeProcess, running_node, with_defaults
from tests.support.polling import eventually
from tests.support.postgres import copy_cluster

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Pki:
    """An authority, and the files of what it signs: ``ca.pem``, and ``NAME.pem`` with a key."""

    directory: Path
    authority: trustme.CA = field(default_factory=trustme.CA)

    def issue(
        self, *names: str, file: str = "node", authority: trustme.CA | None = None
    ) -> tuple[Path, Path]:
        """Return a certificate with these names, in this order, and its key; the files of both.

        ``authority``: another one, that signs it.
        """
        leaf = (authority or self.authority).issue_cert(*names)
        cert, key = self.directory / f"{file}.pem", self.directory / f"{file}.key"
        cert.write_bytes(b"".join(part.bytes() for part in leaf.cert_chain_pems))
        key.write_bytes(leaf.private_key_pem.bytes())
        return cert, key

    @property
    def ca(self) -> Path:
        """The authority's own certificate."""
        path = self.directory / "ca.pem"
        path.write_bytes(self.authority.cert_pem.bytes())
        return path

    def peer(self, name: str, *more: str) -> tuple[str, ...]:
        """Return the options of a node that its peers know by a certificate."""
        cert, key = self.issue(name, "127.0.0.1", file=name)
        files = ("--tls-cert", str(cert), "--tls-key", str(key), "--tls-ca", str(self.ca))
        return (*files, *with_defaults(more, "--peer-listen", "127.0.0.1:0"))


def serial(address: str, trust: ssl.SSLContext) -> object:
    """Return the number of the certificate that a listener shows."""
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), TIMEOUT_S) as plain,
        trust.wrap_socket(plain, server_hostname=host) as connection,
    ):
        return (connection.getpeercert() or {})["serialNumber"]


def check_renewal(address: str, trust: ssl.SSLContext, renew: Callable[[], object]) -> None:
    """Renew a certificate; the listener must come to show the new one."""
    first = serial(address, trust)
    renew()
    eventually(lambda: serial(address, trust) != first)


@contextmanager
def secured_node(files: Path, tokens: Mapping[str, Sequence[str]]) -> Iterator[NodeProcess]:
    """Yield a node whose clients have rights by name.

    In `files` are ``ca.pem``, ``NAME.token`` of each client and ``forged.token``, ``client.pem``
    with its key, and the certificate of a foreign authority, ``stranger.pem``.
    """
    pki = Pki(files)
    pki.issue("127.0.0.1", "node-a.example")
    pki.issue("client.example", file="client")
    trustme.CA().cert_pem.write_to_path(str(pki.ca.with_name("stranger.pem")))
    write_tokens(files, tokens)
    options = (
        *("--tls-cert", str(files / "node.pem"), "--tls-key", str(files / "node.key")),
        *("--peer-listen", "127.0.0.1:0", "--client-token-file", str(files / "clients.toml")),
    )
    with running_node(copy_cluster(files / "node"), *options) as node:
        yield node


def token_file(clients: Mapping[str, str]) -> str:
    """Return the text of a token file; the token of a client begins with ``token-of-``."""
    digests = {name: sha256(f"token-of-{name}".encode()).hexdigest() for name in clients}
    entry = '[clients.{}]\ntoken_sha256 = "{}"\n{}\n'
    return "".join(entry.format(name, digests[name], more) for name, more in clients.items())


def write_tokens(files: Path, rights: Mapping[str, Sequence[str]]) -> None:
    """Write the node's token file ``clients.toml``, and the token of each client."""
    files.mkdir(exist_ok=True)
    for name in rights:
        (files / f"{name}.token").write_text(f"token-of-{name}\n")
    (files / "forged.token").write_text("token-of-nobody\n")
    entries = {name: f"rights = {list(each)}" for name, each in rights.items()}
    (files / "clients.toml").write_text(token_file(entries))
