"""The command of the demo: its exit code, its sentences, and what it keeps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaos.checker.history import Violation
from chaos.checker.stores import Holding
from chaos.demo.story import ENDINGS, OUT_OF_TIME, Story
from chaos.node import NodeFailedError
from chaos.tasks import OutOfTimeError, StuckError
from store.cli.demo import demo
from storenode.cli.errors import FAILED, OK, CliError

LOST = Violation("lost", "2 acknowledged messages of other nodes are missing at n3")
ALTERED = Violation("altered", "1 messages in a scan of n2 are not as published")
STUCK = StuckError("n3 gets what it lacks: 2 left, and no change for 1 s")
LATE = OutOfTimeError("n3 gets what it lacks: 2 left when the time limit was reached")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory in which the demo makes its own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def end_with(
    monkeypatch: pytest.MonkeyPatch, violations: list[Violation], given_up: list[StuckError]
) -> Result:
    """Run the command with a story that only ends."""

    async def play(story: Story) -> None:
        (story._plan.directory / "n1.log").write_text("a line")
        story.given_up.extend(given_up)
        story.logs = []

    async def judge(story: Story) -> list[Violation]:
        story.holdings = [Holding("n1", "n1", (), (), ())]
        return violations

    monkeypatch.setattr(Story, "play", play)
    monkeypatch.setattr(Story, "judge", judge)
    return CliRunner().invoke(demo, ["--plain"], standalone_mode=False)


@pytest.mark.parametrize(
    ("violation", "given_up", "code", "reason"),
    [
        (LOST, [], FAILED, ""),
        (LOST, [STUCK], FAILED, "Nothing changed any more;"),
        (LOST, [STUCK, LATE], OUT_OF_TIME, "The demo ran out of time;"),
        (ALTERED, [LATE], FAILED, "The demo ran out of time;"),
    ],
)
def test_a_difference_is_reported_and_kept_with_the_waits_that_were_given_up(
    temporary: Path, violation: Violation, given_up: list[StuckError], code: int, reason: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        ended = end_with(patch, [violation], given_up)
    (kept,) = temporary.iterdir()
    assert isinstance(ended.exception, CliError)
    assert ended.exception.code == code
    assert ended.exception.sentence == f"{ENDINGS[code]} Logs and databases are in {kept}."
    for reported in ("Not everything is everywhere:", str(violation), reason, *map(str, given_up)):
        assert reported in ended.output
    assert (kept / "n1.log").exists()


@pytest.mark.parametrize("given_up", [[], [STUCK, LATE]])
def test_a_demo_without_a_difference_succeeds_however_long_it_took(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, given_up: list[StuckError]
) -> None:
    ended = end_with(monkeypatch, [], given_up)
    assert ended.return_value == OK, ended.output
    assert "The 3 stores are equal" in ended.output
    assert list(temporary.iterdir()) == []


def test_a_node_that_ends_by_itself_ends_the_demo(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end() -> None:
        raise NodeFailedError("The node n1 was ended by SIGKILL.", "a line")

    async def play(story: Story) -> None:
        story.tasks.start(end())
        await asyncio.Event().wait()

    monkeypatch.setattr(Story, "play", play)
    ended = CliRunner().invoke(demo, ["--plain"], standalone_mode=False)
    assert isinstance(ended.exception, CliError)
    assert ended.exception.sentence == "The node n1 was ended by SIGKILL."
    assert ended.output.endswith("a line\n")
    assert list(temporary.iterdir()), "the log is kept"
