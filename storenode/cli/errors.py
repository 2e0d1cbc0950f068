"""The exit codes of commands, and the sentence on standard error."""

import logging
import os
import sys

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
    """Return the sentence for wrong usage; it names where a bad value came from."""
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        return f"Invalid value for {where_from(error)}: {_ended(error.message)}"
    return _ended(error.format_message())


def mute_library() -> None:
    """Let a command that reports failures by itself drop the log lines of the library."""
    logging.getLogger("storenode").addHandler(logging.NullHandler())


def drop_output() -> None:
    """Send what Python would still flush to standard output nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def complain(sentence: str) -> None:
    """Print a sentence on standard error."""
    click.echo(f"storenode: {safe(sentence)}", err=True)


def _ended(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "?", "!")) else f"{text}."
