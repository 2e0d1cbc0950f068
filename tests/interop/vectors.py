"""Bytes made by other implementations, kept in ``tests/vectors``."""

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent.parent / "vectors"

Case = dict[str, Any]


def load(name: str) -> dict[str, Any]:
    vectors: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text())
    return vectors


def case_name(case: Case) -> str:
    return str(case.get("name") or case.get("iso"))


def hex_or_none(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def int_or_none(text: str | None) -> int | None:
    return None if text is None else int(text)
