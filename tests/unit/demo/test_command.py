"""The command of the demo: its exit code, its sentences, and what it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from store.cli.demo import demo
from store.demo import run
from store.demo.cluster import NODES
from store.demo.story import Story
from store.demo.verdict import Verdict
from storenode.cli.errors import FAILED, OK, CliError

LACKS = "n3 lacks 2 messages that were acknowledged."
GIVEN_UP = "n3 gets what it lacks: 2 left, and no change for 1 s"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory in which the demo makes its own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def end_with(
    monkeypatch: pytest.MonkeyPatch, differences: list[str], given_up: list[str]
) -> Result:
    """Run the command with a story that only ends."""

    async def tell(story: Story) -> None:
        (story._plan.directory / "n1.log").write_text("a line")
        story.waiter.given_up.extend(given_up)

    async def judge(*_: object) -> Verdict:
        return Verdict({name: set() for name in NODES}, differences)

    monkeypatch.setattr(Story, "tell", tell)
    monkeypatch.setattr(run, "judge", judge)
    return CliRunner().invoke(demo, ["--plain"], standalone_mode=False)


@pytest.mark.parametrize(("differences", "given_up"), [([LACKS], []), ([], [GIVEN_UP])])
def test_what_does_not_come_back_is_reported_and_kept(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, differences: list[str], given_up: list[str]
) -> None:
    ended = end_with(monkeypatch, differences, given_up)
    (kept,) = temporary.iterdir()
    assert isinstance(ended.exception, CliError)
    assert ended.exception.code == FAILED
    sentence = f"Something was not brought back. Logs and databases are in {kept}."
    assert ended.exception.sentence == sentence
    assert ("Not everything is everywhere:" in ended.output) is bool(differences)
    assert ("ran out of time; these waits were given up:" in ended.output) is bool(given_up)
    for reported in (*differences, *given_up):
        assert reported in ended.output
    assert (kept / "n1.log").exists()


def test_a_demo_that_brings_everything_back_leaves_no_file(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = end_with(monkeypatch, [], [])
    assert ended.return_value == OK, ended.output
    assert "The 3 stores are equal" in ended.output
    assert list(temporary.iterdir()) == []
