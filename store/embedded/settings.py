"""The settings of the embedded Postgres."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from store.embedded.errors import EmbeddedPostgresError

_MIB: Final = 1024 * 1024
_SMALLEST_CACHE_MIB: Final = 128
_LARGEST_CACHE_MIB: Final = 1024


def cache_mib() -> int:
    """Return the page cache of Postgres: an eighth of the memory, from 128 MiB to 1 GiB.

    Pages that are only in the system's cache cost a scan about as much again.
    """
    memory_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MIB
    return max(_SMALLEST_CACHE_MIB, min(memory_mib // 8, _LARGEST_CACHE_MIB))


DEFAULTS: Final[Mapping[str, str]] = {
    "shared_buffers": f"{cache_mib()}MB",
    "max_connections": "60",
    "wal_level": "replica",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
    "log_checkpoints": "off",
    # Messages are inserted and never updated: what a vacuum has to do then is to freeze pages and
    # mark them visible, often enough that an index-only scan stays one.
    "autovacuum_vacuum_insert_scale_factor": "0.1",
    "autovacuum_analyze_scale_factor": "0.02",
}
"""Settings that `EmbeddedSettings.extra` may replace."""

_OURS: Final = frozenset(
    {
        "config_file",
        "data_directory",
        "external_pid_file",
        "hba_file",
        "ident_file",
        "listen_addresses",
        "log_destination",
        "logging_collector",
        "port",
        "storenode.cluster",
        "unix_socket_directories",
    }
)
"""Settings without which the supervisor would lose its server."""


@dataclass(frozen=True)
class EmbeddedSettings:
    """The settings of an embedded Postgres.

    `extra` holds settings of Postgres by name. `start_timeout_s` is how long a starting server may
    say nothing before it counts as stuck: a long recovery reports its progress and may go on.
    `stop_timeout_s` is how long an orderly shutdown may take before it is cut short.
    """

    data_dir: Path
    extra: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 60.0
    stop_timeout_s: float = 30.0


def refuse_managed(extra: Mapping[str, str]) -> None:
    """Check the names of extra settings.

    Raises:
        EmbeddedPostgresError: One of them is the supervisor's.
    """
    for name in extra:
        if name.lower() in _OURS:
            raise EmbeddedPostgresError(
                f"The setting {name} of the embedded Postgres is managed by the node: leave it out"
                " of the extra settings, or run a Postgres of your own with --database-url."
            )


def command_settings(extra: Mapping[str, str], port: int, mark: str) -> list[str]:
    """Return settings as `-c name=value` arguments, which override those of the cluster."""
    ours = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": "",
        "log_destination": "stderr",
        "logging_collector": "off",
    }
    arguments = [f"{name}={value}" for name, value in ({**DEFAULTS, **extra} | ours).items()]
    return [part for each in [*arguments, mark] for part in ("-c", each)]
