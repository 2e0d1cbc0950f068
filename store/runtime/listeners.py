"""The listeners of a node: which services are where, and who may call them."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, Union

from store.config.node import NodeConfig
from store.observe.logging import get_logger
from store.rpc.call import ListenerKind, RpcContext
from store.rpc.identity import PeerRules
from store.rpc.listeners import Listener, bind
from store.rpc.server import build_handlers
from store.serving.addresses import ListenerAddress
from store.serving.tls import TlsFiles

if TYPE_CHECKING:
    from store.http.listener import HttpListener

_LOG = get_logger("store.runtime.listeners")

RESERVED_DESCRIPTORS: Final = 256
"""The file descriptors that are reserved for the database, files and outgoing calls."""

Listeners: TypeAlias = Mapping[str, Union[Listener, "HttpListener"]]
"""The servers by their names in the ready line; two names may have the same."""


def listener_addresses(config: NodeConfig) -> Mapping[str, ListenerAddress]:
    """Return the addresses of all listeners, by their options."""
    return {
        option: ListenerAddress(option, address.host, address.port)
        for option, address in config.listeners.items()
        if option != "--peer-listen" or config.separate_peer_listener
    }


def bind_listeners(config: NodeConfig, base: RpcContext) -> Listeners:
    """Bind every listener but that of metrics; `base` is what they have in common.

    Raises:
        BindError: An address cannot be listened on.
        TlsError: A certificate cannot be used.
    """
    addresses, connections = listener_addresses(config), _connections(config)
    for_clients = tls_files(config, config.client_ca)
    # Without an authority no peer can be told from another, and none is allowed: the node's own
    # certificate stands in, so that the listener demands a certificate nevertheless.
    for_peers = tls_files(config, config.tls_ca or config.tls_cert)
    rules = PeerRules(
        tls=config.tls,
        insecure="peer" in config.insecure,
        allowed=config.allow_peer,
        tokens=config.client_token_file is not None,
    )
    _warn_of_locked_out_peers(config)

    def bound(
        kind: ListenerKind,
        option: str,
        tls: TlsFiles | None,
        peers: PeerRules | None = None,
        *,
        open_admin: bool = False,
    ) -> Listener:
        context, is_peers = replace(base, peers=peers, open_admin=open_admin), peers is not None
        services = partial(build_handlers, kind, context)
        return bind(addresses[option], services, tls, connections=connections, peers=is_peers)

    is_separate = "--peer-listen" in addresses
    client = bound("client", "--listen", for_clients, None if is_separate else rules)
    peer = bound("peer", "--peer-listen", for_peers, rules) if is_separate else client
    is_open = config.admin_listen.loopback
    admin = bound("admin", "--admin-listen", for_clients, open_admin=is_open)
    listeners: dict[str, Listener | HttpListener] = {"listen": client, "peer": peer, "admin": admin}
    if config.http_listen is not None:
        # Its libraries take 20 MB, which a node without this listener does without.
        from store.http import listener as http  # noqa: PLC0415
        from store.http.app import build_app  # noqa: PLC0415
        from store.http.sites import Sites  # noqa: PLC0415

        app = build_app(base, Sites(config.http_allow_origin, config.http_hosts))
        listeners["http"] = http.bind(
            addresses["--http-listen"], app, for_clients, connections, base.metrics
        )
    return listeners


def _connections(config: NodeConfig) -> int:
    """Return the connections to one listener, and raise the limit of descriptors for them."""
    listeners = 2 + config.separate_peer_listener + (config.http_listen is not None)
    wanted = config.max_connections * listeners + RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
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


def tls_files(config: NodeConfig, authority: Path | None) -> TlsFiles | None:
    """Return the node's certificate and key, and an authority for others; None without TLS."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    return TlsFiles(config.tls_cert, config.tls_key, authority)
