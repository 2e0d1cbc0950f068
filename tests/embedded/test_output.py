"""The output of a program: how much is kept, and how much a report has."""

import os
from pathlib import Path

import pytest

from store.embedded import process
from store.embedded.process import (
    MAX_REASON_CHARS,
    Launch,
    OutputPump,
    ProgramFailedError,
    complaint,
)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("", "it ended without a word"),
        ("FATAL:  " + "x" * 10_000, "x" * MAX_REASON_CHARS),
        ("LOG:  fine\nlast line\n\n", "last line"),
        ("10:00 [1] FATAL:  first\n10:01 [1] LOG:  then\n", "first"),
        ("initdb: error: cannot\ninitdb: removing files\n", "cannot"),
        (
            "running ... FATAL:  could not extend: wrote only 1 of 2 bytes\nPANIC:  cannot abort\n",
            "could not extend: wrote only 1 of 2 bytes",
        ),
        (
            "FATAL:  could not write: No space left on device\nPANIC:  cannot abort\n",
            "could not write: No space left on device",
        ),
    ],
)
def test_the_line_that_explains_is_the_one_that_is_reported(output: str, reason: str) -> None:
    assert complaint(output) == reason


def test_the_log_is_bounded_and_loses_its_oldest_part_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MAX_LOG_BYTES", 1_000)
    monkeypatch.setattr(process, "LOG_READ_BYTES", 100)
    log = tmp_path / "postgres.log"
    reading, writing = os.pipe()
    pump = OutputPump(os.fdopen(reading, "rb"), log)
    lines = [f"line {n:04d}\n" for n in range(500)]
    with os.fdopen(writing, "wb") as out:
        out.write("".join(lines).encode())
    assert pump.join(60)
    kept = (tmp_path / "postgres.log.1").read_text() + log.read_text()
    assert "".join(lines).endswith(kept)
    assert 1_000 <= len(kept) <= 2_000
    assert pump.tail().endswith(lines[-1])
    assert {path.name for path in tmp_path.iterdir()} == {"postgres.log", "postgres.log.1"}


def test_output_is_drained_although_the_log_cannot_be_written(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    pump = OutputPump(os.fdopen(reading, "rb"), tmp_path / "absent" / "postgres.log")
    with os.fdopen(writing, "wb") as out:
        out.write(b"x" * 1_000_000)
    assert pump.join(60)
    assert pump.bytes_read == 1_000_000


def test_a_program_that_does_not_end_is_given_up() -> None:
    with pytest.raises(ProgramFailedError, match=r"/bin/sh did not end within 0\.2 s"):
        Launch().run(["/bin/sh", "-c", "kill -STOP $$"], timeout_s=0.2)


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(ProgramFailedError, match=r"cannot run /absent/postgres: .*No such file"):
        Launch().run(["/absent/postgres"])
