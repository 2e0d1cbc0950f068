"""The files of statements: each is used, and nothing is asked for that none has."""

import re
from pathlib import Path

from store.db.statements import SQL

STORE = Path(__file__).parents[3] / "store"


def test_every_statement_is_used_and_every_used_one_is_there() -> None:
    sources = [*STORE.rglob("*.py"), *STORE.rglob("*.sql")]
    texts = [path.read_text("utf-8") for path in sources]
    used = {name for text in texts for name in re.findall(r"(?:\bSQL\.|<)(\w+\.\w+)", text)}
    stored = {(table, name) for table in vars(SQL) for name in getattr(SQL, table).names}
    assert {f"{table}.{name}" for table, name in stored} == used
    for table, name in stored:
        text = getattr(getattr(SQL, table), name)
        assert text
        assert not re.search(r"--|<\w+\.\w+>|^\s|\s$", text)
