"""How commands end: exit codes, and one sentence on standard error."""

import click

from storenode.cli.client.text import safe
from storenode.cli.options.layers import where_from

OK = 0
FAILED = 1
"""The operation failed."""

USAGE = 2
"""Wrong usage or configuration."""

UNREACHABLE = 3
"""The node or the database could not be reached."""


class CliError(Exception):
    """Ends a command with an exit code and one sentence that says what was wrong."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


def usage_sentence(error: click.ClickException) -> str:
    """One sentence for wrong usage; a bad value is named by where it came from."""
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        return f"Invalid value for {where_from(error)}: {_ended(error.message)}"
    return _ended(error.format_message())


def complain(sentence: str) -> None:
    """Print a sentence on standard error."""
    click.echo(f"storenode: {safe(sentence)}", err=True)


def _ended(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "?", "!")) else f"{text}."
