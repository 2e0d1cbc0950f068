"""`storenode pipeline`: archive, verify, compare, restore and audit the history, on Spark.

What needs the libraries of the extra `pipeline` is imported when a job runs, after it was made sure
that they are there.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from store.cli.jobs import NEW_FILE, Runner, between, job
from storenode.cli.options.layers import LayeredCommand, option


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def pipeline() -> None:
    """Archive, verify, compare, restore and audit a history of any size, on Spark.

    An ARCHIVE is a directory, or a path in a bucket such as s3://BUCKET/PATH: Parquet files that
    are a Delta table. Exit codes: 0 success, 1 failed or something was found, 2 wrong usage, 3 the
    database could not be reached.
    """


@pipeline.command(cls=LayeredCommand)
@click.argument("archive")
@option(
    "--mark-here",
    is_flag=True,
    help="Mark hours as archived although the marks of the database name another archive.",
)
@option("--dry-run", is_flag=True, help="Only print how many messages would be archived.")
@between
@job
def archive(runner: Runner, *, archive: str, dry_run: bool, **options: Any) -> int:  # noqa: ANN401
    """Update ARCHIVE with the messages of the database.

    May be killed and run again at any time. Hours that the archive then holds in full are noted in
    the database, for --retention-requires-archive; those of a second ARCHIVE only with
    --mark-here.
    """
    from store.pipeline import archive as jobs  # noqa: PLC0415
    from store.pipeline.delta import DeltaArchive  # noqa: PLC0415

    lake = DeltaArchive(archive)
    lake.require_usable()
    with runner.url() as url:
        work = jobs.ArchiveJob(url, lake, connections=runner.connections, **options)
        if dry_run:
            return runner.finish(jobs.forecast(work))
        with runner.session() as session:
            return runner.finish(jobs.archive(session, work))


@pipeline.command(cls=LayeredCommand)
@click.argument("archive")
@option(
    "--with-database",
    is_flag=True,
    help="Also compare with the database, hour by hour, and with what it has marked as archived.",
)
@option(
    "--manifest",
    metavar="DIR",
    help="Also compare with this copy of the directory `manifest` of ARCHIVE.",
)
@between
@job
def verify(runner: Runner, *, archive: str, with_database: bool, **options: Any) -> int:  # noqa: ANN401
    """Check that ARCHIVE is sound: every hash, every hour, every row.

    Its manifest names the files and hours that must be there; a copy of it, or the database, also
    shows when both were removed. Changes nothing. The exit code is 1 if anything was found.
    """
    from store.pipeline import verify as jobs  # noqa: PLC0415

    lake = runner.archive(archive)
    with runner.url() if with_database else nullcontext() as url, runner.session() as session:
        work = jobs.VerifyJob(lake, url, connections=runner.connections, **options)
        return runner.finish(jobs.verify(session, work))


@pipeline.command(cls=LayeredCommand)
@click.argument("archive")
@option(
    "--leave-out-lost",
    is_flag=True,
    help="Go on where files are gone or changed: name the others. `verify` keeps naming what is"
    " lost.",
)
@job
def repair(runner: Runner, *, archive: str, leave_out_lost: bool) -> int:
    """Restore the Delta log of ARCHIVE from its manifest, which has a copy of each commit.

    For a log that is missing, damaged, or has lost commits; and for a manifest that lacks the
    newest commits of the log. Every file must be the one that the manifest names; otherwise nothing
    is changed, and the exit code is 1.
    """
    from store.pipeline.delta import DeltaArchive  # noqa: PLC0415
    from store.pipeline.repair import repair as repair_job  # noqa: PLC0415
    from store.pipeline.repair import require_manifest  # noqa: PLC0415

    lake = DeltaArchive(archive)
    require_manifest(lake)
    with runner.session() as session:
        return runner.finish(repair_job(session, lake, leave_out=leave_out_lost))


@pipeline.command(cls=LayeredCommand)
@click.argument("archive", required=False)
@option(
    "--level",
    type=click.Choice(["day", "hour"]),
    default="hour",
    show_default=True,
    help="Length of the slices.",
)
@between
@job
def fingerprint(
    runner: Runner, *, archive: str | None, level: str, low_ns: int, high_ns: int
) -> int:
    """Print how many messages each slice of time has, and the XOR of their hashes.

    Of ARCHIVE, whose manifest records it, or without it of the database.
    """
    from store.pipeline import message_sets as sets  # noqa: PLC0415
    from store.pipeline.database import connected, read_state  # noqa: PLC0415

    if archive is not None:
        lake = runner.archive(archive)
        name, hours = lake.path, sets.recorded_in(lake)
    else:
        with runner.url() as url, connected(url) as connection:
            name, hours = "the database", read_state(connection).hours
    return runner.finish(sets.fingerprint(name, level, hours, low_ns, high_ns))


@pipeline.command(cls=LayeredCommand)
@click.argument("archive")
@option(
    "--manifest",
    metavar="DIR",
    help="Also compare with this copy of the directory `manifest` of ARCHIVE.",
)
@job
def nightly(runner: Runner, *, archive: str, manifest: str | None) -> int:
    """Archive the database to ARCHIVE, then verify it with the database, then audit it.

    As the three jobs one after the other, with one start of Spark. The audit is recorded in the
    table ARCHIVE/findings, and examines only the channels that have changed since the last one. The
    exit code is 1 if any of the jobs found anything.
    """
    from store.pipeline.archive import ArchiveJob  # noqa: PLC0415
    from store.pipeline.delta import DeltaArchive  # noqa: PLC0415
    from store.pipeline.nightly import nightly as nightly_job  # noqa: PLC0415

    lake = DeltaArchive(archive)
    lake.require_usable()
    with runner.url() as url, runner.session() as session:
        work = ArchiveJob(url, lake, connections=runner.connections)
        return runner.finish(nightly_job(session, work, manifest))


@pipeline.command(cls=LayeredCommand)
@click.argument("first")
@click.argument("second", required=False)
@option("--output", metavar="DIR", help="Directory for the IDs that either side lacks, as Parquet.")
@between
@job
def diff(
    runner: Runner, *, first: str, second: str | None, output: str | None, low_ns: int, high_ns: int
) -> int:
    """Compare the archive FIRST with the archive SECOND, or with the database.

    The exit code is 1 if they differ.
    """
    from store.pipeline import diff as jobs  # noqa: PLC0415
    from store.pipeline.files import require_new_directory  # noqa: PLC0415

    if output is not None:
        require_new_directory(output, "the IDs that differ")
    with (
        runner.messages(first) as one,
        runner.messages(second) as other,
        runner.session() as session,
    ):
        sides = (one(session), other(session))
        return runner.finish(jobs.diff(session, *sides, output=output, bounds=(low_ns, high_ns)))


@pipeline.command(cls=LayeredCommand)
@click.argument("archive", required=False)
@option(
    "--missing",
    metavar="FILE",
    type=NEW_FILE,
    help="Write the missing IDs there, for `storenode sync --ids`.",
)
@between
@job
def audit(
    runner: Runner, *, archive: str | None, missing: Path | None, low_ns: int, high_ns: int
) -> int:
    """Look for causal gaps in ARCHIVE, or without it in the database.

    Finds parents that are missing, messages whose past is incomplete at any depth, how far each
    channel is complete, and claims that cannot all be true. Parents outside of --from and --to are
    looked for, too. The exit code is 1 if anything was found.
    """
    from store.pipeline.audit import audit as jobs  # noqa: PLC0415
    from store.pipeline.files import require_new  # noqa: PLC0415

    if missing is not None:
        require_new(missing, "the missing IDs")
    with runner.messages(archive) as opened, runner.session() as session:
        found = jobs.audit(opened(session), bounds=(low_ns, high_ns), missing=missing)
        return runner.finish(found)


@pipeline.command(cls=LayeredCommand)
@click.argument("archive")
@option(
    "--diff",
    metavar="DIR",
    help="Restore only messages listed by a diff, in its --output directory.",
)
@option(
    "--dry-run", is_flag=True, help="Only check, and print how many messages would be restored."
)
@between
@job
def restore(runner: Runner, *, archive: str, diff: str | None, **options: Any) -> int:  # noqa: ANN401
    """Store the messages of ARCHIVE in the database, whatever their age; skip existing ones.

    Nodes that serve see it at once. Give retention more time before, or it is dropped again.
    """
    from store.pipeline import restore as jobs  # noqa: PLC0415

    lake = runner.archive(archive)
    if diff is not None:
        jobs.require_diff(diff)
    with runner.url() as url, runner.session() as session:
        work = jobs.RestoreJob(lake, url, diff=diff, connections=runner.connections, **options)
        return runner.finish(jobs.restore(session, work))


@pipeline.command(cls=LayeredCommand)
@click.argument("archive", required=False)
@option("--output", metavar="FILE", required=True, type=NEW_FILE, help="The page, which is new.")
@option(
    "--without-audit", is_flag=True, help="Do not look for missing parents, which takes longest."
)
@between
@job
def report(
    runner: Runner,
    *,
    archive: str | None,
    output: Path,
    without_audit: bool,
    low_ns: int,
    high_ns: int,
) -> int:
    """Write an HTML report on ARCHIVE, or without it on the database: completeness and traffic.

    The page needs only a browser. --json prints the figures behind it.
    """
    from store.pipeline.files import require_new  # noqa: PLC0415
    from store.pipeline.report import report as jobs  # noqa: PLC0415

    require_new(output, "the report")
    with runner.messages(archive) as opened, runner.session() as session:
        written = jobs.report(
            opened(session), output, bounds=(low_ns, high_ns), is_audited=not without_audit
        )
        return runner.finish(written)
