"""The policy, the token file and background tasks, each by itself."""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import trustme

from store.config.node import NodeConfig
from store.domain.access import CallDeniedError, Right
from store.domain.quota import ClientLimits
from store.runtime.errors import WrongConfigurationError
from store.runtime.node import LAST_WRITE_TIMEOUT_S, _finish
from store.runtime.policy import PolicySource, TokenFile
from store.runtime.status import read_expiries_s
from store.serving import tasks
from store.serving.tasks import BackgroundTasks
from tests.support.virtual_time import virtual_time
from tests.unit.config.cases import CommandLine

NOW_NS = 1_800_000_000 * 10**9
DAY_NS = 86_400 * 10**9


def test_the_horizon_is_the_later_of_retention_and_what_was_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = source(monkeypatch, "--retention=30d")
    assert policy.current().horizon_ns == NOW_NS - 30 * DAY_NS
    policy.set_horizon(NOW_NS - 7 * DAY_NS)
    assert policy.current().horizon_ns == NOW_NS - 7 * DAY_NS
    assert policy.shortfall_ns() == 23 * DAY_NS
    policy.set_horizon(NOW_NS - 31 * DAY_NS)
    assert (policy.current().horizon_ns, policy.shortfall_ns()) == (NOW_NS - 30 * DAY_NS, 0)
    policy = source(monkeypatch, "--retention=off")
    assert policy.current().horizon_ns is None
    policy.set_horizon(5)
    assert policy.current().horizon_ns == 5


def source(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> PolicySource:
    config: NodeConfig = CommandLine(monkeypatch).run(*arguments)
    return PolicySource(config, lambda: NOW_NS)


def loaded(path: Path, *tokens: str) -> TokenFile:
    """Return a file with these tokens, as it was read."""
    write_tokens(path, *tokens)
    file = TokenFile(path, ClientLimits())
    file.load()
    return file


async def followed(tokens: TokenFile) -> None:
    """Look twice: a file that is the same then has come to rest."""
    for _ in range(2):
        await tokens.follow()


async def test_a_token_file_is_taken_over_when_it_has_changed_and_come_to_rest(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokens.toml"
    tokens = loaded(path, "first")
    about = path.stat()
    path.write_text(path.read_text().replace(digest_of("first"), digest_of("other")))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    await followed(tokens)
    assert (admitted(tokens, "first"), admitted(tokens, "other")) == (False, True)
    write_tokens(path, "second")
    await tokens.follow()
    assert admitted(tokens, "other"), "it may still be written"
    await tokens.follow()
    assert (admitted(tokens, "other"), admitted(tokens, "second")) == (False, True)
    write_tokens(path, "third")
    tokens.reload()
    assert admitted(tokens, "third")


@pytest.mark.parametrize("broken", ["", "clients = ", None], ids=["empty", "cut", "gone"])
async def test_a_token_file_that_is_broken_changes_nothing_and_is_reported_until_it_is_not(
    tmp_path: Path, broken: str | None
) -> None:
    path, usable = tmp_path / "tokens.toml", list[bool]()
    write_tokens(path, "valid", "second")
    tokens = TokenFile(path, ClientLimits(), usable.append)
    tokens.load()
    path.unlink() if broken is None else path.write_text(broken)
    await tokens.follow()
    assert usable == [True], "it may still be written"
    if broken != "":  # which is a file without clients
        for _ in range(3):
            await followed(tokens)
        tokens.reload()
        assert usable == [True, False, False]
    assert admitted(tokens, "valid")
    write_tokens(path, "valid", "third")
    await followed(tokens)
    assert usable[-1]
    assert (admitted(tokens, "second"), admitted(tokens, "third")) == (False, True)


async def test_without_a_token_file_everybody_may_read_and_one_that_is_not_there_is_refused(
    tmp_path: Path,
) -> None:
    tokens = TokenFile(None, ClientLimits(requests_per_second=7))
    tokens.load()
    tokens.reload()
    await tokens.follow()
    caller = tokens.access.authorize(None, Right.READ, "host x")
    assert caller.limits.requests_per_second == 7
    with pytest.raises(WrongConfigurationError, match="cannot be read"):
        TokenFile(tmp_path / "absent", ClientLimits()).load()


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def write_tokens(path: Path, *tokens: str) -> None:
    fresh = path.with_suffix(".new")
    entries = (
        f'[clients.client-{number}]\ntoken_sha256 = "{digest_of(token)}"\nrights = ["read"]\n'
        for number, token in enumerate(tokens)
    )
    fresh.write_text("".join(entries))
    os.replace(fresh, path)  # noqa: PTH105 - the rename is what is tested


def admitted(tokens: TokenFile, token: str) -> bool:
    try:
        tokens.access.authorize(f"Bearer {token}", Right.READ, "host x")
    except CallDeniedError:
        return False
    return True


def test_a_chain_ends_with_its_first_certificate_and_authorities_with_their_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = timedelta(days=1)
    now = datetime.now(UTC).replace(microsecond=0)
    both = [
        trustme.CA().issue_cert("a.example", not_after=now + days * day).cert_chain_pems[0].bytes()
        for days in (3, 9)
    ]
    names = [str(tmp_path / name) for name in ("chain.pem", "authorities.pem", "broken.pem")]
    for name, content in zip(names, (b"".join(both), b"".join(both), b"x"), strict=True):
        Path(name).write_bytes(content)
    chain, authorities, broken = names
    config = CommandLine(monkeypatch).run(
        *(f"--tls-cert={chain}", f"--tls-key={chain}", f"--tls-ca={authorities}"),
        *(f"--client-ca={broken}", "--peer-listen=127.0.0.1:1"),
    )
    assert read_expiries_s(config) == {
        chain: (now + 3 * day).timestamp(),
        authorities: (now + 9 * day).timestamp(),
    }


@virtual_time
async def test_a_task_that_fails_is_started_again_soon_unless_it_did_so_lately() -> None:
    first_s, steady_s, begun = tasks.TASK_RETRY_FIRST_S, tasks.TASK_RETRY_MOST_S + 1, list[float]()

    async def work() -> None:
        begun.append(asyncio.get_running_loop().time())
        await asyncio.sleep(steady_s if len(begun) == 3 else 0)
        raise RuntimeError("a fault")

    background = BackgroundTasks()
    background.start("work", work)
    await asyncio.sleep(4.5 * first_s + steady_s)
    await background.stop()
    pauses_s = [after - before for before, after in pairwise(begun)]
    assert pauses_s == [first_s, 2 * first_s, steady_s + first_s]


@virtual_time
async def test_a_task_that_loses_its_cancellation_ends_all_the_same() -> None:
    """Check it of a last write too: psycopg waits for a frozen database again."""
    begun, clock = asyncio.Event(), asyncio.get_running_loop().time

    async def work() -> None:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    background = BackgroundTasks()
    background.start("work", work)
    await begun.wait()
    await background.stop()
    before_s = clock()
    await _finish(work)
    assert clock() - before_s == LAST_WRITE_TIMEOUT_S + tasks.TASK_CANCEL_AGAIN_S
    ending = asyncio.create_task(_finish(work))
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.wait({ending})
    assert asyncio.all_tasks() == {asyncio.current_task()}, "none works while the database closes"
