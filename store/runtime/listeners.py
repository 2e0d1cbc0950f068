"""The listeners of a node: which services are where, and who may call them."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from store.config.node import NodeConfig
from store.observe.logging import get_logger
from store.rpc.call import ListenerKind, RpcContext
from store.rpc.identity import PeerRules
from store.rpc.listeners import Listener, bind
from store.rpc.server import build_handlers
from store.serving.addresses import ListenerAddress
from store.serving.context import NodeContext
from store.serving.sockets import ConnectionLimiter
from store.serving.tls import TlsFiles
from storenode.cli.options.types import Address

if TYPE_CHECKING:
    from store.http.listener import HttpListener

_LOG = get_logger("store.runtime.listeners")

RESERVED_DESCRIPTORS: Final = 256
"""Of the process, for all but connections of callers: the database, files, and calls of others."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """The servers; `peer` is that of the clients when peers have none of their own."""

    client: Listener
    peer: Listener
    admin: Listener
    http: HttpListener | None

    @property
    def all(self) -> Sequence[Listener | HttpListener]:
        """The servers, each once."""
        peer = () if self.peer is self.client else (self.peer,)
        http = () if self.http is None else (self.http,)
        return (self.client, *peer, self.admin, *http)

    async def stop(self, grace_s: float) -> None:
        """Stop all servers together, so that their times of grace are one."""
        await asyncio.gather(*(each.stop(grace_s) for each in self.all))

    def connection_limiter(self, config: NodeConfig) -> ConnectionLimiter:
        """Return the limiter of the connections of one host to all of them."""
        ports = {int(each.address.rpartition(":")[2]) for each in self.all}
        return ConnectionLimiter(ports, config.max_connections_per_host)


def listener_addresses(config: NodeConfig) -> Sequence[ListenerAddress]:
    """Return the addresses of all listeners."""
    given = (
        ("--listen", config.listen),
        ("--peer-listen", config.peer_listen if config.separate_peer_listener else None),
        ("--admin-listen", config.admin_listen),
        ("--metrics-listen", config.metrics_listen),
        ("--http-listen", config.http_listen),
    )
    return [_where(option, address) for option, address in given if address is not None]


def bind_listeners(config: NodeConfig, base: RpcContext) -> Listeners:
    """Bind every listener; `base` is what they have in common.

    Raises:
        BindError: An address cannot be listened on.
        TlsError: A certificate cannot be used.
    """
    _warn_of_locked_out_peers(config)
    connections = _connections(config)
    rules = _peer_rules(config)
    shared = not config.separate_peer_listener

    def bound(
        kind: ListenerKind, option: str, address: Address, *, open_admin: bool = False
    ) -> Listener:
        serves_peers = kind == "peer" or (kind == "client" and shared)
        context = replace(base, peers=rules if serves_peers else None, open_admin=open_admin)
        return bind(
            _where(option, address),
            build_handlers(kind, context),
            _peer_tls(config) if kind == "peer" else tls_files(config, config.client_ca),
            connections=connections,
            peers=serves_peers,
        )

    client = bound("client", "--listen", config.listen)
    peer = client
    if not shared and config.peer_listen is not None:
        peer = bound("peer", "--peer-listen", config.peer_listen)
    is_open = config.admin_listen.loopback
    admin = bound("admin", "--admin-listen", config.admin_listen, open_admin=is_open)
    return Listeners(client, peer, admin, _bind_http(config, base, connections))


def _bind_http(config: NodeConfig, context: NodeContext, most: int) -> HttpListener | None:
    if config.http_listen is None:
        return None
    # Its libraries take 20 MB, which a node without this listener does without.
    from store.http import listener as http  # noqa: PLC0415
    from store.http.app import build_app  # noqa: PLC0415
    from store.http.connections import OpenConnections  # noqa: PLC0415
    from store.http.sites import Sites  # noqa: PLC0415

    connections = OpenConnections(most, context.metrics)
    sites = Sites(config.http_allow_origin, config.http_hosts)
    app = build_app(context, sites=sites, with_page=True)
    where = _where("--http-listen", config.http_listen)
    return http.bind(where, app, tls_files(config, config.client_ca), connections)


def _connections(config: NodeConfig) -> int:
    """Return the connections to one listener, and raise the limit of descriptors for them."""
    listeners = 2 + config.separate_peer_listener + (config.http_listen is not None)
    wanted = config.max_connections * listeners + RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < wanted:
        soft = wanted if hard == unlimited else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == unlimited or soft >= wanted:
        return config.max_connections
    most = max(1, (soft - RESERVED_DESCRIPTORS) // listeners)
    _LOG.warning(
        "connections_reduced",
        to=most,
        reason=f"the limit of open files is too low for --max-connections"
        f" {config.max_connections} on each listener: raise it (LimitNOFILE), or lower the option",
    )
    return most


def _warn_of_locked_out_peers(config: NodeConfig) -> None:
    if not config.tls or (config.tls_ca is not None and config.allow_peer):
        return
    missing = "--allow-peer" if config.tls_ca is not None else "--tls-ca and --allow-peer"
    _LOG.warning(
        "peers_locked_out",
        reason=f"without {missing} the peer listener lets no node in: give them if peers are to"
        " call this node",
    )


def _peer_rules(config: NodeConfig) -> PeerRules:
    return PeerRules(
        tls=config.tls,
        insecure="peer" in config.insecure,
        allowed=config.allow_peer,
        tokens=config.client_token_file is not None,
    )


def _where(option: str, address: Address) -> ListenerAddress:
    return ListenerAddress(option, address.host, address.port)


def tls_files(config: NodeConfig, authority: Path | None) -> TlsFiles | None:
    """Return the node's certificate and key, and an authority for others; None without TLS."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    return TlsFiles(config.tls_cert, config.tls_key, authority)


def _peer_tls(config: NodeConfig) -> TlsFiles | None:
    # Without an authority no peer can be told from another, and none is allowed: the node's own
    # certificate stands in, so that the listener demands a certificate all the same.
    return tls_files(config, config.tls_ca or config.tls_cert)
