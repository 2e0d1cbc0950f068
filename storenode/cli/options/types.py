"""Values of options that are more than a text, as types for click and as plain data."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import click

from storenode.cli.options.units import (
    MAX_SIZE_BYTES,
    format_size,
    parse_duration_ns,
    parse_size_bytes,
)
from storenode.connection import arguments

_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


@dataclass(frozen=True, slots=True)
class Address:
    """A host (a name or an IP address, without brackets) and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """True when only this machine can reach it; a name other than localhost may be anywhere."""
        return arguments.is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class Peer:
    """The address of another node, and its ID when the operator pins it."""

    address: Address
    node_id: str | None = None

    def __str__(self) -> str:
        return f"{self.node_id}@{self.address}" if self.node_id else str(self.address)


def parse_address(text: str) -> Address:
    """Read `HOST:PORT`; an IPv6 address stands in brackets, as in `[::1]:7420`.

    Raises:
        ValueError: It has no host, no port, or a port beyond 65535.
    """
    return Address(*arguments.parse_address(text.strip()))


def parse_peer(text: str) -> Peer:
    """Read `[ID@]HOST:PORT`.

    Raises:
        ValueError: The address or the ID cannot be one.
    """
    node_id, at, address = text.strip().rpartition("@")
    if at and not _NODE_ID.fullmatch(node_id):
        raise ValueError(
            f"the part of {text!r} before @ is not a node ID: it is the first DNS name of that"
            " node's certificate, or what its ready line says"
        )
    return Peer(parse_address(address), node_id or None)


def split_list(text: str) -> list[str]:
    """Split the elements of a list in one text, separated by commas or white space."""
    return [part for part in re.split(r"[\s,]+", text) if part]


class Parsed(click.ParamType[object]):
    """A type made of a parser, whose ValueError becomes a usage error."""

    def __init__(self, name: str, metavar: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._metavar = metavar
        self._parse = parse

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002
        """Return the placeholder of the value in the help text."""
        return self._metavar

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Parse a text; what is no text was parsed before."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _duration(text: str, word: str = "") -> int | None:
    if word and text.strip().lower() == word:
        return None
    duration_ns = parse_duration_ns(text)
    if duration_ns == 0:
        raise ValueError("the duration must be more than 0" + (word and f", or the word {word}"))
    return duration_ns


def size_up_to(most_bytes: int) -> Parsed:
    """Return the type of a size in bytes of more than 0, with an upper bound."""

    def parse(text: str) -> int:
        size_bytes = parse_size_bytes(text)
        if size_bytes == 0:
            raise ValueError("the size must be more than 0")
        if size_bytes > most_bytes:
            raise ValueError(f"the size must be at most {format_size(most_bytes)}")
        return size_bytes

    return Parsed("size", "SIZE", parse)


def _switch(text: str) -> bool:
    match text.strip().lower():
        case "on":
            return True
        case "off":
            return False
    raise ValueError(f"{text!r} is neither on nor off")


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name.strip()):
        raise ValueError("a setting is written NAME=VALUE")
    return name.strip(), value.strip()


DURATION = Parsed("duration", "DUR", parse_duration_ns)
POSITIVE_DURATION = Parsed("duration", "DUR", _duration)
DURATION_OR_OFF = Parsed("duration", "DUR|off", partial(_duration, word="off"))
DURATION_OR_ALL = Parsed("duration", "DUR|all", partial(_duration, word="all"))
"""Nanoseconds; the word gives None."""

SIZE = size_up_to(MAX_SIZE_BYTES)
ADDRESS = Parsed("address", "HOST:PORT", parse_address)
PEER = Parsed("peer", "[ID@]HOST:PORT", parse_peer)
SWITCH = Parsed("switch", "on|off", _switch)
SETTING = Parsed("setting", "NAME=VALUE", _setting)
