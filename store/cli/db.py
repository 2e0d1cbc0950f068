"""`storenode db`: the database behind nodes, embedded or external, whether a node runs or not."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import click
import psycopg
from click.core import ParameterSource

from store.config.node import NodeConfig
from store.config.options import options_of
from store.db import check as database_check
from store.db import migrate
from store.db.buckets import resummarize
from store.db.condition import Sizes, read_sizes
from store.db.errors import SchemaError, sentence
from store.db.maintainer import database_ns, newest_commit_ns
from store.db.partitions import read_catalog
from store.db.primary import DatabaseServer, PrimaryGuard, hosts_of, probed
from store.db.retention import (
    PruneReport,
    RetentionReview,
    agree,
    prune,
    read_agreed,
    reopen,
    review,
)
from store.domain.partitioning import DAY_NS, UNBOUNDED_HIGH, UNBOUNDED_LOW, Bounds
from store.domain.retention import Excess, Partition, Reading, RetentionClock, RetentionPolicy
from store.embedded.datadir import DataDir, release_reserve
from store.embedded.process import EmbeddedPostgresError
from store.embedded.supervisor import EmbeddedPostgres, running_url
from store.runtime.database import completed_url
from store.runtime.errors import WrongConfigurationError, as_sentence
from store.runtime.node_files import SeenFiles
from store.runtime.policy import MAX_CLOCK_LEAD_NS
from storenode.cli.client.text import TIME, format_time, safe
from storenode.cli.errors import FAILED, OK, UNREACHABLE, USAGE, CliError
from storenode.cli.options.layers import LayeredCommand, option, with_options
from storenode.cli.options.types import DURATION_OR_OFF, POSITIVE_DURATION, SIZE
from storenode.cli.options.units import format_size
from storenode.message.limits import NS_PER_S

_PROGRESS_ROWS: Final = 10_000
_Result = TypeVar("_Result")
_Json = dict[str, object]

RESTART_PATIENCE_S: Final = 60.0
"""The time that a node gets to restart its database once the disk has space for it."""

_PARTS: Final = {"": "rows", "out of line": "rows, out of line", "maps": "maps of free space"}
"""The displayed names of the parts of a table; all other parts are indexes."""

_POLL_S: Final = 0.1
_CONNECT_TIMEOUT_S: Final = 5


class Target(NamedTuple):
    """The database that a command works on, and the form of its output."""

    database_url: str | None
    data_dir: Path
    as_json: bool

    @contextmanager
    def url(self, *, may_free: bool = False) -> Iterator[str]:
        """Yield the URL of the database, whose server runs meanwhile if it is an embedded one.

        Where a node runs on the data directory, its server is used; else one is started. With
        ``may_free`` space that was kept back is freed first on a full disk, without which no server
        starts.
        """
        if self.database_url is not None:
            yield _newest_first(completed_url(self.database_url))
        elif (running := self._running(may_free=may_free)) is not None:
            yield running
        elif DataDir(self.data_dir.absolute()).cluster_major() is None:
            raise CliError(
                USAGE,
                f"There is no database in {self.data_dir}: name a node's directory with --data-dir,"
                " or an external database with --database-url.",
            )
        else:
            with EmbeddedPostgres(self.data_dir) as server:
                yield server.url

    def _running(self, *, may_free: bool) -> str | None:
        """Return the URL of a node's server, after a wait if its space was released."""
        patience_s = RESTART_PATIENCE_S if may_free and release_reserve(self.data_dir) else 0.0
        deadline_s = time.monotonic() + patience_s
        while True:
            running = running_url(self.data_dir)
            if running is not None:
                with suppress(psycopg.Error):
                    psycopg.connect(running, connect_timeout=_CONNECT_TIMEOUT_S).close()
                    return running
            elif not DataDir(self.data_dir.absolute()).is_locked():
                return None
            if time.monotonic() > deadline_s:
                return running
            time.sleep(_POLL_S)

    def run(
        self,
        work: Callable[[psycopg.AsyncConnection[Any]], Awaitable[_Result]],
        *,
        may_free: bool = False,
    ) -> _Result:
        """Run work on a connection to the database, whose schema must be the served one."""

        async def connected(url: str) -> _Result:
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
                return await work(connection)

        with self.url(may_free=may_free) as url:
            migrate.require_served(url)
            return asyncio.run(connected(url))

    def print(self, value: _Json | Sequence[_Json], lines: Iterable[str]) -> None:
        """Print a result: as JSON objects, one a line, or as lines for people."""
        values = [value] if isinstance(value, dict) else value
        shown = map(json.dumps, values) if self.as_json else map(safe, lines)
        click.echo("\n".join(shown))


def on_database(command: Callable[..., int]) -> Callable[..., int]:
    """Pass a command its `Target`, and turn errors of databases into exit codes."""

    @option(
        "--database-url",
        metavar="URL",
        help="An external database, in libpq's form. Set STORENODE_DATABASE_URL rather than the"
        " flag when it holds a password.",
    )
    @option(
        "--data-dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        default="./storenode-data",
        show_default=True,
        help="Directory of a node with an embedded database, which may run or not.",
    )
    @option("--json", "as_json", is_flag=True, help="Print JSON.")
    def run(database_url: str | None, data_dir: Path, as_json: bool, **options: Any) -> int:  # noqa: ANN401
        try:
            return command(Target(database_url, data_dir, as_json), **options)
        except (SchemaError, EmbeddedPostgresError) as error:
            raise CliError(FAILED, as_sentence(error)) from error
        except WrongConfigurationError as error:
            raise CliError(error.exit_code, str(error)) from error
        except psycopg.Error as error:
            if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
                raise CliError(
                    UNREACHABLE,
                    f"The database could not be reached ({sentence(error)}): check that Postgres"
                    " runs, and --database-url or --data-dir.",
                ) from error
            raise CliError(FAILED, f"The database refused ({sentence(error)}).") from error

    return update_wrapper(run, command)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def db() -> None:
    """Manage the database: upgrade the schema, check consistency, show sizes, drop partitions."""


@db.command(cls=LayeredCommand)
@on_database
def upgrade(target: Target) -> int:
    """Upgrade the schema to the newest revision; create it if there is none.

    Nodes of the previous version work on through it.
    """
    with target.url() as url:
        before = migrate.current(url)
        after = migrate.upgrade(url)
    target.print(
        {"previous": before, "revision": after},
        [
            f"The schema is at revision {after} already."
            if before == after
            else f"The schema was upgraded from {before or 'nothing'} to revision {after}."
        ],
    )
    return OK


@db.command(cls=LayeredCommand)
@on_database
def current(target: Target) -> int:
    """Show the schema's revision, and the newest revision known here."""
    with target.url() as url:
        revision = migrate.current(url)
    newest = migrate.head()
    target.print(
        {"revision": revision, "newest": newest, "up_to_date": revision == newest},
        [f"revision  {revision or 'none'}", f"newest    {newest}"],
    )
    return OK


@db.command(cls=LayeredCommand)
@on_database
def accept(target: Target) -> int:
    """Let the node of a data directory work on a database that is older than what it has seen.

    For a database that was restored on purpose. The node must not run; each node of the database
    has its own directory. Needs --database-url with one host that takes writes.
    """
    if target.database_url is None:
        raise CliError(USAGE, "Name the restored database with --database-url.")
    if not target.data_dir.is_dir():
        raise CliError(USAGE, f"There is no directory {target.data_dir}: name that of the node.")
    data = DataDir(target.data_dir.absolute())
    data.prepare()
    data.lock()
    try:
        with target.url() as url:
            migrate.require_served(url)
            server = asyncio.run(_the_one_server(url))
        SeenFiles(data.path).save(server)
    finally:
        data.unlock()
    found = {
        "host": server.host,
        "store_id": str(UUID(bytes=server.store_id)),
        "timeline": server.timeline,
        "position": server.place[0],
    }
    line = "{host}: store {store_id}, timeline {timeline}, commit {position}.".format_map(found)
    target.print(found, [line])
    return OK


async def _the_one_server(url: str) -> DatabaseServer:
    async with probed(url) as found:
        if len(found) != 1:
            hosts = ", ".join(found) or "no host"
            raise CliError(
                FAILED,
                f"One host that takes writes and holds a store is needed, and there is {hosts}:"
                " name the restored one alone in --database-url.",
            )
        return next(iter(found.values())).server


@db.command(cls=LayeredCommand)
@option(
    "--sample",
    type=click.IntRange(1),
    metavar="ROWS",
    help="Check about this many random rows of each table instead of all, and no summaries.",
)
@on_database
def check(target: Target, sample: int | None) -> int:
    """Check hashes, lookup rows, SDS metadata, partitions, indexes, commits and summaries.

    Changes nothing and can run beside nodes. The exit code is 1 if anything was found.
    """
    with target.url() as url:
        report = database_check.check(url, sample=sample, progress=_progress())
    lines = []
    for each in report.findings:
        lines.append(f"{each.where}: {each.kind} ({each.count:,})")
        lines += [f"    {example}" for example in each.examples]
        lines.append(f"    To do: {each.advice}.")
    counts = ", ".join(f"{rows:,} {table}" for table, rows in report.checked.items())
    extent = "all rows" if report.full else "a part of the rows"
    verdict = f"{len(report.findings)} kinds of faults" if report.findings else "no fault"
    target.print(
        {
            "ok": not report.findings,
            "full": report.full,
            "checked": report.checked,
            "findings": [asdict(each) | {"advice": each.advice} for each in report.findings],
        },
        [*lines, f"Found {verdict} in {extent}: {counts or 'none could be read'}."],
    )
    return FAILED if report.findings else OK


@db.command(cls=LayeredCommand)
@on_database
def partitions(target: Target) -> int:
    """List the partitions of every table with their sizes."""
    inventory = target.run(partial(read_catalog, with_sizes=True))
    found = sorted(inventory.partitions, key=lambda each: (each.table, each.bounds))
    horizon = format_time(inventory.horizon_ns) if inventory.horizon_ns else "none"
    rows = [(each, "unknown" if each.rows < 0 else f"{each.rows:,}") for each in found]
    target.print(
        [*map(_partition_json, found)],
        [
            *_table("ROWS (ABOUT)", rows),
            f"{format_size(inventory.size_bytes)} in all; horizon: {horizon}",
        ],
    )
    return OK


@db.command(cls=LayeredCommand)
@on_database
def sizes(target: Target) -> int:
    """Show where the bytes go, by table and index, in all and per message.

    Reads sizes of files, and the summaries; nodes may continue meanwhile.
    """
    found = target.run(read_sizes)
    target.print(asdict(found), _size_lines(found))
    return OK


_LIMITS = with_options(
    option(
        "--retention",
        type=DURATION_OR_OFF,
        help="Drop partitions whose messages are all older than this.  [default: what the store"
        " has agreed to]",
    ),
    option(
        "--retention-size",
        type=SIZE,
        help="Drop the oldest partitions while the store is larger than this.  [default: what the"
        " store has agreed to]",
    ),
    options_of(NodeConfig, "retention_requires_archive", section="Options"),
)
_TRUST_CLOCK = option(
    "--trust-clock",
    is_flag=True,
    help="Go by this machine's clock even where it is ahead of the newest commit, or of the"
    " database's clock by more than an hour.",
)


async def _read_limits(connection: psycopg.AsyncConnection[Any]) -> tuple[Reading, RetentionPolicy]:
    """Return the time to drop by, and the limits: the agreed ones where a command has none.

    The clock is checked against the database, since dropped rows are lost.
    """
    context = click.get_current_context()
    agreed = await read_agreed(connection) or RetentionPolicy()
    limits = {"retention": agreed.age_ns, "retention_size": agreed.size_bytes}
    for name in limits:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            limits[name] = context.params[name]
    requires_archive = context.params["retention_requires_archive"]
    policy = RetentionPolicy(limits["retention"], limits["retention_size"], requires_archive)
    clock_ns = time.time_ns()
    if context.params["trust_clock"]:
        return Reading(clock_ns), policy
    lead_ns = clock_ns - await database_ns(connection)
    if lead_ns > MAX_CLOCK_LEAD_NS:
        raise CliError(
            FAILED,
            f"This machine's clock is {lead_ns // NS_PER_S:,} s ahead of the database's: correct"
            " one of them, or go by this one with --trust-clock.",
        )
    return RetentionClock(await newest_commit_ns(connection), 0).read(clock_ns, 0), policy


@db.command("prune", cls=LayeredCommand)
@_LIMITS
@option(
    "--retention-lock-timeout",
    type=POSITIVE_DURATION,
    default="250ms",
    show_default=True,
    help="How long a drop may wait for locks, which blocks other queries, before it gives up.",
)
@option(
    "--retention-confirm",
    is_flag=True,
    help="Drop also what the agreed limits keep, however much it is.",
)
@option("--dry-run", is_flag=True, help="Only show what would be dropped.")
@_TRUST_CLOCK
@on_database
def prune_command(
    target: Target,
    *,
    retention_lock_timeout: int,
    retention_confirm: bool,
    dry_run: bool,
    **_limits: object,
) -> int:
    """Drop partitions of messages that are too old or too much; never the current one.

    Nodes do so by themselves. On a full disk, space that an embedded database has kept back is
    freed first, so that its server can start. The exit code is 1 if something that should go could
    not, or if much would go that the agreed limits keep.
    """

    async def work(connection: psycopg.AsyncConnection[Any]) -> tuple[Reading, PruneReport]:
        reading, policy = await _read_limits(connection)
        if not retention_confirm and not dry_run:
            excess = (await review(connection, policy, reading.time_ns)).excess
            if excess is not None:
                raise CliError(
                    FAILED,
                    f"These limits would drop {_excess(excess)[1]}, which the agreed ones keep:"
                    " correct them, or add --retention-confirm.",
                )
        return reading, await prune(
            connection,
            policy,
            reading.time_ns,
            dry_run=dry_run,
            lock_timeout_ms=max(1, retention_lock_timeout * 1_000 // NS_PER_S),
        )

    reading, report = target.run(work, may_free=True)
    value, lines = _pruned(report, dry_run=dry_run)
    if reading.doubted:
        lines.insert(
            0,
            f"The newest commit is {reading.ahead_ns // NS_PER_S:,} s old, and ages are counted"
            " from it in case the clock is wrong: if it is right, say --trust-clock.",
        )
    target.print({**value, "clock_ahead_s": reading.ahead_ns // NS_PER_S}, lines)
    return FAILED if report.problems else OK


@db.command("retention", cls=LayeredCommand)
@_LIMITS
@option("--apply", is_flag=True, help="Agree to these limits, and drop now what they do not keep.")
@option(
    "--lower-horizon",
    is_flag=True,
    help="Agree to these limits, and admit what they keep and was dropped, so that it can be"
    " fetched from a peer.",
)
@_TRUST_CLOCK
@on_database
def retention_command(
    target: Target, *, apply: bool, lower_horizon: bool, **_limits: object
) -> int:
    """Show what limits of retention would drop, and agree to them.

    A node whose limits are lower than the agreed ones and would drop more than a tenth of the
    store, or a week, does not start before --apply confirms them.

    After --lower-horizon a peer that still holds what was dropped sends it with the next
    reconciliation of the whole history: see `storenode sync --from 0`.
    """

    async def work(
        connection: psycopg.AsyncConnection[Any],
    ) -> tuple[RetentionPolicy, RetentionReview, PruneReport | None]:
        reading, policy = await _read_limits(connection)
        time_ns = reading.time_ns
        found, report = await review(connection, policy, time_ns), None
        if apply or lower_horizon:
            await agree(connection, policy)
        if lower_horizon:
            kept_from_ns = 0 if policy.age_ns is None else max(0, time_ns - policy.age_ns)
            await reopen(connection, kept_from_ns)
        if apply:
            report = await prune(connection, policy, time_ns)
        return policy, await review(connection, policy, time_ns) if apply else found, report

    policy, found, report = target.run(work)
    (agreed, agreed_text), (limits, limits_text) = _limits_of(found.agreed), _limits_of(policy)
    (due, due_text), (to_confirm, _) = _excess(found.due), _excess(found.excess)
    pruned, lines = (None, []) if report is None else _pruned(report, dry_run=False)
    if to_confirm:
        lines.insert(0, "A node with these limits does not start before --apply confirms it.")
    target.print(
        {
            "agreed": agreed,
            "limits": limits,
            "horizon_ns": found.horizon_ns if report is None else report.horizon_ns,
            "due": due,
            "to_confirm": to_confirm,
            "pruned": pruned,
        },
        [
            f"agreed      {agreed_text}",
            f"limits      {limits_text}",
            f"horizon     {format_time(found.horizon_ns) if found.horizon_ns else 'none'}",
            f"would drop  {due_text}",
            *lines,
        ],
    )
    return FAILED if report is not None and report.problems else OK


@db.command("resummarize", cls=LayeredCommand)
@option("--from", "first", type=TIME, help="Only days from this time on: RFC 3339, or nanoseconds.")
@option("--to", "end", type=TIME, help="Only days before this time.")
@on_database
def resummarize_command(target: Target, first: int | None, end: int | None) -> int:
    """Rebuild the summaries of the history from the messages, day by day.

    For days of which `storenode db check` says that their summaries are wrong. Nodes may continue
    meanwhile. A time that is not a midnight (UTC) stands for its whole day.
    """
    low = UNBOUNDED_LOW if first is None else first
    high = UNBOUNDED_HIGH if end is None else end
    if low >= high:
        raise CliError(USAGE, "--from must be before --to.")
    bounds, progress = Bounds(low, high), _progress()
    days, messages = target.run(lambda each: resummarize(each, bounds, progress=progress))
    target.print(
        {"days": days, "messages": messages},
        [f"Summarised {messages:,} messages of {days:,} days anew."],
    )
    return OK


def _newest_first(url: str) -> str:
    """Return the URL with the newest of several hosts that take writes as the first one."""
    if len(hosts_of(url)) == 1:
        return url
    guard = PrimaryGuard(lambda _id: None, lambda _seen: None, lambda _name, _fields: None)
    choice = asyncio.run(guard.choose(url))
    if choice.refused and not choice.served:
        raise CliError(FAILED, as_sentence("; ".join(choice.refused.values())))
    return choice.url


def _progress() -> Callable[[str, int], None]:
    """Return a counter of rows that prints on standard error, if it is a terminal."""
    shown: Counter[str] = Counter()

    def show(table: str, rows: int) -> None:
        if sys.stderr.isatty() and rows // _PROGRESS_ROWS > shown[table]:
            shown[table] = rows // _PROGRESS_ROWS
            click.echo(safe(f"{table}: {rows:,} rows"), err=True)

    return show


def _partition_json(partition: Partition) -> dict[str, object]:
    low, high = partition.bounds.low, partition.bounds.high
    return {
        "table": partition.table,
        "partition": partition.name,
        "from": None if low == UNBOUNDED_LOW else low,
        "to": None if high == UNBOUNDED_HIGH else high,
        "bytes": partition.size_bytes,
        "rows_estimate": None if partition.rows < 0 else partition.rows,
    }


def _table(last: str, rows: Iterable[tuple[Partition, str]]) -> Iterator[str]:
    """Yield a table of partitions for people, whose last column has the given name."""

    def end(table: str, key: int) -> str:
        if key in (UNBOUNDED_HIGH, UNBOUNDED_LOW):
            return "-"
        return f"{key:,}" if table == "commits" else format_time(key)[: len("2026-11-20")]

    cells = [
        (
            each.table,
            each.name,
            end(each.table, each.bounds.low),
            end(each.table, each.bounds.high),
            format_size(each.size_bytes),
            text,
        )
        for each, text in rows
    ]
    head = ("TABLE", "PARTITION", "FROM", "TO", "SIZE", last)
    return _aligned([head, *cells], len(head))


def _pruned(report: PruneReport, *, dry_run: bool) -> tuple[_Json, list[str]]:
    """Return what was dropped, as JSON and for people."""
    rows = [(each.partition, each.reason.value) for each in report.dropped]
    what = "would go" if dry_run else "went"
    value: _Json = {
        "dry_run": dry_run,
        "dropped": [{**_partition_json(each), "reason": reason} for each, reason in rows],
        "freed_bytes": report.freed_bytes,
        "size_bytes": report.size_bytes,
        "horizon_ns": report.horizon_ns,
        "problems": list(report.problems),
    }
    freed, size = format_size(report.freed_bytes), format_size(report.size_bytes)
    return value, [
        *(_table("WHY", rows) if rows else ()),
        *map(as_sentence, report.problems),
        f"{len(rows)} partitions {what}, {freed} of {size}.",
    ]


def _limits_of(policy: RetentionPolicy | None) -> tuple[_Json | None, str]:
    """Return limits of retention, as JSON and for people."""
    if policy is None:
        return None, "nothing yet"
    age_s = None if policy.age_ns is None else policy.age_ns / NS_PER_S
    age = "off" if policy.age_ns is None else f"{policy.age_ns / DAY_NS:,.4g} days"
    size = "" if policy.size_bytes is None else f", at most {format_size(policy.size_bytes)}"
    return {"retention_s": age_s, "retention_bytes": policy.size_bytes}, age + size


def _excess(excess: Excess | None) -> tuple[_Json | None, str]:
    """Return what limits would drop, as JSON and for people."""
    if excess is None:
        return None, "nothing"
    days, share, size = excess.days, excess.share, excess.size_bytes
    return (
        {"days": round(days, 3), "bytes": size, "share": round(share, 4)},
        f"{days:,.0f} days ({format_size(size)}, {share:.0%} of the messages)",
    )


def _size_lines(sizes: Sizes) -> Iterator[str]:
    """Yield a table of the files of the store, then what is beside it."""

    def row(table: str, part: str, size_bytes: int) -> tuple[str, ...]:
        share = size_bytes / sizes.total_bytes if sizes.total_bytes else 0.0
        mean = f"{size_bytes / sizes.messages:,.1f}" if sizes.messages else "-"
        return table, part, format_size(size_bytes), f"{share:.1%}", mean

    yield f"{sizes.messages:,} messages in {format_size(sizes.total_bytes)}"
    yield from _aligned(
        [
            ("TABLE", "PART", "SIZE", "SHARE", "BYTES PER MESSAGE"),
            *(
                row(each.table, _PARTS.get(each.part, each.part), each.size_bytes)
                for each in sizes.parts
            ),
            row("all", "", sizes.total_bytes),
        ],
        2,
    )
    yield f"System catalogs: {format_size(sizes.catalog_bytes)}."


def _aligned(rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    """Yield the lines of a table; the first `left` columns are text, the others numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
