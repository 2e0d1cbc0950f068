"""The checks of style, size, ways and test time refuse what they are made to refuse."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from bench import ways
from tests.support import processor_time
from tools import check_size, check_style
from tools.rooms import ROOT, lower_ceilings

BUDGET = """
[room."store"]
paths = ["store/"]
target = 10
lines = {lines}
files = 1
classes = 1
"""
CLEAN = '''"""Rows of the example."""


def count_rows(rows: list[int]) -> int:
    """Return the number of rows."""
    return len(rows)


class RowCounter:
    """A counter of rows."""

    count = 0
    """The number of rows."""
'''
EXEMPT: dict[str, str | None] = {
    "pyproject.toml": '[tool.ruff.lint.extend-per-file-ignores]\n"store/**" = ["D401"]\n'
}

OTHER = 'class RowCounter:\n    """A counter."""\n'
STYLE, SIZE = check_style.main, check_size.main
Case = tuple[Callable[..., int], Mapping[str, str | None], str]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Create a repository with one module that follows the rules."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name in ("tools", "store", "bench"):
        (tmp_path / name).mkdir()
    (tmp_path / "store/rows.py").write_text(CLEAN)
    (tmp_path / "tools/style.toml").write_text((ROOT / "tools/style.toml").read_text())
    (tmp_path / "tools/size_budget.toml").write_text(BUDGET.format(lines=13))
    (tmp_path / "pyproject.toml").write_text("")
    assert [main([], tmp_path) for main in (STYLE, SIZE)] == [0, 0]
    return tmp_path


def changed(old: str, new: str) -> dict[str, str | None]:
    """Return the module with other words."""
    assert old in CLEAN
    return {"store/rows.py": CLEAN.replace(old, new)}


def module(name: str) -> dict[str, str | None]:
    """Return a module without content."""
    return {f"store/{name}.py": '"""Rows."""\n'}


FOUND: list[Case] = [
    (STYLE, changed("Return the number", "The number"), "begins with 'The', not with a verb"),
    (STYLE, changed("Return the number of", "Whether there are"), "begins with 'Whether'"),
    (STYLE, changed("Return the number of rows", "Count rows"), "repeats the name"),
    (STYLE, changed("A counter of", "What counts"), "begins with 'What', not with a noun"),
    (STYLE, changed("The number", "How many"), "'count' begins with 'How', not with a noun"),
    (STYLE, changed("Rows of the", "How rows of an"), "begins with 'How', not with a noun"),
    (STYLE, changed("Return the number of rows", "Return what nobody counts"), "has 'nobody'"),
    (STYLE, changed("class Row", "# A node says so.\nclass Row"), "'node says': write 'reports'"),
    (STYLE, changed("rows: list", "told: list"), "write notified, reported instead of 'told'"),
    *((STYLE, module(each), "does not name the content") for each in ("heard", "gone_through")),
    *((STYLE, module(each), "does not name the content") for each in ("kept", "stating", "told")),
    (STYLE, module("peers_again"), "does not name the content"),
    (STYLE, {"store/o.py": OTHER}, "class 'RowCounter' is also defined in store/o.py"),
    (STYLE, EXEMPT, "store/** is exempt from D401"),
    (SIZE, {"store/rows.py": CLEAN + "\n" * 2}, "15 lines"),
    (SIZE, changed("class", "class Other: ...\nclass"), "2 classes"),
]
UNUSABLE: list[Case] = [
    *((main, {"store/rows.py": "def broken(:\n"}, "invalid syntax") for main in (STYLE, SIZE)),
    (SIZE, {"tools/size_budget.toml": "[room"}, "tools/size_budget.toml"),
    (SIZE, {"elsewhere.py": ""}, "elsewhere.py belongs to no room"),
    *((STYLE, {each: None}, "") for each in ("tools/style.toml", "pyproject.toml")),
]


@pytest.mark.parametrize(
    ("code", "case"), [*((1, each) for each in FOUND), *((2, each) for each in UNUSABLE)]
)
def test_a_check_finds_what_breaks_a_rule_and_says_why_it_cannot_run(
    repository: Path, capsys: pytest.CaptureFixture[str], code: int, case: Case
) -> None:
    main, planted, message = case
    plant(repository, planted)
    assert main([], repository) == code
    assert message in capsys.readouterr().err


def plant(repository: Path, files: Mapping[str, str | None]) -> None:
    """Write files; None removes one."""
    for name, text in files.items():
        (repository / name).unlink() if text is None else (repository / name).write_text(text)


def test_ceilings_of_size_only_fall(repository: Path) -> None:
    budget = repository / "tools/size_budget.toml"
    budget.write_text(BUDGET.format(lines=99))
    assert check_size.main(["--update"], repository) == 0
    assert "lines = 13\n" in budget.read_text()
    plant(repository, {"store/rows.py": CLEAN + "\n"})
    assert check_size.main(["--update"], repository) == 1
    assert "lines = 13\n" in budget.read_text()


def recorded(name: str, functions: int, **counts: int) -> ways.Way:
    steps = [("store/rows.py", f"count_{number}") for number in range(functions)]
    turn = ways.Turn(steps, dict.fromkeys(ways.COUNTS, 0) | counts)
    return ways.Way(name, [turn, ways.Turn([*steps, ("store/timer.py", "fire")], turn.counts)])


def test_a_way_above_a_ceiling_is_found() -> None:
    limits = {name: dict.fromkeys(ways.FIGURES, 2) for name in ways.WAYS}
    assert ways.find_excesses([recorded("publish", 2, statements=2)], limits) == []
    (excess,) = ways.find_excesses([recorded("publish", 2, statements=3)], limits)
    assert excess.startswith("publish: 3 statements, the ceiling is 2")


def test_ceilings_of_ways_only_fall(tmp_path: Path) -> None:
    figures = {"query": recorded("query", 3, commits=99).figures()}
    lowered = lower_ceilings(ways.CEILINGS.read_text(), figures)
    (tmp_path / "ways.toml").write_text(lowered)
    before, after = ways.read_ceilings(), ways.read_ceilings(tmp_path / "ways.toml")
    assert after["query"]["functions"] == 3
    assert after["query"]["commits"] == before["query"]["commits"]
    assert {name: after[name] for name in after if name != "query"} == {
        name: before[name] for name in before if name != "query"
    }


def test_ways_without_ceilings_fail(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"ways\.toml cannot be used"):
        ways.read_ceilings(tmp_path / "ways.toml")


TIMES = 'loop_s = 0.01\n["tests/unit"]\nseconds = 100\n["tests/sim"]\nseconds = 50\n'


@pytest.mark.parametrize(
    ("files", "loop_s", "verdict"),
    [
        ({"tests/unit/a.py": 60.0, "tests/unit/b.py": 40.0}, 0.01, None),
        ({"tests/unit/a.py": 101.0}, 0.01, "101 processor seconds, the ceiling is 100"),
        ({"tests/unit/a.py": 101.0}, 0.02, None),
        ({"tests/unit/a.py": 101.0}, 0.005, "101 processor seconds"),
        ({"tests/unit/a.py": 101.0, "tests/sim/a.py": 1.0}, 0.01, None),
        ({"tests/new/a.py": 1.0}, 0.01, "has no ceiling for tests/new"),
    ],
)
def test_tests_above_the_ceiling_of_their_folders_fail(
    tmp_path: Path, files: dict[str, float], loop_s: float, verdict: str | None
) -> None:
    file = tmp_path / "test_time.toml"
    file.write_text(TIMES)
    said = processor_time.judge(files, loop_s, file)
    assert (said is None) if verdict is None else (said is not None and verdict in said)


def test_ceilings_of_test_time_only_fall() -> None:
    measured = {"tests/unit/a.py": 10.0, "tests/sim/a.py": 90.0}
    lowered = processor_time.lower(TIMES, measured, 0.01)
    assert lowered == TIMES.replace("100", "11")
    assert processor_time.lower(TIMES, measured, 0.02) == TIMES


def test_test_time_without_ceilings_fails(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match="has no ceilings"):
        processor_time.judge({}, 0.01, tmp_path / "test_time.toml")


def test_the_words_of_the_rules_do_not_contradict_each_other() -> None:
    words = check_style.read_words()
    assert not words.verbs & words.not_nouns
    assert not words.modules & words.terms
