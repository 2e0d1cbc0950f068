import os

import pytest

from tests.unit.config.cases import CommandLine


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return the options of a node, in an environment without any."""
    for name in os.environ:
        if name.startswith("STORENODE_"):
            monkeypatch.delenv(name)
    return CommandLine(monkeypatch)
