"""How a field of a configuration declares the option of `storenode run` that fills it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from functools import partial
from typing import Any, Final

import click

from storenode.cli.options.layers import option

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_METADATA: Final = "option"


def _declare(
    section: str,
    what: str,
    kind: Any = None,  # noqa: ANN401 - whatever click takes as a type
    default: object = None,
    *,
    secret: bool = False,
    **more: Any,  # noqa: ANN401 - those of click.Option, unchanged
) -> Any:  # noqa: ANN401 - as `dataclasses.field`
    """A field that an option fills: its help text, type and default as on the command line."""
    if isinstance(kind, click.IntRange):
        more.setdefault("metavar", "N")
    if default is not None:
        more |= {"default": default, "show_default": True}
    given = {"section": section, "help": what, "type": kind, **more}
    return field(repr=not secret, metadata={_METADATA: given})


data = partial(_declare, "Data")
listener = partial(_declare, "Listeners")
access = partial(_declare, "Access")
messages = partial(_declare, "Messages")
limit = partial(_declare, "Limits")
request = partial(_declare, "Requests")
peers = partial(_declare, "Peers")
running = partial(_declare, "Running")


def options_of(config: type, *names: str, **others: str) -> Decorator:
    """Give a command the options that the fields of a dataclass declare, or some of them.

    ``others`` takes the place of what is declared, such as the section.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(fields(config)):
            if not names or each.name in names:
                flag = "--" + each.name.replace("_", "-")
                command = option(flag, **{**each.metadata[_METADATA], **others})(command)
        return command

    return decorate
