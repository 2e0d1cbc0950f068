from hashlib import sha256

import pytest

from store.domain.access import (
    Access,
    CallDeniedError,
    Principal,
    Right,
    TokenFileError,
    UnauthenticatedError,
    parse_token_file,
)
from store.domain.ports import TopicRights
from store.domain.quota import ClientLimits

TOKEN = "correct horse battery staple"


def digest(token: str = TOKEN) -> str:
    return sha256(token.encode()).hexdigest()


def entry(name: str = "alice", token: str = TOKEN, more: str = "", rights: str = '"read"') -> str:
    return f'[clients.{name}]\ntoken_sha256 = "{digest(token)}"\nrights = [{rights}]\n{more}\n'


def authorize(access: Access, token: str | None, right: Right = Right.READ) -> Principal:
    header = None if token is None else f"Bearer {token}"
    return access.authorize(header, right, "host 10.0.0.1")


def test_a_client_of_the_file() -> None:
    text = entry(
        rights='"read", "publish", "follow", "admin", "backfill"',
        more='pubsub_topics = ["/waku/2/rs/1/"]\ncontent_topics = ["/app/", "/other/1/"]\n'
        "[clients.alice.limits]\nrequests_per_second = 5\nmessages_per_second = 6\n"
        "bytes_per_second = 7\nconcurrent_calls = 8\nconcurrent_streams = 9\n"
        "request_bytes = 10\nmessage_bytes = 11",
    )
    client = authorize(parse_token_file(text), TOKEN)
    assert client == Principal(
        "alice",
        frozenset(Right),
        TopicRights(("/waku/2/rs/1/",), ("/app/", "/other/1/")),
        ClientLimits(5, 6, 7, 8, 9, 10, 11),
        named=True,
    )


def test_limits_of_the_file_are_those_of_clients_that_set_none() -> None:
    text = (
        "[limits]\nrequests_per_second = 5\nconcurrent_calls = 3\n"
        + entry()
        + entry("bob", "b", "[clients.bob.limits]\nconcurrent_calls = 4")
    )
    limits = {
        client.name: client.limits for client in (parse_token_file(text).clients or {}).values()
    }
    assert limits["alice"] == ClientLimits(requests_per_second=5, concurrent_calls=3)
    assert limits["bob"] == ClientLimits(requests_per_second=5, concurrent_calls=4)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("clients = 1 2", "line 1"),
        ("[client.a]\n", "no key 'client': did you mean clients"),
        ("clients = 3", "[clients]: this must be a table"),
        ("[clients]\nalice = 3", "[clients.alice]: this must be a table"),
        ("[clients.'a b']\n", "[clients.a b]: a name has"),
        ("[clients.a]\nrights = ['read']", "[clients.a]: token_sha256 must be 64"),
        ("[clients.a]\ntoken_sha256 = 'secret'\nrights = ['read']", "64 hexadecimal digits"),
        (f"[clients.a]\ntoken_sha256 = '{digest()}'", "rights must be a list"),
        (entry(rights=""), "[clients.alice]: rights must be a list"),
        (entry(rights='"reed"'), "no right 'reed'"),
        (entry(more="pubsub_topics = []"), "pubsub_topics must be a list of one or more"),
        (entry(more='content_topics = [""]'), "content_topics holds ''"),
        (entry(more='content_topics = ["a\\u0000"]'), "with which no topic can begin"),
        (entry(more="token = 'x'"), "[clients.alice]: there is no key 'token'"),
        (
            entry(more="limits = {request_per_second = 1}"),
            "no key 'request_per_second': did you mean requests_per",
        ),
        (entry(more="limits = {request_bytes = 0}"), "[clients.alice.limits]: request_bytes"),
        (entry(more="limits = {request_bytes = 16777217}"), "from 1 to 16777216"),
        (entry(more="limits = {message_bytes = 153601}"), "from 1 to 153600"),
        (entry(more="limits = {concurrent_calls = 1.5}"), "whole number of 1 or more"),
        ("[limits]\nmessages_per_second = -1", "[limits]: messages_per_second"),
        (entry() + entry("bob"), "[clients.bob] has the token of [clients.alice]"),
    ],
)
def test_errors_of_a_token_file_name_the_entry(text: str, named: str) -> None:
    with pytest.raises(TokenFileError) as caught:
        parse_token_file(text)
    assert named in str(caught.value)
    assert digest() not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_without_a_token_file_everybody_may_do_all_but_administer() -> None:
    access = Access()
    for right in (Right.READ, Right.PUBLISH, Right.FOLLOW):
        client = authorize(access, None, right)
        assert client.name == "host 10.0.0.1"
        assert client.topics.unrestricted
        assert not client.named
    with pytest.raises(CallDeniedError):
        authorize(access, TOKEN, Right.ADMIN)
    assert access.authorize(None, Right.ADMIN, "host", open_admin=True).name == "host"


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (None, "carries no token"),
        ("", "not of the form"),
        ("Basic abc", "not of the form"),
        ("Bearer  ", "not of the form"),
        (f"Bearer {'x' * 5000}", "not of the form"),
        ("Bearer wrong", "not known"),
        (f"Bearer {digest()}", "not known"),
    ],
)
def test_tokens_that_do_not_open(header: str | None, named: str) -> None:
    with pytest.raises(UnauthenticatedError, match="not known"):
        authorize(parse_token_file(""), TOKEN)
    access = parse_token_file(entry())
    with pytest.raises(UnauthenticatedError, match=named) as refused:
        access.authorize(header, Right.READ, "host", open_admin=True)
    assert header is None or len(header) < 10 or header not in str(refused.value)


def test_a_client_may_do_what_its_entry_says() -> None:
    access = parse_token_file(entry())
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert access.authorize(f"{scheme} {TOKEN}", Right.READ, "host").name == "alice"
    for right in set(Right) - {Right.READ}:
        with pytest.raises(CallDeniedError, match=f"alice lacks the right `{right}`") as refused:
            authorize(access, TOKEN, right)
        assert not isinstance(refused.value, UnauthenticatedError)
