"""The configuration of `storenode run`, and what must hold between its options."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from store.domain.limits import RESULT_BYTES, least_response_bytes
from storenode.cli.options.types import Address, Peer
from storenode.cli.options.units import format_size

LISTENERS: Final = ("listen", "peer", "admin", "metrics")
"""Names of the listeners, as `--insecure` and the ready line call them."""

MAX_CLUSTER: Final = 65_535
MAX_SHARD: Final = 65_535


class ConfigError(Exception):
    """Options that contradict each other; one sentence that says which and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Every option of `storenode run`, parsed: durations in nanoseconds, sizes in bytes.

    The fields are named after the options; `None` stands for off, all, or not given.
    """

    data_dir: Path
    database_url: str | None = field(repr=False)
    postgres_setting: tuple[tuple[str, str], ...]
    start_timeout: int

    listen: Address
    peer_listen: Address | None
    admin_listen: Address
    metrics_listen: Address
    insecure: frozenset[str]

    tls_cert: Path | None
    tls_key: Path | None
    tls_ca: Path | None
    client_ca: Path | None
    allow_peer: frozenset[str]
    client_token_file: Path | None

    cluster: int
    shard: frozenset[int]
    max_clock_drift: int | None
    max_message_size: int
    max_meta_size: int
    max_topic_size: int

    retention: int | None
    retention_size: int | None
    retention_interval: int
    retention_lock_timeout: int
    retention_requires_archive: bool

    peer: tuple[Peer, ...]
    sync_interval: int
    sync_range: int | None
    sync_offset: int
    wide_sync_interval: int | None
    peer_silence: int
    max_confirms: int
    gossip: bool

    max_requests_per_second: int
    max_messages_per_second: int
    max_received_per_second: int
    max_calls: int
    max_streams: int
    max_request_size: int

    max_batch_messages: int
    max_response_size: int
    default_page_limit: int
    max_page_limit: int
    max_query_hashes: int
    max_query_topics: int
    max_sds_entries: int
    max_sds_claimants: int
    max_causal_heads: int
    max_causal_known_ids: int
    max_causal_messages: int

    write_connections: int
    read_connections: int
    bulk_connections: int
    drain_timeout: int
    log_format: str | None
    log_level: str
    tracing: bool
    trace_sample: float | None

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> NodeConfig:
        """Take over what the command line parsed, and check it.

        Raises:
            ConfigError: Options contradict each other.
        """
        values = {each.name: options[each.name] for each in fields(cls)}
        for name in ("insecure", "allow_peer", "shard"):
            values[name] = frozenset(values[name])
        config = cls(**values)
        config.check()
        return config

    @property
    def tls(self) -> bool:
        """True when the gRPC listeners speak TLS."""
        return self.tls_cert is not None

    @property
    def separate_peer_listener(self) -> bool:
        """True when peers have a listener that is not the clients'."""
        peer = self.peer_listen
        return peer is not None and (peer != self.listen or peer.port == 0)

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            ConfigError: The first contradiction.
        """
        problems = self._problem_of_tls(), self._problem_of_listeners(), self._problem_of_sizes()
        for problem in problems:
            if problem is not None:
                raise ConfigError(problem)

    def _problem_of_tls(self) -> str | None:
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("cert", "key") if self.tls_cert else ("key", "cert")
            return f"--tls-{given} is given without --tls-{missing}: give both, or neither."
        if self.tls and self.peer_listen is None:
            return (
                "--peer-listen must be given with --tls-cert, because peers show certificates and"
                " clients do not: name an address of its own for peers."
            )
        if self.allow_peer and not self.tls:
            return (
                "--allow-peer needs --tls-cert, --tls-key and --tls-ca: without certificates a"
                " peer's name is only a claim."
            )
        if self.allow_peer and self.tls_ca is None:
            return "--allow-peer needs --tls-ca: name the authority that signs peers' certificates."
        if self.client_ca is not None and not self.tls:
            return "--client-ca needs --tls-cert and --tls-key: clients show certificates over TLS."
        return None

    def _problem_of_listeners(self) -> str | None:
        for name, flag, address in (
            ("listen", "--listen", self.listen),
            ("peer", "--peer-listen", self.peer_listen),
            ("admin", "--admin-listen", self.admin_listen),
        ):
            if address is None or address.loopback or self.tls or name in self.insecure:
                continue
            return (
                f"{flag} {address} can be reached from other machines and would speak in clear:"
                f" give --tls-cert and --tls-key, or allow it with --insecure {name}."
            )
        if not self.metrics_listen.loopback and "metrics" not in self.insecure:
            return (
                f"--metrics-listen {self.metrics_listen} can be reached from other machines and"
                " speaks plain HTTP: listen on 127.0.0.1, or allow it with --insecure metrics."
            )
        if self.tls and self.peer_listen == self.listen and self.listen.port != 0:
            return (
                f"--listen and --peer-listen are both {self.listen}: with TLS, peers need an"
                " address of their own."
            )
        return None

    def _problem_of_sizes(self) -> str | None:
        response_bytes, message_bytes = self.max_response_size, self.max_message_size
        least_bytes = least_response_bytes(message_bytes)
        if response_bytes < least_bytes:
            return (
                f"--max-response-size {format_size(response_bytes)} is too small for a message of"
                f" --max-message-size {format_size(message_bytes)}: give at least"
                f" {format_size(least_bytes)}."
            )
        results = response_bytes // RESULT_BYTES
        if self.max_batch_messages > results:
            return (
                f"--max-batch-messages {self.max_batch_messages} is too many for a response of"
                f" --max-response-size {format_size(response_bytes)}, which holds {results}"
                " results: give at most as many, or a larger response."
            )
        return None
