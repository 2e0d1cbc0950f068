"""The commands of a runbook, as they are written there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.deploy.tools import ROOT

RUNBOOKS: Final = ROOT / "docs/runbooks"
SHELL: Final = ("storenode ", "psql ", "curl ", "promtool ", "openssl ", "df ", "du ", "date ")
"""Programs that a test can run; others belong to systemd, containers or Kubernetes."""

SQL: Final = ("select ", "vacuum ", "analyze ", "alter ")
_BLOCK: Final = re.compile(r"```sh\n(.*?)```", re.DOTALL)
_SPAN: Final = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Page:
    """A runbook, by the name of its file."""

    name: str

    @property
    def path(self) -> Path:
        """The file."""
        return RUNBOOKS / f"{self.name}.md"

    @property
    def alert(self) -> str:
        """The alert that the page is about."""
        return self.path.read_text("utf-8").partition("\n")[0].removeprefix("# ")

    def commands(self) -> list[str]:
        """Return what can be run, each once, in the order of the page."""
        text = self.path.read_text("utf-8")
        blocks = [line.strip() for block in _BLOCK.findall(text) for line in block.splitlines()]
        spans = [" ".join(span.split()) for span in _SPAN.findall(_BLOCK.sub("", text))]
        runnable = [each for each in [*spans, *blocks] if each.lower().startswith((*SHELL, *SQL))]
        return list(dict.fromkeys(runnable))

    def command(self, prefix: str) -> str:
        """Return the one command that is this, or else begins so."""
        found = [each for each in self.commands() if each.startswith(prefix)]
        found = [prefix] if prefix in found else found
        assert len(found) == 1, f"{self.name}.md: {prefix!r} begins {found}"
        return found[0]


def is_sql(command: str) -> bool:
    """Return True for what runs in the database."""
    return command.lower().startswith(SQL)


def filled_in(command: str, values: Mapping[str, str]) -> str:
    """Return a command with values in the place of its placeholders, which are in capitals."""
    for placeholder, value in values.items():
        command = command.replace(placeholder, value)
    return command
