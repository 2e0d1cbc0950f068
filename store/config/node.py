"""The configuration of `storenode run`, and what must hold between its options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import click

from store.config import options as most
from store.config.options import access, data, limit, listener, messages, peers, running
from store.domain.quota import DEFAULT_UNSENT_BYTES, ClientLimits
from storenode.cli.options.types import (
    ADDRESS,
    DURATION,
    DURATION_OR_ALL,
    DURATION_OR_OFF,
    PEER,
    POSITIVE_DURATION,
    SETTING,
    SIZE,
    SWITCH,
    Address,
    Peer,
    size_up_to,
)
from storenode.cli.options.units import format_size
from storenode.message.limits import MAX_MESSAGE_BYTES

LISTENERS: Final = ("listen", "peer", "admin", "metrics", "http")
"""Names of the listeners, as `--insecure` and the ready line call them."""

_USUAL: Final = ClientLimits()
_PATH: Final = click.Path(path_type=Path)
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


def _file(what: str) -> Any:  # noqa: ANN401 - as `dataclasses.field`
    return access(what, _PATH, metavar="FILE")


def _share(what: str, default: int | None) -> Any:  # noqa: ANN401
    return limit(
        f"{what} of one client; the token file may set others.", click.IntRange(1), default
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The options of `storenode run`, parsed: durations in nanoseconds, sizes in bytes.

    A field declares its option, which is named after it; `None` stands for off, all, or not given.
    """

    data_dir: Path = data(
        "Directory of the node: its embedded Postgres, its node ID. One node at a time.",
        _PATH,
        "./storenode-data",
        metavar="DIR",
    )
    database_url: str | None = data(
        "Use this Postgres (14 or newer) instead of an embedded one; libpq's form, also with"
        " several hosts. Set STORENODE_DATABASE_URL rather than the flag when it holds a password.",
        metavar="URL",
        secret=True,
    )
    read_only: bool = data(
        "Serve reads alone, from the one Postgres of --database-url, which may be a standby.",
        is_flag=True,
    )
    postgres_setting: tuple[tuple[str, str], ...] = data(
        "Setting of the embedded Postgres, such as shared_buffers=1GB; repeatable.",
        SETTING,
        multiple=True,
    )
    min_free_disk: int = data(
        "Free space on the disk of the embedded database below which nothing more is stored.",
        SIZE,
        "128MiB",
    )
    start_timeout: int = data(
        "How long to wait for the database at startup.", POSITIVE_DURATION, "30s"
    )

    listen: Address = listener(
        "Address for clients; port 0 picks a free one.", ADDRESS, "127.0.0.1:7420"
    )
    peer_listen: Address | None = listener(
        "Address for other nodes; with TLS it must be given, without TLS it is that of"
        " --listen unless given.",
        ADDRESS,
    )
    admin_listen: Address = listener("Address for operators.", ADDRESS, "127.0.0.1:7421")
    metrics_listen: Address = listener(
        "Address of /metrics, /healthz, /readyz and the page /status, plain HTTP.",
        ADDRESS,
        "127.0.0.1:7422",
    )
    metrics_allow_host: tuple[str, ...] = listener(
        "Name by which browsers may call --metrics-listen, such as node.example; * for any;"
        " repeatable. Without it: IP addresses and localhost alone.",
        metavar="NAME",
        multiple=True,
    )
    http_listen: Address | None = listener(
        "Address for clients over HTTP: /api/v1, nwaku's /store/v3/messages, Connect; off unless"
        " given.",
        ADDRESS,
    )
    http_allow_origin: tuple[str, ...] = listener(
        "Origin, such as https://app.example, whose pages may call --http-listen; * for all;"
        " repeatable.",
        metavar="ORIGIN",
        multiple=True,
    )
    http_allow_host: tuple[str, ...] = listener(
        "Name by which --http-listen may be called, such as node.example; * for any; repeatable."
        " Without it: any name with TLS or tokens, else IP addresses and localhost alone.",
        metavar="NAME",
        multiple=True,
    )
    insecure: frozenset[str] = listener(
        "Allow plaintext connections to this listener beyond loopback; repeatable.",
        click.Choice(LISTENERS),
        multiple=True,
    )

    tls_cert: Path | None = _file(
        "Certificate chain (PEM); enables TLS on all gRPC listeners and on --http-listen."
    )
    tls_key: Path | None = _file("Private key (PEM) of --tls-cert.")
    tls_ca: Path | None = _file("Authorities (PEM) that sign the certificates of peers.")
    client_ca: Path | None = _file(
        "Authorities (PEM): clients and operators must show a certificate signed by one."
    )
    allow_peer: frozenset[str] = access(
        "Node ID (first DNS name of its certificate) that may call --peer-listen; repeatable."
        " Without TLS on loopback only, where names are believed.",
        metavar="ID",
        multiple=True,
    )
    client_token_file: Path | None = _file(
        "Tokens, rights and limits of clients (TOML); without it any client may do everything"
        " but administer."
    )

    cluster: int = messages(
        "Cluster that the shards belong to.", click.IntRange(0, most.MAX_CLUSTER), 1
    )
    shard: frozenset[int] = messages(
        "Accept only topics of this shard; repeatable. None: every topic is accepted.",
        click.IntRange(0, most.MAX_SHARD),
        multiple=True,
    )
    max_clock_drift: int | None = messages(
        "How far a publisher's timestamp may be from this node's clock.", DURATION_OR_OFF, "20s"
    )
    max_message_size: int = messages(
        "Size of one encoded message, all fields.",
        size_up_to(most.LARGEST_MESSAGE_BYTES),
        format_size(MAX_MESSAGE_BYTES),
    )
    retention: int | None = messages(
        "Age at which messages are dropped, a whole partition (a day) at a time.",
        DURATION_OR_OFF,
        "30d",
    )
    retention_size: int | None = messages(
        "Size of the store beyond which the oldest partitions are dropped.", SIZE
    )
    retention_confirm: bool = messages(
        "Drop at this start what --retention and --retention-size do not keep, however much it is."
        " Without it, a node does not start with a lower limit that would drop more than a tenth of"
        " the store, or a week.",
        is_flag=True,
    )
    maintenance_interval: int = messages(
        "How often to create partitions and drop old ones; for tests.",
        POSITIVE_DURATION,
        "1m",
        hidden=True,
    )
    retention_requires_archive: bool = messages(
        "Drop a partition only when `storenode pipeline archive` has archived all its hours.",
        is_flag=True,
    )

    max_requests_per_second: int = _share("Requests a second", _USUAL.requests_per_second)
    max_messages_per_second: int = _share("Published messages a second", _USUAL.messages_per_second)
    max_calls: int = _share("Calls at one time", _USUAL.concurrent_calls)
    max_streams: int = _share("Streams at one time, idle followers too,", _USUAL.concurrent_streams)

    max_unsent_size: int = limit(
        "Memory for all answers that clients have not taken yet; who stalls is ended first.",
        size_up_to(most.LARGEST_UNSENT_BYTES),
        format_size(DEFAULT_UNSENT_BYTES),
    )
    max_connections: int = limit(
        "Connections to one gRPC listener, and to --http-listen; a quarter of it from one host.",
        click.IntRange(1, most.LARGEST_CONNECTIONS),
        most.DEFAULT_CONNECTIONS,
    )

    peer: tuple[Peer, ...] = peers("Another node; repeatable.", PEER, multiple=True)
    sync_interval: int = peers(
        "How often to reconcile with a peer, and every twelfth time the whole history; 0 disables"
        " it.",
        DURATION,
        "5m",
    )
    sync_range: int | None = peers("How far back a reconciliation looks.", DURATION_OR_ALL, "1h")
    sync_offset: int = peers(
        "How much of the most recent time a reconciliation excludes.", DURATION, "20s"
    )
    peer_silence: int = peers(
        "How long a peer may be silent in a session; use the same value on all nodes.",
        POSITIVE_DURATION,
        "60s",
    )
    max_confirms: int = peers(
        "Stores that must hold a message before it counts as confirmed.", click.IntRange(0), 0
    )
    gossip: bool = peers("Exchange messages with peers as they arrive.", SWITCH, "on")

    database_connections: int = running(
        "Connections to the database, at most: a fifth for publishing, two for look-ups, two for"
        " scans.",
        click.IntRange(most.FEWEST_DATABASE_CONNECTIONS, most.MAX_DATABASE_CONNECTIONS),
        15,
    )
    drain_timeout: int = running(
        "How long calls in progress may continue after SIGTERM.", DURATION, "30s"
    )
    log_format: str | None = running(
        "Format of the log on standard error.",
        click.Choice(("text", "json")),
        show_default="text on a terminal, else json",
    )
    log_level: str = running(
        "Minimum level to log.", click.Choice(("debug", "info", "warning", "error")), "info"
    )

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> NodeConfig:
        """Take over what the command line parsed, and check it.

        Raises:
            click.UsageError: Options contradict each other.
        """
        config = cls.parse(options)
        for problem in config.problems():
            raise click.UsageError(problem)
        return config

    @classmethod
    def parse(cls, options: dict[str, Any]) -> NodeConfig:
        """Take over what the command line parsed, unchecked."""
        values = {each.name: options[each.name] for each in fields(cls)}
        for name in ("insecure", "allow_peer", "shard"):
            values[name] = frozenset(values[name])
        return cls(**values)

    @property
    def pool_sizes(self) -> tuple[int, int, int]:
        """The database connections for publishing, for lookups and pages, and for scans."""
        writes = max(1, self.database_connections // 5)
        reads = (self.database_connections - writes) // 2
        return writes, reads, self.database_connections - writes - reads

    @property
    def max_connections_per_host(self) -> int:
        """The connections from one host to all listeners; of more the newest are closed."""
        return min(self.max_connections, max(64, self.max_connections // 4))

    @property
    def tls(self) -> bool:
        """True when the gRPC listeners speak TLS."""
        return self.tls_cert is not None

    @property
    def listeners(self) -> dict[str, Address]:
        """The addresses to listen on, by their options."""
        given = {
            "--listen": self.listen,
            "--peer-listen": self.peer_listen,
            "--admin-listen": self.admin_listen,
            "--metrics-listen": self.metrics_listen,
            "--http-listen": self.http_listen,
        }
        return {option: address for option, address in given.items() if address is not None}

    @property
    def http_hosts(self) -> frozenset[str]:
        """Names by which --http-listen may be called, ``*`` for any.

        A page that was led here by its own name has no token, and the certificate is not its own.
        """
        allowed = set(map(str.lower, self.http_allow_host))
        if not allowed and (self.tls or self.client_token_file is not None):
            allowed.add("*")
        own = () if self.http_listen is None else (self.http_listen.host.lower(),)
        return frozenset(allowed.union(own))

    @property
    def metrics_hosts(self) -> frozenset[str]:
        """Names by which browsers may call --metrics-listen, ``*`` for any."""
        return frozenset(map(str.lower, (*self.metrics_allow_host, self.metrics_listen.host)))

    @property
    def separate_peer_listener(self) -> bool:
        """True when peers have a listener that is not the clients'."""
        peer = self.peer_listen
        return peer is not None and (peer != self.listen or peer.port == 0)

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each contradiction between options."""
        half_tls = (self.tls_cert is None) != (self.tls_key is None)
        given, missing = ("cert", "key") if self.tls_cert else ("key", "cert")
        needs_tls = self.allow_peer and not self.tls
        reconciles = bool(self.peer) and self.sync_interval > 0
        keeps_all = (self.retention, self.retention_size) == (None, None)
        if self.read_only and self.database_url is None:
            yield "--read-only needs --database-url: name the Postgres, or its standby, to read."
        if self.read_only and self.peer:
            yield (
                "--peer is given with --read-only: a node that stores nothing has no peers; let"
                " the nodes that take writes have them."
            )
        if half_tls:
            yield f"--tls-{given} is given without --tls-{missing}: give both, or neither."
        if self.tls and not half_tls and self.peer_listen is None:
            yield (
                "--peer-listen must be given with --tls-cert, because peers show certificates and"
                " clients do not: name an address of its own for peers."
            )
        if self.client_ca is not None and self.tls_cert is None and not half_tls:
            yield "--client-ca needs --tls-cert and --tls-key: clients show certificates over TLS."
        if needs_tls and not (self.peer_listen or self.listen).loopback:
            yield (
                "--allow-peer needs --tls-cert, --tls-key and --tls-ca beyond loopback: without"
                " certificates a peer's name is only a claim."
            )
        if self.allow_peer and self.tls and self.tls_ca is None:
            yield "--allow-peer needs --tls-ca: name the authority that signs peers' certificates."
        if self.postgres_setting and self.database_url is not None:
            yield (
                "--postgres-setting is given with --database-url: it is for the embedded database;"
                " set it in the configuration of your Postgres."
            )
        if self.retention_requires_archive and keeps_all:
            yield (
                "--retention-requires-archive is given, and nothing is dropped without --retention"
                " or --retention-size: give one of them, or leave it out."
            )
        if reconciles and self.sync_range is not None and self.sync_range <= self.sync_offset:
            yield (
                "--sync-range is not longer than --sync-offset, which is the most recent part of it"
                " that is left out: nothing would be reconciled; give a longer range."
            )
        if self.max_confirms and not self.gossip:
            yield (
                "--max-confirms is given with --gossip off: peers confirm by gossip; switch it on,"
                " or leave --max-confirms out."
            )
        yield from self._problems_of_addresses()
        yield from self._problems_of_names()

    def _problems_of_addresses(self) -> Iterator[str]:
        known: dict[tuple[str, int], str] = {}
        for flag, address in self.listeners.items():
            name = flag.removeprefix("--").removesuffix("-listen")
            speaks_tls = self.tls and name != "metrics"
            if not (address.loopback or speaks_tls or name in self.insecure):
                way = (
                    "listen on 127.0.0.1" if name == "metrics" else "give --tls-cert and --tls-key"
                )
                yield (
                    f"{flag} {address} can be reached from other machines and would speak in clear:"
                    f" {way}, or allow it with --insecure {name}."
                )
            if address.port == 0 or (name == "peer" and not self.separate_peer_listener):
                continue
            other = known.setdefault((address.host, address.port), flag)
            if other != flag:
                yield f"{other} and {flag} are both {address}: give each an address of its own."
        if self.tls and self.peer_listen == self.listen and self.listen.port != 0:
            yield (
                f"--listen and --peer-listen are both {self.listen}: with TLS, peers need an"
                " address of their own."
            )
        for peer in self.peer:
            if peer.address in (self.listen, self.peer_listen):
                yield f"--peer {peer.address} is this node's own address: name other nodes."

    def _problems_of_names(self) -> Iterator[str]:
        for flag, given in (
            ("--http-allow-origin", self.http_allow_origin),
            ("--http-allow-host", self.http_allow_host),
        ):
            if given and self.http_listen is None:
                yield f"{flag} needs --http-listen: give an address, or leave it out."
        for origin in self.http_allow_origin:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                yield (
                    f"--http-allow-origin {origin} is no origin: give scheme, host and port alone,"
                    " such as https://app.example, or *."
                )
        for flag, names in (
            ("--http-allow-host", self.http_allow_host),
            ("--metrics-allow-host", self.metrics_allow_host),
        ):
            for name in names:
                if name != "*" and not _HOST.fullmatch(name):
                    yield (
                        f"{flag} {name} is no name of a host: give it without scheme and port,"
                        " such as node.example, or *."
                    )
