"""The rules for clients: the policy for messages, whose horizon moves, and the token file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from store.config.node import NodeConfig
from store.db.connection import Connection
from store.db.retention import agree, review
from store.domain.access import Access, TokenFileError, parse_token_file
from store.domain.quota import ClientLimits
from store.domain.retention import RetentionPolicy
from store.observe.logging import get_logger
from store.runtime.errors import WrongConfigurationError, as_sentence
from storenode.message.limits import NS_PER_S
from storenode.message.rules import Policy

_LOG = get_logger("store.runtime.policy")

MAX_CLOCK_LEAD_NS: Final = 3_600 * NS_PER_S
"""A clock that is further ahead of the database's is not used to drop: what is new looks old."""


def client_limits(config: NodeConfig) -> ClientLimits:
    """Return the limits of a client for which the token file sets none."""
    return ClientLimits(
        requests_per_second=config.max_requests_per_second,
        messages_per_second=config.max_messages_per_second,
        concurrent_calls=config.max_calls,
        concurrent_streams=config.max_streams,
    )


def retention_policy(config: NodeConfig) -> RetentionPolicy:
    """Return the limits of retention."""
    return RetentionPolicy(
        config.retention, config.retention_size, config.retention_requires_archive
    )


async def agree_on_retention(connection: Connection, config: NodeConfig, now_ns: int) -> None:
    """Let the store agree to the limits of a node.

    Raises:
        WrongConfigurationError: An operator must confirm them.
        psycopg.Error: The database refused.
    """
    policy = retention_policy(config)
    found = await review(connection, policy, now_ns)
    if (excess := found.excess) is not None and not config.retention_confirm:
        raise WrongConfigurationError(
            f"--retention or --retention-size would drop {excess.days:,.0f} days,"
            f" {excess.share:.0%} of the messages, more than the store has agreed to: correct it,"
            " or confirm it by --retention-confirm at one start, or `storenode db retention"
            " --apply`."
        )
    # Where nothing changes, a database that takes no writes just now serves reads.
    if found.agreed != RetentionPolicy(config.retention, config.retention_size):
        await agree(connection, policy)


class PolicySource:
    """The policy for messages of clients, whose retention horizon moves with the clock.

    `set_horizon` notes up to when the database has dropped messages, which a node with a longer
    retention, or none, must respect too.
    """

    def __init__(self, config: NodeConfig, now_ns: Callable[[], int]) -> None:
        self.retention = retention_policy(config)
        self._config = config
        self._now_ns = now_ns
        self._dropped_ns = 0

    def set_horizon(self, horizon_ns: int) -> None:
        """Admit nothing below the horizon of the store, which an operator may have lowered."""
        self._dropped_ns = horizon_ns

    @property
    def retention_ns(self) -> int | None:
        """The age at which messages are dropped; None: none are, by age."""
        return self.retention.age_ns

    def shortfall_ns(self) -> int:
        """Return for how long before the horizon messages are missing that retention keeps.

        0 with a limit on size, which drops what the limit on age would keep.
        """
        if self.retention.size_bytes is not None:
            return 0
        age_ns = self.retention_ns
        return max(0, self._dropped_ns - (0 if age_ns is None else self._now_ns() - age_ns))

    def current(self) -> Policy:
        """Return the policy as it is now."""
        config = self._config
        horizon_ns, age_ns = self._dropped_ns, self.retention.age_ns
        if age_ns is not None:
            horizon_ns = max(horizon_ns, self._now_ns() - age_ns)
        return Policy(
            max_drift_ns=config.max_clock_drift,
            horizon_ns=horizon_ns or None,
            cluster=config.cluster,
            shards=config.shard,
            max_message_bytes=config.max_message_size,
        )


MAX_TOKEN_FILE_BYTES: Final = 4 * 1024 * 1024


class TokenFile:
    """The rules of a token file, as it last had them; a file that cannot be used changes nothing.

    A file that is being written may lack clients for a moment. So a change is taken over when two
    looks in a row find the same content. ``access``: the rules in force.
    """

    def __init__(
        self,
        path: Path | None,
        limits: ClientLimits,
        on_use: Callable[[bool], None] = lambda _usable: None,
    ) -> None:
        """Make the rules of a file that is not read yet; no ``path``: everybody may call.

        ``limits``: those of a client for which the file sets none. ``on_use`` is called with
        whether the file could be used, when it was read.
        """
        self._path = path
        self._limits = limits
        self._on_use = on_use
        self._used: bytes | str = b""
        self._seen: bytes | str = b""
        self.access = Access(None, limits)

    def load(self) -> None:
        """Read the file as it is now.

        Raises:
            WrongConfigurationError: It cannot be read or understood.
        """
        if self._path is not None:
            self._use(_read(self._path))

    def reload(self) -> None:
        """Read the file as it is now, and report one that cannot be used."""
        if self._path is not None:
            self._try(_read(self._path))

    async def follow(self) -> None:
        """Take over a changed file, or report it once; called every few seconds."""
        if self._path is None:
            return
        before, self._seen = self._seen, await asyncio.to_thread(_read, self._path)
        if self._seen == before != self._used:
            await asyncio.to_thread(self._try, self._seen)

    def _try(self, content: bytes | str) -> None:
        try:
            self._use(content)
        except WrongConfigurationError as error:
            self._on_use(False)
            _LOG.error("token_file_not_reloaded", reason=str(error))
        else:
            _LOG.info("token_file_reloaded", clients=len(self.access.clients or ()))

    def _use(self, content: bytes | str) -> None:
        self._used = self._seen = content
        if isinstance(content, str):
            raise WrongConfigurationError(content)
        try:
            self.access = parse_token_file(content.decode(), self._limits)
        except (TokenFileError, UnicodeDecodeError) as error:
            raise WrongConfigurationError(
                as_sentence(f"The token file {self._path} cannot be used: {error}")
            ) from error
        self._on_use(True)


def _read(path: Path) -> bytes | str:
    """Return the content of the file, or the sentence for why it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TOKEN_FILE_BYTES + 1)
    except OSError as error:
        return (
            f"The token file {path} cannot be read ({error.strerror}): name a readable file with"
            " --client-token-file."
        )
    if len(content) > MAX_TOKEN_FILE_BYTES:
        return f"The token file {path} has more than {MAX_TOKEN_FILE_BYTES} bytes: shorten it."
    return content
