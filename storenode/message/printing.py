"""Text of strangers for terminals, logs and reports."""


def printable(text: str) -> str:
    """The text with everything that does not print written as an escape.

    Control characters, marks of direction and separators of lines are among it.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """The same of several lines, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))
