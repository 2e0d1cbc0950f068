"""The policy, the token file and background tasks, each by itself."""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import suppress
from pathlib import Path

import pytest

from store.config.node import NodeConfig
from store.domain.access import Denied, Right
from store.domain.quota import ClientLimits
from store.observe.metrics import Metrics, total
from store.runtime import tasks
from store.runtime import tokens as tokens_module
from store.runtime.node_files import WrongConfigurationError
from store.runtime.services import PolicySource, maintenance_events
from store.runtime.tasks import BackgroundTasks
from store.runtime.tokens import TokenFile
from tests.unit.config.cases import CommandLine

NOW_NS = 1_800_000_000 * 10**9
DAY_NS = 86_400 * 10**9


def test_attempts_of_maintenance_within_an_outage_are_one_event() -> None:
    metrics = Metrics("test")
    note, events = maintenance_events(metrics), metrics.maintenance_events

    def told(times: int) -> float:
        for _ in range(times):
            note("maintenance_disconnected", error="refused", retry_in_s=1.0)
        return total(events, event={"maintenance_disconnected"})

    metrics.database_up.set(1)
    assert told(2) == 2
    for outage in (1, 2):
        metrics.database_up.set(0)
        metrics.database_events.labels("away").inc()
        note("maintenance_failed", task="fold", error="refused")
        assert told(20) == 2 + outage
        metrics.database_up.set(1)
    assert told(1) == 5
    assert total(events, event={"maintenance_failed"}) == 2


def test_the_policy_is_that_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = source(
        monkeypatch,
        "--shard=2",
        "--cluster=5",
        "--max-clock-drift=off",
        "--max-message-size=1KiB",
    ).current()
    assert policy.cluster == 5
    assert policy.shards == {2}
    assert policy.max_drift_ns is None
    assert policy.max_message_bytes == 1024
    assert policy.publisher
    assert not policy.below_horizon


def test_the_horizon_is_the_later_of_retention_and_what_was_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = source(monkeypatch, "--retention=30d")
    assert policy.current().horizon_ns == NOW_NS - 30 * DAY_NS
    policy.raise_horizon(NOW_NS - 7 * DAY_NS)
    policy.raise_horizon(NOW_NS - 8 * DAY_NS)
    assert policy.current().horizon_ns == NOW_NS - 7 * DAY_NS
    policy = source(monkeypatch, "--retention=off")
    assert policy.current().horizon_ns is None
    policy.raise_horizon(5)
    assert policy.current().horizon_ns == 5


def source(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> PolicySource:
    config: NodeConfig = CommandLine(monkeypatch).run(*arguments)
    return PolicySource(config, lambda: NOW_NS)


def loaded(path: Path, *tokens: str) -> TokenFile:
    """A file with these tokens, as it was read."""
    write_tokens(path, *tokens)
    file = TokenFile(path, ClientLimits())
    file.load()
    return file


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token files come to rest without a wait."""
    monkeypatch.setattr(tokens_module, "TOKEN_REST_S", 0)


@pytest.mark.usefixtures("at_once")
async def test_a_token_file_is_taken_over_when_it_changes_and_kept_when_it_breaks(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokens.toml"
    tokens = loaded(path, "first")
    assert admitted(tokens, "first")
    write_tokens(path, "second")
    await tokens.follow()
    assert admitted(tokens, "second")
    assert not admitted(tokens, "first")
    path.write_text("clients = ")
    await tokens.follow()
    assert admitted(tokens, "second")
    path.unlink()
    await tokens.follow()
    assert admitted(tokens, "second")
    write_tokens(path, "third")
    await tokens.follow()
    assert admitted(tokens, "third")
    write_tokens(path, "fourth")
    tokens.reload()
    assert admitted(tokens, "fourth")
    path.write_text("clients = ")
    tokens.reload()
    assert admitted(tokens, "fourth")


@pytest.mark.parametrize("moment", ["", "clients = ", None], ids=["empty", "cut", "gone"])
async def test_a_token_file_that_is_being_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str | None
) -> None:
    path = tmp_path / "tokens.toml"
    tokens = loaded(path, "valid", "second")
    seen = []

    async def written_meanwhile(_seconds: float) -> None:
        seen.append(admitted(tokens, "valid"))
        write_tokens(path, "valid", "third")

    monkeypatch.setattr("store.runtime.tokens.asyncio.sleep", written_meanwhile)
    path.unlink() if moment is None else path.write_text(moment)
    await tokens.follow()
    assert all(seen)
    assert admitted(tokens, "third")
    assert not admitted(tokens, "second")


async def test_a_token_file_that_never_rests_is_taken_over_where_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.toml"
    tokens = loaded(path, "valid", "revoked")
    turn = 0

    async def rewritten(_seconds: float) -> None:
        nonlocal turn
        turn += 1
        if turn % 3:
            path.write_text("" if turn % 2 else "clients = ")
        else:
            write_tokens(path, "valid", f"number {turn}")

    monkeypatch.setattr("store.runtime.tokens.asyncio.sleep", rewritten)
    for _ in range(20):
        await tokens.follow()
        assert admitted(tokens, "valid")
    assert not admitted(tokens, "revoked")


@pytest.mark.usefixtures("at_once")
async def test_a_change_that_keeps_size_and_time_of_a_token_file_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    tokens = loaded(path, "first")
    about = path.stat()
    path.write_text(path.read_text().replace(digest_of("first"), digest_of("other")))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    await tokens.follow()
    assert not admitted(tokens, "first")


async def test_without_a_token_file_everybody_may_read() -> None:
    tokens = TokenFile(None, ClientLimits(requests_per_s=7))
    tokens.load()
    tokens.reload()
    await tokens.follow()
    somebody = tokens.access.authorize(None, Right.READ, "host x")
    assert somebody.limits.requests_per_s == 7


def test_a_token_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
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
    except Denied:
        return False
    return True


async def test_a_task_that_fails_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TASK_RETRY_FIRST_S", 0)
    runs, steady = 0, asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise RuntimeError("a fault")
        steady.set()
        await asyncio.Event().wait()

    background = BackgroundTasks()
    background.start("work", work)
    await steady.wait()
    await background.stop()
    assert runs == 2


async def test_a_task_that_loses_its_cancellation_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "TASK_CANCEL_AGAIN_S", 0.01)
    begun, lost = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        lost.set()
        await asyncio.Event().wait()

    background = BackgroundTasks()
    background.start("work", work)
    await begun.wait()
    await asyncio.wait_for(background.stop(), 60)
    assert lost.is_set()
