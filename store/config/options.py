"""The options of `storenode run`, with their defaults and help texts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from store.config.node import LISTENERS, MAX_CLUSTER, MAX_SHARD
from store.config.request_options import REQUEST_OPTIONS
from store.domain.quota import (
    DEFAULT_CALLS,
    DEFAULT_MESSAGES_PER_S,
    DEFAULT_RECEIVED_BYTES_PER_S,
    DEFAULT_REQUESTS_PER_S,
    DEFAULT_STREAMS,
)
from storenode.cli.options.layers import option
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
    size_up_to,
)
from storenode.cli.options.units import format_size
from storenode.message.limits import (
    MAX_MESSAGE_BYTES,
    MAX_META_BYTES,
    MAX_REQUEST_BYTES,
    MAX_TOPIC_BYTES,
)

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_LOG_FORMATS: Final = ("text", "json")
_LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_MAX_CONNECTIONS: Final = 1_000
LARGEST_MESSAGE_BYTES: Final = 3 * 1024 * 1024
"""A message must fit into a response, and gRPC clients take 4 MiB by default."""

LARGEST_TOPIC_BYTES: Final = 2 * 1024
"""A topic must fit into an index entry of Postgres, at most 2,704 bytes."""

_path = functools.partial(click.Path, path_type=Path)
_file = functools.partial(option, type=_path(), metavar="FILE", section="Access")


def _connections(name: str, default: int, work: str) -> Decorator:
    return option(
        f"--{name}-connections",
        type=click.IntRange(1, _MAX_CONNECTIONS),
        default=default,
        metavar="N",
        show_default=True,
        section="Running",
        help=f"Database connections for {work}, at most.",
    )


def _size(flag: str, default: int, largest: int, section: str, what: str) -> Decorator:
    return option(
        flag,
        type=size_up_to(largest),
        default=format_size(default),
        show_default=True,
        section=section,
        help=what,
    )


def _count(flag: str, default: int, what: str) -> Decorator:
    return option(
        flag,
        type=click.IntRange(1),
        default=default,
        metavar="N",
        show_default=True,
        section="Limits",
        help=f"{what} of one client; the token file may set others.",
    )


_DATA: Final[tuple[Decorator, ...]] = (
    option(
        "--data-dir",
        type=_path(),
        metavar="DIR",
        default="./storenode-data",
        show_default=True,
        section="Data",
        help="Directory of the node: its embedded Postgres, its node ID. One node at a time.",
    ),
    option(
        "--database-url",
        metavar="URL",
        section="Data",
        help="Use this Postgres (14 or newer) instead of an embedded one; libpq's form, also with"
        " several hosts. Set STORENODE_DATABASE_URL rather than the flag when it holds a password.",
    ),
    option(
        "--postgres-setting",
        type=SETTING,
        multiple=True,
        section="Data",
        help="Setting of the embedded Postgres, such as shared_buffers=1GB; repeatable.",
    ),
    option(
        "--start-timeout",
        type=POSITIVE_DURATION,
        default="30s",
        show_default=True,
        section="Data",
        help="How long to wait for the database at startup.",
    ),
)

_LISTENERS: Final[tuple[Decorator, ...]] = (
    option(
        "--listen",
        type=ADDRESS,
        default="127.0.0.1:7420",
        show_default=True,
        section="Listeners",
        help="Address for clients; port 0 picks a free one.",
    ),
    option(
        "--peer-listen",
        type=ADDRESS,
        section="Listeners",
        help="Address for other nodes; with TLS it must be given, without TLS it is that of"
        " --listen unless given.",
    ),
    option(
        "--admin-listen",
        type=ADDRESS,
        default="127.0.0.1:7421",
        show_default=True,
        section="Listeners",
        help="Address for operators.",
    ),
    option(
        "--metrics-listen",
        type=ADDRESS,
        default="127.0.0.1:7422",
        show_default=True,
        section="Listeners",
        help="Address of /metrics, /healthz, /readyz and the page /status, plain HTTP.",
    ),
    option(
        "--insecure",
        type=click.Choice(LISTENERS),
        multiple=True,
        section="Listeners",
        help="Allow plaintext connections to this listener beyond loopback; repeatable.",
    ),
)

_ACCESS: Final[tuple[Decorator, ...]] = (
    _file("--tls-cert", help="Certificate chain (PEM); enables TLS on all gRPC listeners."),
    _file("--tls-key", help="Private key (PEM) of --tls-cert."),
    _file("--tls-ca", help="Authorities (PEM) that sign the certificates of peers."),
    _file(
        "--client-ca",
        help="Authorities (PEM): clients and operators must show a certificate signed by one.",
    ),
    option(
        "--allow-peer",
        metavar="ID",
        multiple=True,
        section="Access",
        help="Node ID (first DNS name of its certificate) that may call --peer-listen; repeatable.",
    ),
    _file(
        "--client-token-file",
        help="Tokens, rights and limits of clients (TOML); without it any client may do everything"
        " but administer.",
    ),
)

_MESSAGES: Final[tuple[Decorator, ...]] = (
    option(
        "--cluster",
        type=click.IntRange(0, MAX_CLUSTER),
        metavar="N",
        default=1,
        show_default=True,
        section="Messages",
        help="Cluster that the shards belong to.",
    ),
    option(
        "--shard",
        type=click.IntRange(0, MAX_SHARD),
        metavar="N",
        multiple=True,
        section="Messages",
        help="Accept only topics of this shard; repeatable. None: every topic is accepted.",
    ),
    option(
        "--max-clock-drift",
        type=DURATION_OR_OFF,
        default="20s",
        show_default=True,
        section="Messages",
        help="How far a publisher's timestamp may be from this node's clock.",
    ),
    _size(
        "--max-message-size",
        MAX_MESSAGE_BYTES,
        LARGEST_MESSAGE_BYTES,
        "Messages",
        "Size of one encoded message, all fields.",
    ),
    _size(
        "--max-meta-size",
        MAX_META_BYTES,
        MAX_MESSAGE_BYTES,
        "Messages",
        "Size of a message's `meta` field.",
    ),
    _size(
        "--max-topic-size",
        MAX_TOPIC_BYTES,
        LARGEST_TOPIC_BYTES,
        "Messages",
        "Size of a pubsub or content topic, as UTF-8.",
    ),
    option(
        "--retention",
        type=DURATION_OR_OFF,
        default="30d",
        show_default=True,
        section="Messages",
        help="Age at which messages are dropped, a whole partition (a day) at a time.",
    ),
    option(
        "--retention-size",
        type=SIZE,
        section="Messages",
        help="Size of the store beyond which the oldest partitions are dropped.",
    ),
    option(
        "--retention-interval",
        type=POSITIVE_DURATION,
        default="1m",
        show_default=True,
        section="Messages",
        help="How often to create partitions ahead of time and drop old ones.",
    ),
    option(
        "--retention-lock-timeout",
        type=POSITIVE_DURATION,
        default="250ms",
        show_default=True,
        section="Messages",
        help="How long a drop may wait for locks, which blocks other queries, before it gives up.",
    ),
    option(
        "--retention-requires-archive",
        is_flag=True,
        section="Messages",
        help="Drop a partition only when `storenode pipeline archive` has archived all its hours.",
    ),
)

_PEERS: Final[tuple[Decorator, ...]] = (
    option("--peer", type=PEER, multiple=True, section="Peers", help="Another node; repeatable."),
    option(
        "--sync-interval",
        type=DURATION,
        default="5m",
        show_default=True,
        section="Peers",
        help="How often to reconcile with a peer; 0 disables it.",
    ),
    option(
        "--sync-range",
        type=DURATION_OR_ALL,
        default="1h",
        show_default=True,
        section="Peers",
        help="How far back a reconciliation looks.",
    ),
    option(
        "--sync-offset",
        type=DURATION,
        default="20s",
        show_default=True,
        section="Peers",
        help="How much of the most recent time a reconciliation excludes.",
    ),
    option(
        "--wide-sync-interval",
        type=DURATION_OR_OFF,
        default="1h",
        show_default=True,
        section="Peers",
        help="How often to reconcile the whole history with a peer.",
    ),
    option(
        "--peer-silence",
        type=POSITIVE_DURATION,
        default="60s",
        show_default=True,
        section="Peers",
        help="How long a peer may be silent in a session; use the same value on all nodes.",
    ),
    option(
        "--max-confirms",
        type=click.IntRange(0),
        metavar="N",
        default=0,
        show_default=True,
        section="Peers",
        help="Stores that must hold a message before it counts as confirmed.",
    ),
    option(
        "--gossip",
        type=SWITCH,
        default="on",
        show_default=True,
        section="Peers",
        help="Exchange messages with peers as they arrive.",
    ),
)

_LIMITS: Final[tuple[Decorator, ...]] = (
    _count("--max-requests-per-second", DEFAULT_REQUESTS_PER_S, "Requests a second"),
    _count("--max-messages-per-second", DEFAULT_MESSAGES_PER_S, "Published messages a second"),
    option(
        "--max-received-per-second",
        type=SIZE,
        default=format_size(DEFAULT_RECEIVED_BYTES_PER_S),
        show_default=True,
        section="Limits",
        help="Bytes of requests a second of one client.",
    ),
    _count("--max-calls", DEFAULT_CALLS, "Calls at one time"),
    _count("--max-streams", DEFAULT_STREAMS, "Streams at one time, idle followers too,"),
    _size(
        "--max-request-size", MAX_REQUEST_BYTES, MAX_REQUEST_BYTES, "Limits", "Size of one request."
    ),
)

_RUNNING: Final[tuple[Decorator, ...]] = (
    _connections("write", 3, "publishing"),
    _connections("read", 6, "look-ups and pages"),
    _connections("bulk", 6, "scans and backlogs"),
    option(
        "--drain-timeout",
        type=DURATION,
        default="30s",
        show_default=True,
        section="Running",
        help="How long calls in progress may continue after SIGTERM.",
    ),
    option(
        "--log-format",
        type=click.Choice(_LOG_FORMATS),
        show_default="text on a terminal, else json",
        section="Running",
        help="Format of the log on standard error.",
    ),
    option(
        "--log-level",
        type=click.Choice(_LOG_LEVELS),
        default="info",
        show_default=True,
        section="Running",
        help="Minimum level to log.",
    ),
    option(
        "--tracing",
        type=SWITCH,
        default="off",
        show_default=True,
        section="Running",
        help="Send OpenTelemetry traces to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names, by"
        " gRPC; needs the extra `tracing`.",
    ),
    option(
        "--trace-sample",
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        show_default="as OTEL_TRACES_SAMPLER says, else 1",
        section="Running",
        help="Share of calls to trace, among those without a trace context from the caller.",
    ),
)

_ALL: Final[tuple[Decorator, ...]] = (
    *_DATA,
    *_LISTENERS,
    *_ACCESS,
    *_MESSAGES,
    *_LIMITS,
    *REQUEST_OPTIONS,
    *_PEERS,
    *_RUNNING,
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command all options of `storenode run`."""
    for decorate in reversed(_ALL):
        command = decorate(command)
    return command
