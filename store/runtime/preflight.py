"""The checks of `storenode check-config`: all that the next start of a node would try.

Nothing is started, made or written, so that they can be run beside a node that serves. Each check
that fails is one sentence. A node that starts makes those of files itself (`file_checks`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import psycopg

from store.config.node import NodeConfig
from store.db import migrate
from store.db.errors import SchemaError, find_failure, sentence
from store.db.locks import set_lock_timeout
from store.domain.ports import StoreUnavailableError
from store.embedded.binaries import choose
from store.embedded.datadir import DataDir
from store.embedded.process import EmbeddedPostgresError
from store.embedded.supervisor import refuse_managed, running_url
from store.runtime.database import ExternalHost
from store.runtime.errors import (
    NodeFailedError,
    UnreachableError,
    WrongConfigurationError,
    as_sentence,
    unserved,
)
from store.runtime.listeners import listener_addresses
from store.runtime.node_files import NODE_ID_FILE, kept_node_id
from store.runtime.policy import TokenFile, agree_on_retention, client_limits
from store.serving.addresses import BindError, require_free
from store.serving.tls import TlsError, first_dns_name, read_authorities

LOCK_TIMEOUT_MS: Final = 2_000
"""The time to wait for another session's lock where retention is settled, and taken back."""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise `NodeFailedError` in place of the errors of a node's parts."""
    try:
        yield
    except TlsError as error:
        raise WrongConfigurationError(str(error)) from error
    except (BindError, EmbeddedPostgresError) as error:
        raise NodeFailedError(str(error)) from error
    except SchemaError as error:
        raise NodeFailedError(as_sentence(error)) from error
    except StoreUnavailableError as error:
        raise UnreachableError(as_sentence(unserved(error))) from error


async def check_start(config: NodeConfig) -> list[str]:
    """Return a sentence for each reason for which a node would not start."""
    problems = [*config.problems()]
    for check in file_checks(config, TokenFile(config.client_token_file, client_limits(config))):
        with _reported(problems):
            check()
    if config.tls_cert is not None and config.tls_key is not None:
        with _reported(problems):
            first_dns_name(config.tls_cert, config.tls_key)
    data, is_running = DataDir(config.data_dir.absolute()), False
    with _reported(problems):
        is_running = data.is_locked()
    if not is_running:
        # A node that runs on the directory has these addresses itself.
        for address in listener_addresses(config).values():
            with _reported(problems):
                require_free(address)
    with _reported(problems):
        _check_directory(config, data)
    if not problems or is_running:
        with _reported(problems):
            await _check_database(config, data)
    return list(dict.fromkeys(problems))


@contextmanager
def _reported(problems: list[str]) -> Iterator[None]:
    try:
        with translate_errors():
            yield
    except NodeFailedError as error:
        problems.append(str(error))


def file_checks(config: NodeConfig, tokens: TokenFile) -> Iterator[Callable[[], object]]:
    """Yield checks of all files but the certificate; they raise `NodeFailedError`, `TlsError`."""
    yield tokens.load
    for path in (config.tls_ca, config.client_ca):
        if path is not None:
            yield partial(read_authorities, path)


def _check_directory(config: NodeConfig, data: DataDir) -> None:
    data.prepare(make=False)
    if (data.path / NODE_ID_FILE).exists() and not config.tls:
        kept_node_id(data.path)
    if config.database_url is None:
        refuse_managed(dict(config.postgres_setting))
        choose(data.cluster_major())


async def _check_database(config: NodeConfig, data: DataDir) -> None:
    url: str | None
    try:
        if config.database_url is not None:
            url = await ExternalHost(config, lambda _name, _fields: None).reach(wait=False)
        elif (url := running_url(data.path)) is not None:
            # A node would upgrade the schema of its own database.
            await asyncio.to_thread(migrate.current, url)
        if url is not None and not config.read_only:
            await _try_agreement(config, url)
    except psycopg.Error as error:
        failure = find_failure(error)
        raise StoreUnavailableError(failure.sentence if failure else sentence(error)) from error


async def _try_agreement(config: NodeConfig, url: str) -> None:
    """Try what a node does about retention at its start, and take it back."""
    async with (
        await psycopg.AsyncConnection.connect(url) as connection,
        connection.transaction(force_rollback=True),
    ):
        await set_lock_timeout(connection, LOCK_TIMEOUT_MS)
        await agree_on_retention(connection, config, time.time_ns())
