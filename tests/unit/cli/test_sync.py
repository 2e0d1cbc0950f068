"""Lists of SDS messages as `storenode sync --ids` reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storenode.cli.errors import USAGE, CliError
from storenode.cli.sync import listed

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("list") / "ids"


@given(given=st.lists(st.tuples(texts, texts, st.none() | st.binary(min_size=32, max_size=32))))
def test_what_is_written_line_by_line_is_read(
    path: Path, given: list[tuple[str, str, bytes | None]]
) -> None:
    lines = [
        {"channel": channel, "message_id": name, "hint": hint and hint.hex(), "other": 1}
        for channel, name, hint in given
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert list(listed(path)) == [(channel, (name, hint)) for channel, name, hint in given]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "Line 1 of"),
        ("[]", "is not like"),
        ("\n", "is not like"),
        ('{"channel": "a"}', "is not like"),
        ('{"channel": "a", "message_id": ""}', "is not like"),
        ('{"channel": 1, "message_id": "b"}', "is not like"),
        ('{"channel": "a", "message_id": "b", "hint": 7}', "is not like"),
        ('{"channel": "a", "message_id": "b", "hint": "00"}', "64 hexadecimal digits"),
        ('{"channel": "a", "message_id": "\\ud800"}', "is not like"),
        ("[" * 100_000, "is not like"),
        ("x" * 300_000, "is longer than"),
        ('{"channel": "a", "message_id": "b"}\n{}', "Line 2 of"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "ids"
    path.write_text(text)
    with pytest.raises(CliError, match=sentence) as caught:
        list(listed(path))
    assert caught.value.code == USAGE
    assert len(caught.value.sentence.splitlines()) == 1
