"""A node that demands TLS and tokens, and the files that its clients need."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import trustme

from tests.support.node import NodeProcess, running_node


@contextmanager
def secured_node(files: Path, tokens: Mapping[str, Sequence[str]]) -> Iterator[NodeProcess]:
    """A node whose clients have rights by name.

    In `files` are ``ca.pem``, ``NAME.token`` of each client and ``forged.token``, ``client.pem``
    with its key, and the certificate of a foreign authority, ``stranger.pem``.
    """
    write_certificates(files)
    write_tokens(files, tokens)
    options = (
        *("--tls-cert", str(files / "node.pem"), "--tls-key", str(files / "node.key")),
        *("--peer-listen", "127.0.0.1:0", "--client-token-file", str(files / "clients.toml")),
    )
    with running_node(files / "node", *options) as node:
        yield node


def write_certificates(files: Path) -> None:
    """The authority's certificate, and those that it has signed."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(files / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(files / "stranger.pem"))
    write_identity(files, "node", authority.issue_cert("127.0.0.1", "node-a.example"))
    write_identity(files, "client", authority.issue_cert("client.example"))


def write_identity(files: Path, name: str, issued: trustme.LeafCert) -> None:
    """A certificate with its key."""
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(files / f"{name}.pem"), append=True)
    issued.private_key_pem.write_to_path(str(files / f"{name}.key"))


def write_tokens(files: Path, tokens: Mapping[str, Sequence[str]]) -> None:
    """The clients' tokens, and the node's file about them."""
    text = ""
    for name, rights in tokens.items():
        token = f"token-of-{name}"
        (files / f"{name}.token").write_text(token + "\n")
        digest = hashlib.sha256(token.encode()).hexdigest()
        text += f'[clients.{name}]\ntoken_sha256 = "{digest}"\nrights = {list(rights)}\n'
    (files / "forged.token").write_text("token-of-nobody\n")
    (files / "clients.toml").write_text(text)
