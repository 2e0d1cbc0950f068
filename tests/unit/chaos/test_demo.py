"""The command of the demo: its exit code, its sentences, and what it keeps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaos.checker.history import Violation
from chaos.checker.stores import Holding
from chaos.demo.story import Story
from chaos.node import NodeFailedError
from store.cli.demo import demo
from storenode.cli.errors import FAILED, OK, CliError

LOST = Violation("lost", "2 acknowledged messages of other nodes are missing at n3")
GIVEN_UP = "n3 gets what it lacks: 2 left, and no change for 1 s"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory in which the demo makes its own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def end_with(
    monkeypatch: pytest.MonkeyPatch, violations: list[Violation], given_up: list[str]
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


@pytest.mark.parametrize(("violations", "given_up"), [([LOST], []), ([], [GIVEN_UP])])
def test_a_difference_and_a_wait_that_was_given_up_are_reported_and_kept(
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    violations: list[Violation],
    given_up: list[str],
) -> None:
    ended = end_with(monkeypatch, violations, given_up)
    (kept,) = temporary.iterdir()
    assert isinstance(ended.exception, CliError)
    assert ended.exception.code == FAILED
    sentence = f"Something was not brought back. Logs and databases are in {kept}."
    assert ended.exception.sentence == sentence
    assert ("Not everything is everywhere:" in ended.output) is bool(violations)
    assert ("ran out of time; these waits were given up:" in ended.output) is bool(given_up)
    for reported in (*map(str, violations), *given_up):
        assert reported in ended.output
    assert (kept / "n1.log").exists()


def test_a_demo_without_a_difference_leaves_no_file(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = end_with(monkeypatch, [], [])
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
