"""The errors that end a node, and the exit code of the command for each."""

from storenode.cli.errors import FAILED, UNREACHABLE, USAGE


class NodeFailedError(Exception):
    """The node cannot continue."""

    exit_code = FAILED


class WrongConfigurationError(NodeFailedError):
    """An option, or a file that it names, cannot be used."""

    exit_code = USAGE


class UnreachableError(NodeFailedError):
    """The database could not be reached."""

    exit_code = UNREACHABLE


def as_sentence(error: Exception | str) -> str:
    """Return a text with a capital letter and the mark that ends a sentence."""
    text = str(error)
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."


def unserved(reason: object) -> str:
    """Return the error of a start where the database does not serve."""
    return f"The database does not serve: {reason}"
