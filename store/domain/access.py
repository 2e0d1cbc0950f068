"""Access control: the token file, and the decision on one call.

The format of the file is in ``docs/access.md``. Rules:

1. Without a token file everybody may do everything but administer; the admin listener on loopback
   then serves everybody who reaches it.
2. With one, every call carries ``authorization: Bearer TOKEN``. The file holds SHA-256 digests of
   tokens, never tokens. A client is looked up by the digest of its token, so that the time of a
   lookup reveals nothing of a token.
3. A right that is missing is `PERMISSION_DENIED`, a token that is missing or unknown
   `UNAUTHENTICATED`. Messages outside a client's topics do not exist for it, and no error shows
   that something exists. Only a message that it publishes there itself is refused by name.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from store.domain.ports import TopicRights
from store.domain.quota import ClientLimits
from storenode.message.limits import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES, MAX_TOPIC_BYTES

MAX_TOKEN_CHARS: Final = 4_096
MAX_CLIENT_NAME_CHARS: Final = 64

_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_CLIENT_NAME_CHARS}}}")
_BEARER: Final = "bearer "


class Right(StrEnum):
    """A permission of a client, as the token file names it."""

    READ = "read"
    PUBLISH = "publish"
    FOLLOW = "follow"
    ADMIN = "admin"
    BACKFILL = "backfill"
    """The right to publish messages older than the clock drift, besides `PUBLISH`."""


class TokenFileError(ValueError):
    """The token file cannot be used; the text names the line or the entry."""


class CallDeniedError(Exception):
    """A caller is not let in, for the reason that the sentence names."""


class UnauthenticatedError(CallDeniedError):
    """A caller sent no token, or an unknown one."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller that is let in. ``named``: it has its own entry in the token file."""

    name: str
    rights: frozenset[Right]
    topics: TopicRights = field(default_factory=TopicRights)
    limits: ClientLimits = field(default_factory=ClientLimits)
    named: bool = False


_ADMIN_ELSEWHERE: Final = (
    "this node has no token file, so it is administered over its admin listener on "
    "loopback only: call it there, or start the node with --client-token-file"
)
_EVERYBODY: Final = frozenset({Right.READ, Right.PUBLISH, Right.FOLLOW})
_OPERATOR: Final = frozenset(Right)


class Access:
    """The decision on calls. Immutable: a changed token file makes a new one.

    ``clients`` are those of the token file by the digests of their tokens, None without a file,
    when ``stranger_limits`` hold for every caller.
    """

    __slots__ = ("_stranger_limits", "clients")

    def __init__(
        self,
        clients: Mapping[bytes, Principal] | None = None,
        stranger_limits: ClientLimits | None = None,
    ) -> None:
        self.clients = clients
        self._stranger_limits = stranger_limits or ClientLimits()

    def authorize(
        self, authorization: str | None, right: Right, stranger: str, *, open_admin: bool = False
    ) -> Principal:
        """Return the caller of one call, if it may make it.

        ``authorization`` is the call's metadata of that name. ``stranger`` names a caller without
        a token (the host it comes from). ``open_admin``: the call came in on the admin listener
        on loopback.

        Raises:
            CallDeniedError: a caller that is not known, or lacks the right.
        """
        if self.clients is None:
            if right is Right.ADMIN and not open_admin:
                raise CallDeniedError(_ADMIN_ELSEWHERE)
            rights = _OPERATOR if open_admin else _EVERYBODY
            return Principal(stranger, rights, limits=self._stranger_limits)
        client = self.clients.get(_token_digest(authorization))
        if client is None:
            raise UnauthenticatedError(
                "the token is not known to this node: check it, or ask the operator for a new one"
            )
        if right not in client.rights:
            raise CallDeniedError(
                f"client {client.name} lacks the right `{right}`: ask the operator of the node for"
                " it"
            )
        return client


def _token_digest(authorization: str | None) -> bytes:
    if authorization is None:
        raise UnauthenticatedError(
            "the call carries no token: send the metadata `authorization: Bearer TOKEN`"
        )
    scheme, token = authorization[: len(_BEARER)], authorization[len(_BEARER) :].strip()
    if scheme.lower() != _BEARER or not 0 < len(token) <= MAX_TOKEN_CHARS:
        raise UnauthenticatedError(
            "the metadata `authorization` is not of the form `Bearer TOKEN`: correct it"
        )
    return sha256(token.encode()).digest()


def parse_token_file(text: str, defaults: ClientLimits | None = None) -> Access:
    """Read a token file (see ``docs/access.md``).

    ``defaults`` are the limits of a client whose entry sets none.

    Raises:
        TokenFileError: the text is no TOML (with the line), or an entry is wrong (with its name).
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TokenFileError(f"not a TOML file: {error}") from None
    _only("the file", document, ("limits", "clients"))
    limits = _limits("[limits]", _table("[limits]", document.get("limits", {})), defaults)
    clients: dict[bytes, Principal] = {}
    for name, entry in _table("[clients]", document.get("clients", {})).items():
        digest, client = _client(name, entry, limits)
        other = clients.setdefault(digest, client)
        if other is not client:
            raise TokenFileError(
                f"[clients.{name}] has the token of [clients.{other.name}]: give each its own"
            )
    return Access(clients, limits)


def _client(name: str, value: object, limits: ClientLimits) -> tuple[bytes, Principal]:
    where = f"[clients.{name}]"
    if not _NAME.fullmatch(name):
        raise TokenFileError(
            f"{where}: a name has 1 to {MAX_CLIENT_NAME_CHARS} letters, digits, dots, dashes and "
            "underscores: rename the client"
        )
    entry = _table(where, value)
    _only(where, entry, ("token_sha256", "rights", "pubsub_topics", "content_topics", "limits"))
    limits = _limits(f"[clients.{name}.limits]", _table(where, entry.get("limits", {})), limits)
    return _digest(where, entry), Principal(
        name, _rights(where, entry), _topics(where, entry), limits, named=True
    )


def _digest(where: str, entry: Mapping[str, Any]) -> bytes:
    text = entry.get("token_sha256")
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise TokenFileError(
            f"{where}: token_sha256 must be 64 hexadecimal digits, the SHA-256 of the token: "
            "make it with `printf %s TOKEN | sha256sum`"
        )
    return bytes.fromhex(text)


def _rights(where: str, entry: Mapping[str, Any]) -> frozenset[Right]:
    names = _strings(where, "rights", entry.get("rights"))
    known = {right.value for right in Right}
    for name in names:
        if name not in known:
            raise TokenFileError(
                f"{where}: there is no right {name!r}: use some of {', '.join(Right)}"
            )
    return frozenset(map(Right, names))


def _topics(where: str, entry: Mapping[str, Any]) -> TopicRights:
    prefixes = {}
    for key in ("pubsub_topics", "content_topics"):
        prefixes[key] = _strings(where, key, entry[key]) if key in entry else ()
        for prefix in prefixes[key]:
            if not prefix or len(prefix.encode()) > MAX_TOPIC_BYTES or "\0" in prefix:
                raise TokenFileError(
                    f"{where}: {key} holds {prefix[:80]!r}, with which no topic can begin: give "
                    "prefixes of topics, or leave the key out to allow every topic"
                )
    return TopicRights(prefixes["pubsub_topics"], prefixes["content_topics"])


_LIMIT_NAMES: Final = tuple(item.name for item in fields(ClientLimits))
_LIMIT_CEILINGS: Final = {
    "request_bytes": MAX_REQUEST_BYTES,
    "message_bytes": MAX_MESSAGE_BYTES,
}


def _limits(where: str, entry: Mapping[str, Any], base: ClientLimits | None) -> ClientLimits:
    _only(where, entry, _LIMIT_NAMES)
    changes = {}
    for key, value in entry.items():
        ceiling = _LIMIT_CEILINGS.get(key)
        if type(value) is not int or value < 1 or (ceiling is not None and value > ceiling):
            span = "of 1 or more" if ceiling is None else f"from 1 to {ceiling}"
            raise TokenFileError(f"{where}: {key} must be a whole number {span}")
        changes[key] = value
    return replace(base or ClientLimits(), **changes)


def _strings(where: str, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value) or not value:
        raise TokenFileError(f"{where}: {key} must be a list of one or more strings")
    return tuple(dict.fromkeys(value))


def _table(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TokenFileError(f"{where}: this must be a table")
    return value


def _only(where: str, entry: Mapping[str, Any], known: Iterable[str]) -> None:
    names = list(known)
    for key in entry:
        if key not in names:
            near = get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
            raise TokenFileError(f"{where}: there is no key {key!r}: {hint}")
