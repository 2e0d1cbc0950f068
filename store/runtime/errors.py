"""Why a node did not start or had to end; each text is one sentence for the operator."""


class NodeError(Exception):
    """The node cannot go on."""


class WrongConfigurationError(NodeError):
    """An option, or a file that it names, cannot be used."""


class UnreachableError(NodeError):
    """The database could not be reached."""


def ended(text: str) -> str:
    """The text with the mark that ends a sentence, which it may have already."""
    return text if text.endswith((".", "?", "!")) else f"{text}."
