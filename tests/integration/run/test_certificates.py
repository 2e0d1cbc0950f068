"""Certificates of nodes, peers and clients: calls with one that is not valid are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtensionOID, NameOID
from grpc_health.v1.health_pb2 import HealthCheckResponse

from storenode.wire.storenode.v1.store_pb2 import ScanRequest
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from tests.integration.run.helpers import health_of, log_lines
from tests.support.credentials import Pki
from tests.support.node import NodeProcess, running_node
from tests.support.polling import eventually

PEER: Final = "b.nodes.example"
DAY: Final = timedelta(days=1)
UNREACHABLE: Final = grpc.StatusCode.UNAVAILABLE
FORBIDDEN: Final = grpc.StatusCode.PERMISSION_DENIED
NAMELESS: Final = grpc.StatusCode.UNAUTHENTICATED


@dataclass(frozen=True)
class Signer:
    """A signer of certificates: a name and a key."""

    name: x509.Name
    key: ec.EllipticCurvePrivateKey


def common_name(text: str) -> x509.Name:
    """Return a subject."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def dns(*names: bytes) -> x509.UnrecognizedExtension:
    """Return subject alternative names of any bytes, which the library refuses (RFC 5280)."""
    body = b"".join(b"\x82" + _length(len(name)) + name for name in names)
    oid = ExtensionOID.SUBJECT_ALTERNATIVE_NAME
    return x509.UnrecognizedExtension(oid, b"\x30" + _length(len(body)) + body)


def _length(size: int) -> bytes:
    data = size.to_bytes((size.bit_length() + 7) // 8, "big") or b"\0"
    return data if size < 128 else bytes((128 + len(data),)) + data


@dataclass(frozen=True)
class Maker:
    """Makes certificates, and files of them."""

    directory: Path
    signer: Signer

    def make(
        self,
        names: x509.ExtensionType | None,
        *,
        subject: str = "node",
        starts: timedelta = -DAY,
        ends: timedelta = DAY,
        signer: Signer | None = None,
        authority: bool = False,
    ) -> tuple[Path, Path]:
        """Return a certificate and its key. ``signer``: who signs it, by default the authority."""
        key = self.signer.key if authority else ec.generate_private_key(ec.SECP256R1())
        by, now = signer or self.signer, datetime.now(UTC)
        if by.name == common_name("itself"):
            by = Signer(common_name(subject), key)
        builder = (
            x509.CertificateBuilder()
            .subject_name(self.signer.name if authority else common_name(subject))
            .issuer_name(by.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + starts)
            .not_valid_after(now + ends)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        name = self.directory / f"{len(list(self.directory.iterdir()))}.pem"
        name.write_bytes(builder.sign(by.key, hashes.SHA256()).public_bytes(Encoding.PEM))
        secret = name.with_suffix(".key")
        form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        secret.write_bytes(key.private_bytes(*form))
        return name, secret


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """Return an authority that the node trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Maker(tmp_path_factory.mktemp("odd"), Signer(common_name("authority"), key))


@pytest.fixture(scope="module")
def authority(maker: Maker) -> Path:
    """Return the certificate of the authority."""
    return maker.make(None, authority=True)[0]


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory,
    new_store: Callable[[], str],
    maker: Maker,
    authority: Path,
) -> Iterator[NodeProcess]:
    """Yield a node that lets one peer in."""
    cert, key = maker.make(dns(b"a.nodes.example"))
    with running_node(
        tmp_path_factory.mktemp("node") / "data",
        *("--tls-cert", str(cert), "--tls-key", str(key), "--tls-ca", str(authority)),
        *("--peer-listen", "127.0.0.1:0", "--allow-peer", PEER, "--log-level", "info"),
        database_url=new_store(),
    ) as node:
        yield node


@contextmanager
def channel_of(
    address: str, authority: Path, identity: tuple[Path, Path] | None
) -> Iterator[grpc.Channel]:
    """Open a connection that shows a certificate, if one is given."""
    cert, key = (None, None) if identity is None else (path.read_bytes() for path in identity)
    credentials = grpc.ssl_channel_credentials(authority.read_bytes(), key, cert)
    options = [("grpc.ssl_target_name_override", "a.nodes.example")]
    with grpc.secure_channel(address, credentials, options) as channel:
        yield channel


def code_of(
    node: NodeProcess, authority: Path, identity: tuple[Path, Path] | None, claimed: str = PEER
) -> grpc.StatusCode:
    """Return the status of a scan by a certificate's holder that names itself as the peer."""
    metadata = (
        ("storenode-node-id", claimed),
        ("storenode-store-id", "00000000-0000-0000-0000-000000000001"),
        ("storenode-version", "1"),
    )
    with channel_of(node.peer, authority, identity) as channel:
        call = StoreStub(channel).Scan(ScanRequest(), metadata=metadata, timeout=60)
        with suppress(grpc.RpcError):
            list(call)
        code: grpc.StatusCode = call.code()
        return code


OTHER_KINDS = x509.SubjectAlternativeName(
    [
        x509.IPAddress(ip_address("127.0.0.1")),
        x509.RFC822Name(PEER),
        x509.UniformResourceIdentifier(PEER),
    ]
)
NAMES: dict[str, tuple[x509.ExtensionType | None, grpc.StatusCode]] = {
    "a NUL behind the name": (dns(PEER.encode() + b"\0.evil.example"), FORBIDDEN),
    "a wildcard": (dns(b"*.nodes.example"), FORBIDDEN),
    "capital letters": (dns(PEER.upper().encode()), FORBIDDEN),
    "a dot behind the name": (dns(PEER.encode() + b"."), FORBIDDEN),
    "a space behind the name": (dns(PEER.encode() + b" "), FORBIDDEN),
    "no letters": (dns(b""), FORBIDDEN),
    "no letters at first": (dns(b"", PEER.encode()), FORBIDDEN),
    "bytes that are no text": (dns(b"\xff\xfe\x1b[2J"), NAMELESS),
    "a long name": (dns(b"x" * 4_000), FORBIDDEN),
    "thousands of names": (dns(*[b"%d.example" % each for each in range(5_000)]), FORBIDDEN),
    "the second name": (dns(b"c.nodes.example", PEER.encode()), FORBIDDEN),
    "names of other kinds": (OTHER_KINDS, NAMELESS),
    "only a common name": (None, NAMELESS),
}


@pytest.mark.parametrize(("names", "code"), NAMES.values(), ids=NAMES)
def test_a_certificate_with_another_name_is_refused(
    node: NodeProcess,
    authority: Path,
    maker: Maker,
    names: x509.ExtensionType | None,
    code: grpc.StatusCode,
) -> None:
    assert code_of(node, authority, maker.make(names, subject=PEER)) is code
    assert code_of(node, authority, maker.make(dns(PEER.encode()))) is grpc.StatusCode.OK


def test_an_invalid_certificate_is_refused(
    node: NodeProcess, authority: Path, maker: Maker
) -> None:
    names = dns(PEER.encode())
    cert, key = maker.make(names, subject=PEER)
    secret = load_pem_private_key(key.read_bytes(), None)
    assert isinstance(secret, ec.EllipticCurvePrivateKey)
    leaf = Signer(common_name(PEER), secret)
    stranger = Signer(maker.signer.name, ec.generate_private_key(ec.SECP256R1()))
    wrong = [
        maker.make(names, starts=-3 * DAY, ends=-DAY),
        maker.make(names, starts=DAY, ends=3 * DAY),
        maker.make(names, signer=Signer(common_name("itself"), stranger.key)),
        maker.make(names, signer=stranger),
        maker.make(names, signer=leaf),
    ]
    chain = wrong[-1][0]
    chain.write_bytes(chain.read_bytes() + cert.read_bytes())
    assert [code_of(node, authority, each) for each in (*wrong, None)] == [UNREACHABLE] * 6
    assert code_of(node, authority, (cert, key)) is grpc.StatusCode.OK
    assert code_of(node, authority, (cert, key), "c.nodes.example") is FORBIDDEN
    stranger_s = maker.make(dns(b"c.nodes.example"))
    assert code_of(node, authority, stranger_s, "c.nodes.example") is FORBIDDEN
    lines = log_lines(node.log())
    assert lines, "handshakes that fail do not spoil the log"
    assert "peers_locked_out" not in {line["event"] for line in lines}


SERVING: Final = HealthCheckResponse.SERVING
NODE_NAME: Final = "a.nodes.example"


# Every listener


def channel_to(pki: Pki, address: str, name: str | None = None) -> grpc.Channel:
    """Return a connection that trusts the authority."""
    credentials = grpc.ssl_channel_credentials(pki.authority.cert_pem.bytes())
    options = [("grpc.ssl_target_name_override", name)] if name else []
    return grpc.secure_channel(address, credentials, options)


def test_every_grpc_listener_speaks_tls_and_the_certificate_names_the_node(
    tmp_path: Path, database_url: str
) -> None:
    pki = Pki(tmp_path)
    cert, key = pki.issue(NODE_NAME, "also.example", "127.0.0.1")
    options = (
        *("--tls-cert", str(cert), "--tls-key", str(key), "--tls-ca", str(pki.ca)),
        *("--peer-listen", "127.0.0.1:0"),
    )
    with running_node(tmp_path / "data", *options, database_url=database_url) as node:
        assert node.ready["node_id"] == NODE_NAME
        assert len({node.listen, node.peer, node.admin}) == 3
        for address in (node.listen, node.admin):
            with channel_to(pki, address) as channel:
                assert health_of(channel) == SERVING
            with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
                health_of(channel)
        assert not (tmp_path / "data" / "node-id").exists()
        warnings = [line for line in log_lines(node.log()) if line["event"] == "peers_locked_out"]
        assert len(warnings) == 1
        assert "--allow-peer" in warnings[0]["reason"]
        # A renewed certificate is used without a restart, and a damaged one is not.
        pki.issue("renewed.example")
        eventually(lambda: is_named(pki, node, "renewed.example"))
        (tmp_path / "node.pem").write_text("damaged")
        with channel_to(pki, node.listen, name="renewed.example") as channel:
            assert health_of(channel) == SERVING


def is_named(pki: Pki, node: NodeProcess, name: str) -> bool:
    """Return True if a handshake shows a name."""
    try:
        with channel_to(pki, node.listen, name=name) as channel:
            return bool(health_of(channel) == SERVING)
    except grpc.RpcError:
        return False
