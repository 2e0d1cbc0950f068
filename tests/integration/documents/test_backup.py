"""Copies of a store as docs/backup.md makes them; the restore to a moment is in tests/faults."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psycopg

from tests.support import programs
from tests.support.fleet import NS_PER_S, Fleet, database_of, hashes, made, publish
from tests.support.node import COMMAND
from tests.support.pages import ROOT, Step, blocks, run_in_one_shell


def lines(*abouts: str) -> list[Step]:
    """Return the commands of the blocks of the page that contain one of some words."""
    shells = blocks((ROOT / "docs" / "backup.md").read_text(encoding="utf-8"), "sh")
    found = [body for about in abouts for body in shells if about in body]
    assert len(found) == len(abouts)
    return [Step(line, "") for body in found for line in body.splitlines()]


def path() -> str:
    """Return a `PATH` with the command and with Postgres's programs."""
    return f"{programs.chosen().bin_dir}:{Path(COMMAND).parent}:{os.environ['PATH']}"


async def test_a_dump(tmp_path: Path, database_url: str, empty_database_url: str) -> None:
    messages = made(300, time.time_ns() - 60 * NS_PER_S)
    fleet = Fleet(tmp_path)
    try:
        await publish(fleet.start(database_url=database_url), messages)
    finally:
        fleet.close()
    for about, url in (("pg_dump", database_url), ("pg_restore", empty_database_url)):
        todo = [Step(step.command.replace("/backup", str(tmp_path)), "") for step in lines(about)]
        run_in_one_shell(todo, {"STORENODE_DATABASE_URL": url, "PATH": path()})
    with psycopg.connect(empty_database_url) as connection:
        rows = connection.execute("select hash from storenode.messages").fetchall()
    assert {row[0] for row in rows} == hashes(messages)


async def test_a_copy_of_the_embedded_database(tmp_path: Path) -> None:
    messages = made(300, time.time_ns() - 60 * NS_PER_S)
    fleet = Fleet(tmp_path)
    try:
        node = fleet.start()
        await publish(node, messages)
    finally:
        fleet.close()
    node.data_dir.rename(tmp_path / "storenode-data")
    run_in_one_shell(lines("tar --create", "tar --extract"), {"PATH": path()}, tmp_path)
    node.data_dir = tmp_path / "storenode-data"
    with database_of(node) as connection:
        rows = connection.execute("select hash from storenode.messages").fetchall()
    assert {row[0] for row in rows} == hashes(messages)
