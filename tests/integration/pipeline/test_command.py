"""`storenode pipeline` as an operator runs it: what is refused before anything starts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from storenode.cli.main import main
from tests.integration.pipeline.world import messages
from tests.support.command import Command
from tests.support.postgres import PostgresServer

Ended = tuple[int, str, str]
REFUSED = [
    ("verify {tmp}", 2, "There is no archive in TMP"),
    ("diff {tmp} {tmp}", 2, "There is no archive in TMP"),
    ("restore {tmp} --database-url {url}", 2, "There is no archive in TMP"),
    ("fingerprint {tmp}", 2, "There is no archive in TMP"),
    ("report {tmp} --output {tmp}/x.html", 2, "There is no archive in TMP"),
    ("repair {tmp}", 2, "There is no manifest in TMP"),
    ("archive {file} --database-url {url}", 2, "TMP/file is no directory"),
    ("archive {file}/x --dry-run", 2, "TMP/file is no directory"),
    ("archive {other} --database-url {url}", 2, "that is no archive of storenode"),
    ("archive {torn} --database-url {url}", 1, "cannot be read or written"),
    ("verify {torn}", 1, "cannot be read or written"),
    ("verify postgresql://x/y", 2, "An archive is a directory, not a database"),
    ("verify {lake} --metrics-file {tmp}/no/x", 2, "metrics cannot be written"),
    ("diff {lake} {lake} --output {tmp}", 2, "TMP exists already"),
    ("diff {lake} {lake} --output {tmp}/no/x", 2, "There is no directory TMP/no"),
    ("diff {lake} {lake} --output {tmp}/[x]", 2, "choose a path without '['"),
    ("audit {lake} --missing {file}", 2, "TMP/file exists already"),
    ("restore {lake} --diff {file}", 2, "as the output of a diff"),
    ("report {lake} --output {tmp}", 2, "TMP exists already"),
    ("report {lake} --output {tmp}/none/x", 2, "There is no directory"),
    ("archive {tmp}/lake --database-url postgresql://x@127.0.0.1:1/x", 3, "not be reached"),
    ("archive {tmp}/lake", 2, "There is no database in"),
    ("archive {tmp}/lake --database-url {empty}", 1, "storenode db upgrade"),
    ("verify {tmp} --from 9 --to 9", 2, "--from must be before --to"),
    ("verify {tmp} --spark-conf odd", 2, "must be NAME=VALUE"),
    ("JAVA_HOME={tmp} verify {lake}", 2, "JAVA_HOME names TMP, which has no bin/java: install one"),
    ("JAVA_HOME={old} verify {lake}", 2, "bin/java is version 8: install one"),
]


@pytest.mark.parametrize(("command", "code", "reported"), REFUSED)
def test_an_impossible_job_is_refused_before_spark_starts(
    ended: Callable[[str], Ended], command: str, code: int, reported: str
) -> None:
    found, out, said = ended(command)
    assert (found, out, len(said.splitlines())) == (code, "", 1), said
    assert said.startswith("storenode: ")
    assert reported in said


@pytest.mark.parametrize("place", ["{lake}", "--database-url {url}"])
def test_fingerprints_need_no_spark(ended: Callable[[str], Ended], place: str) -> None:
    code, out, _ = ended(f"JAVA_HOME={{tmp}} fingerprint {place} --level day --json")
    assert (code, json.loads(out)["messages"]) == (0, len(messages()))


@pytest.fixture(scope="module")
def places(
    postgres: PostgresServer,
    filled_database: str,
    archived: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
    """Create databases, archives, another table, a torn log, a file, and a Java of long ago."""
    folder = tmp_path_factory.mktemp("places")
    other, torn, file = folder / "other", folder / "torn", folder / "file"
    write_deltalake(other / "messages", pa.table({"number": [1]}))
    log = shutil.copytree(archived / "messages" / "_delta_log", torn / "messages" / "_delta_log")
    newest = max(log.glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-20])
    file.touch()
    java = folder / "old" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    paths = {"old": folder / "old", "tmp": folder, "lake": archived}
    paths |= {"other": other, "torn": torn, "file": file}
    made = {"url": filled_database, "empty": "template0"}
    databases = {name: postgres.url(postgres.create_database(of)) for name, of in made.items()}
    return databases | {name: str(path) for name, path in paths.items()}


@pytest.fixture
def ended(
    places: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[[str], Ended]:
    """Return a function that runs the command here, without Spark."""

    def run_here(command: str) -> Ended:
        monkeypatch.setenv("STORENODE_DATA_DIR", str(tmp_path / "data"))
        monkeypatch.delattr("store.pipeline.spark.spark_session")
        words = [each.format(**places) for each in command.split()]
        while "=" in words[0]:
            monkeypatch.setenv(*words.pop(0).split("="))
        with pytest.raises(SystemExit) as ended:
            main(["pipeline", *words])
        out, err = capsys.readouterr()
        assert not Path(places["tmp"], "lake").exists()
        return ended.value.code, out, err.replace(places["tmp"], "TMP")  # type: ignore[return-value]

    return run_here


def test_a_jvm_that_does_not_start_prints_the_cause(archived: Path) -> None:
    ended = Command(timeout_s=240)(
        "pipeline", "verify", str(archived), "--spark-conf=spark.driver.memory=1k"
    )
    assert (ended.code, ended.out) == (1, "")
    assert "Too small maximum heap" in ended.err
    assert ended.err.splitlines()[-1].startswith(
        "storenode: Spark's JVM has ended at its start: it says above why"
    )
