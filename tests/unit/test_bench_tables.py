"""The tables of recorded measurements on the documentation's site."""

from __future__ import annotations

import re

from tools.site import references


def test_the_tables_of_measurements_name_what_they_were_measured_on() -> None:
    text = references.measurements()
    titles = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert titles[0] == "Publishing in batches"
    assert len(titles) == len(re.findall(r"commit [0-9a-f]{12}: .+ cores, Python 3", text))
    assert "| d=1,000 |" in text
