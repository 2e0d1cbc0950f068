"""The transports of `Store`: each sends a request of the schema and returns pages of the schema.

To add one, derive from `Transport` and name it in `TRANSPORTS`: every row of the tables is then
sent over it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import grpc
import httpx
from click.testing import CliRunner
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from storenode.cli.errors import CliError, usage_sentence
from storenode.cli.main import cli
from storenode.client.node import NodeClient, connect
from storenode.client.plain import to_json
from storenode.client.retry import Retry
from storenode.connection.call_status import Ending
from storenode.connection.errors import NodeError
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse

STORE: Final = "/storenode.v1.Store"
TIMEOUT_S: Final = 90.0

METHODS: Final[Mapping[str, tuple[type[Message], type[Message]]]] = {
    "Publish": (store_pb2.PublishRequest, store_pb2.PublishResponse),
    "Query": (StoreQueryRequest, StoreQueryResponse),
    "Scan": (store_pb2.ScanRequest, store_pb2.ScanPage),
    "Follow": (store_pb2.FollowRequest, store_pb2.FollowPage),
    "GetSdsMessages": (store_pb2.GetSdsMessagesRequest, store_pb2.SdsMessagesPage),
    "GetCausalHistory": (store_pb2.GetCausalHistoryRequest, store_pb2.CausalHistoryPage),
    "GetCoverage": (store_pb2.GetCoverageRequest, store_pb2.CoveragePage),
    "PublishStream": (store_pb2.PublishRequest, store_pb2.PublishResponse),
}
"""The request and the page of each method."""

UNARY: Final = frozenset({"Publish", "Query"})
END: Final = 2
"""The flag of the last frame of a stream."""

_NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Unused: by itself each client would read the system's certificates."""

_QUERY_CODES: Final = {404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}


class RefusedError(Exception):
    """The status and the sentence that a call ended with."""

    def __init__(self, code: str, sentence: str, request_id: str = "") -> None:
        super().__init__(f"{code}: {sentence}")
        self.code = code
        self.sentence = sentence
        self.request_id = request_id


def check_query(page: Message) -> Message:
    """Return a page, unless it is an error of the store protocol."""
    if isinstance(page, StoreQueryResponse) and page.status_code != 200:
        code = _QUERY_CODES.get(page.status_code, "INVALID_ARGUMENT")
        raise RefusedError(code, page.status_desc, page.request_id)
    return page


@dataclass
class Transport(ABC):
    """A caller of one node, which sends ``copies`` copies of its client's ``token``."""

    grpc_address: str
    http_address: str
    token: str | None = None
    copies: int = 1

    methods = frozenset(METHODS) - {"PublishStream"}
    takes_bytes = True
    """True if a request may be any bytes."""

    @classmethod
    def code_of(cls, code: str) -> str:
        """Return how the transport reports a status."""
        return code

    @abstractmethod
    def pages(self, method: str, request: bytes) -> AsyncGenerator[Any, None]:
        """Yield the pages of an answer; raise `RefusedError` where it ends with an error."""

    async def call(self, method: str, request: Message | bytes) -> list[Any]:
        """Return all pages of an answer; of a follower, those up to the first live one."""
        encoded = request if isinstance(request, bytes) else request.SerializeToString()
        found: list[Any] = []
        async with aclosing(self.pages(method, encoded)) as pages:
            async for page in pages:
                found.append(page)
                if method == "Follow" and found[-1].live:
                    break
        return found

    @property
    def authorization(self) -> list[tuple[str, str]]:
        """The header of the token."""
        given = [] if self.token is None else [("authorization", f"Bearer {self.token}")]
        return given * self.copies

    def client(self) -> httpx.AsyncClient:
        """Make a client of the HTTP listener."""
        return httpx.AsyncClient(
            base_url=f"http://{self.http_address}",
            headers=self.authorization,
            timeout=TIMEOUT_S,
            verify=_NO_TLS,
        )


class Grpc(Transport):
    """Bytes over gRPC."""

    methods = frozenset(METHODS)

    async def pages(self, method: str, request: bytes) -> AsyncGenerator[Any, None]:
        """Yield the pages of an answer."""
        channel: Any = grpc.aio.insecure_channel(
            self.grpc_address, options=[("grpc.max_send_message_length", 64 * 1024 * 1024)]
        )
        page, metadata, ending = METHODS[method][1], self.authorization, None
        try:
            if method in UNARY:
                call = channel.unary_unary(f"{STORE}/{method}")
                yield check_query(page.FromString(await call(request, metadata=metadata)))
            else:
                kind: Any = channel.unary_stream
                asked: Any = request
                if method == "PublishStream":
                    kind, asked = channel.stream_stream, iter([request])
                call = kind(f"{STORE}/{method}")(asked, metadata=metadata)
                ending = Ending(call)
                async for each in call:
                    yield page.FromString(each)
        except grpc.aio.AioRpcError as error:
            failure = (ending and await ending.failure(error)) or error
            raise RefusedError(failure.code().name, failure.details() or "") from None
        finally:
            await channel.close(None)


class Connect(Transport):
    """Connect over HTTP/1.1."""

    async def pages(self, method: str, request: bytes) -> AsyncGenerator[Any, None]:
        """Yield the pages of an answer."""
        page, bare = METHODS[method][1], method in UNARY
        kind = "application/proto" if bare else "application/connect+proto"
        body = request if bare else framed(request)
        async with (
            self.client() as client,
            client.stream(
                "POST", f"{STORE}/{method}", content=body, headers={"content-type": kind}
            ) as response,
        ):
            if bare or response.headers["content-type"] != kind:
                found = await response.aread()
                if response.status_code != 200:
                    raise _connect_error(json.loads(found))
                yield check_query(page.FromString(found))
                return
            async for flags, message in frames_of(response.aiter_raw()):
                if flags == END:
                    end = json.loads(message)
                    if "error" in end:
                        raise _connect_error(end["error"])
                    return
                yield page.FromString(message)
        raise AssertionError("the answer has no last frame")


PATHS: Final = {
    "Publish": ("POST", "/api/v1/messages"),
    "Query": ("GET", "/api/v1/messages"),
    "Scan": ("GET", "/api/v1/scan"),
    "Follow": ("GET", "/api/v1/follow"),
    "GetSdsMessages": ("POST", "/api/v1/sds/messages"),
    "GetCausalHistory": ("POST", "/api/v1/sds/causal-history"),
    "GetCoverage": ("GET", "/api/v1/coverage"),
}
LONG_QUERY: Final = ("POST", "/api/v1/messages/query")
_MANY: Final = 60
"""Entries of a list beyond which a query is sent as a body."""

_RENAMED: Final = {
    "messageHashes": "hashes",
    "paginationCursor": "cursor",
    "paginationForward": "forward",
    "paginationLimit": "limit",
    "confirmTimeout": "confirmTimeoutS",
}
_HASHES: Final = frozenset({"messageHash", "messageHashes", "retrievalHint", "fingerprint"})


class Json(Transport):
    """JSON, lines of it, and server-sent events of ``/api/v1``."""

    takes_bytes = False

    async def pages(self, method: str, request: bytes) -> AsyncGenerator[Any, None]:
        """Yield the pages of an answer."""
        asked = _as_json(METHODS[method][0].FromString(request))
        verb, path = PATHS[method]
        if verb == "GET" and any(isinstance(v, list) and len(v) > _MANY for v in asked.values()):
            verb, path = LONG_QUERY
        given: dict[str, Any] = {"json": asked}
        if verb == "GET":
            given = {"params": {name: _parameter(value) for name, value in asked.items()}}
        async with self.client() as client, client.stream(verb, path, **given) as response:
            if response.status_code != 200:
                error = json.loads(await response.aread())["error"]
                raise RefusedError(error["code"], error["message"])
            if method == "Follow":
                async for each in _events(response):
                    yield each
                return
            text = (await response.aread()).decode()
            for each in _pages(method, text):
                yield each


class Library(Transport):
    """The client library, on the schema's own classes."""

    takes_bytes = False

    async def pages(self, method: str, request: bytes) -> AsyncGenerator[Any, None]:
        """Yield the pages of an answer."""
        asked: Any = METHODS[method][0].FromString(request)
        async with connect(
            self.grpc_address, token=self.token, retry=Retry(attempts=1), timeout_s=TIMEOUT_S
        ) as client:
            try:
                if method == "Publish":
                    results = await client.publish_request(asked)
                    yield store_pb2.PublishResponse(results=results)
                elif method == "Query":
                    yield await client.query(asked)
                else:
                    async with aclosing(_called(client, method, asked)) as pages:
                        async for page in pages:
                            yield page
            except NodeError as error:
                code = error.code.removeprefix("QUERY_")
                if code != error.code:
                    code = _QUERY_CODES.get(int(code), "INVALID_ARGUMENT")
                raise RefusedError(code, error.sentence) from None


COMMANDS: Final = {
    "Publish": "publish",
    "Query": "query",
    "Scan": "scan",
    "Follow": "follow",
    "GetSdsMessages": "get",
    "GetCausalHistory": "causal-history",
    "GetCoverage": "coverage",
}
_FLAGS: Final = {
    "channel_id": "--channel",
    "content_topics": "--content-topic",
    "coverage": "--coverage",
    "cursor": "--cursor",
    "from_beginning": "--from-beginning",
    "known_ids": "--known",
    "max_depth": "--max-depth",
    "max_messages": "--max-messages",
    "message_hashes": "--hash",
    "min_confirms": "--min-confirms",
    "page_size": "--page-size",
    "pagination_cursor": "--cursor",
    "pagination_forward": "--forward",
    "pagination_limit": "--limit",
    "pubsub_topic": "--pubsub-topic",
    "step": "--by-day",
    "time_end": "--to",
    "time_start": "--from",
}


class Command(Transport):
    """The command `storenode` in this process, with lines of JSON in and out."""

    takes_bytes = False

    @classmethod
    def code_of(cls, code: str) -> str:
        """Return the exit code for a status."""
        return "3" if code == "UNAVAILABLE" else "1"

    async def pages(self, method: str, request: bytes) -> AsyncGenerator[Any, None]:
        """Yield the pages of an answer."""
        asked = METHODS[method][0].FromString(request)
        with TemporaryDirectory() as folder:
            arguments = [COMMANDS[method], "--json", f"--node={self.grpc_address}"]
            if self.token is not None:
                (Path(folder) / "token").write_text(self.token)
                arguments.append(f"--token-file={folder}/token")
            if isinstance(asked, store_pb2.PublishRequest):
                (Path(folder) / "input").write_text("\n".join(map(to_json, asked.messages)))
                arguments += ["--json-input", f"--file={folder}/input"]
            arguments += _flags_of(method, asked)
            ended = await asyncio.to_thread(
                CliRunner().invoke, cli, arguments, standalone_mode=False
            )
        error = ended.exception
        if isinstance(error, click.ClickException):
            raise RefusedError("2", usage_sentence(error))
        if isinstance(error, CliError):
            # A command fails too where the node has answered that a message was not taken.
            if method != "Publish" or "{" not in ended.stdout:
                raise RefusedError(str(error.code), error.sentence)
        elif error is not None:
            raise error
        # The node of this process writes its log there too.
        lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        for page in _pages_of_lines(method, lines):
            yield page


def _flags_of(method: str, asked: Any) -> Iterator[str]:  # noqa: ANN401 - of any method
    """Yield the options and arguments of a command."""
    names = set(asked.DESCRIPTOR.fields_by_name)
    if method in ("Query", "Scan", "Follow"):
        yield "--cursors"
        yield from () if asked.include_data else ("--no-data",)
    if method == "Follow":
        yield "--until-live"
    fields = [*asked.ListFields(), *(asked.filter.ListFields() if "filter" in names else ())]
    for field, value in fields:
        if flag := _FLAGS.get(field.name):
            for each in value if field.is_repeated else [value]:
                is_switch = field.type == field.TYPE_BOOL or field.name == "step"
                text = each.hex() if isinstance(each, bytes) else each
                yield flag if is_switch else f"{flag}={text}"
    for name in names & {"entries", "heads"}:
        yield "--"
        for entry in getattr(asked, name) or [HistoryEntry(message_id="any")]:
            hint = f"@{entry.retrieval_hint.hex()}" if entry.HasField("retrieval_hint") else ""
            yield f"{entry.message_id}{hint}"


def _pages_of_lines(method: str, lines: Iterable[dict[str, Any]]) -> Iterator[Message]:
    """Yield the pages of an answer; each ends where its cursor is printed."""
    kind = METHODS[method][1]
    page: Any = kind()
    for line in lines:
        if method == "Publish":
            read_plain(page.results.add(), line)
        elif method == "GetCoverage":
            read_plain(page.steps.add(), line)
        elif "missing" in line:
            read_plain(page.missing.add(), line["missing"])
        elif "message_hash" in line or "stored" in line or "entry" in line:
            line.pop("proven", None)
            read_plain(page.messages.add(), line)
        else:
            read_plain(page, line)
        if "cursor" in line:
            yield page
            page = kind()
    if page.ListFields() or method in UNARY:
        yield page


def read_plain(message: Message, plain: Mapping[str, Any]) -> None:
    """Fill a message from what a command prints of it."""
    for name, value in plain.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.message_type is not None:
            target = getattr(message, name)
            if not field.is_repeated:
                target.SetInParent()
            for each in value if field.is_repeated else [value]:
                read_plain(target.add() if field.is_repeated else target, each)
        elif field.is_repeated:
            getattr(message, name).extend(value)
        elif field.enum_type is not None:
            setattr(message, name, field.enum_type.values_by_name[value].number)
        else:
            is_bytes = field.type == field.TYPE_BYTES
            setattr(message, name, bytes.fromhex(value) if is_bytes else value)


TRANSPORTS: Final[list[type[Transport]]] = [Grpc, Connect, Json, Library, Command]


def _called(client: NodeClient, method: str, asked: Any) -> Any:  # noqa: ANN401 - of any method
    """Call a method of the library by the fields of a request."""
    given = {each.name: getattr(asked, each.name) for each in asked.DESCRIPTOR.fields}
    for name in ("filter", "time_start", "time_end"):
        if name in given and not asked.HasField(name):
            del given[name]
    for name in ("entries", "heads"):
        if name in given:
            given[name] = [
                (one.message_id, one.retrieval_hint if one.HasField("retrieval_hint") else None)
                for one in given[name]
            ]
    given.pop("include_timestamps", None)
    if method == "GetCoverage":
        given["by_day"] = given.pop("step") == store_pb2.GetCoverageRequest.DAY
    calls = {
        "Scan": client.scan,
        "Follow": client.follow,
        "GetSdsMessages": client.get_sds,
        "GetCausalHistory": client.causal_history,
        "GetCoverage": client.coverage,
    }
    return calls[method](**given)  # type: ignore[operator]


def _connect_error(error: dict[str, str]) -> RefusedError:
    return RefusedError(error["code"].upper(), error["message"])


def framed(message: bytes, flags: int = 0) -> bytes:
    """Return a message behind its flags and length."""
    return bytes([flags]) + len(message).to_bytes(4, "big") + message


async def frames_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the flags and messages of an answer as they come."""
    left = b""
    async for chunk in chunks:
        left += chunk
        while len(left) >= 5 and len(left) >= (end := 5 + int.from_bytes(left[1:5], "big")):
            yield left[0], left[5:end]
            left = left[end:]


def _as_json(request: Message) -> dict[str, Any]:
    """Return a request as ``/api/v1`` takes it."""
    asked = MessageToDict(request)
    asked |= asked.pop("filter", {})
    asked.pop("requestId", None)
    if request.DESCRIPTOR.name in ("StoreQueryRequest", "ScanRequest", "FollowRequest"):
        asked.setdefault("includeData", False)
    if isinstance(request, store_pb2.PublishRequest):
        asked["messages"] = [
            {"pubsubTopic": "", "contentTopic": "", "payload": "", "timestamp": "0"}
            | {name: each[name] for name in each if name != "message"}
            | each.get("message", {})
            for each in asked.get("messages", [])
        ]
    for name in ("entries", "heads"):
        if name in {each.name for each in request.DESCRIPTOR.fields}:
            asked.setdefault(name, [])
    return {_RENAMED.get(name, name): _hex(name, value) for name, value in asked.items()}


def _hex(name: str, value: Any) -> Any:  # noqa: ANN401 - any value of JSON
    if isinstance(value, list):
        return [_hex(name, each) for each in value]
    if isinstance(value, dict):
        return {key: _hex(key, each) for key, each in value.items()}
    if name in _HASHES or name == "paginationCursor":
        return base64.b64decode(value).hex()
    return float(value.removesuffix("s")) if name == "confirmTimeout" else value


def _parameter(value: Any) -> Any:  # noqa: ANN401 - any value of JSON
    return str(value).lower() if isinstance(value, bool) else value


def _base64(name: str, value: Any) -> Any:  # noqa: ANN401 - any value of JSON
    """Return a value of an answer as protobuf's JSON has it."""
    if isinstance(value, list):
        return [_base64(name, each) for each in value]
    if isinstance(value, dict):
        return {key: _base64(key, each) for key, each in value.items()}
    if name in _HASHES:
        return base64.b64encode(bytes.fromhex(value.removeprefix("0x"))).decode()
    return value


def _pages(method: str, text: str) -> Iterator[Message]:
    """Yield the pages of an answer in JSON; each line of a stream becomes one."""
    page = METHODS[method][1]
    if method == "Query":
        found = _base64("", json.loads(text))
        if "cursor" in found:
            found["paginationCursor"] = _base64("messageHash", found.pop("cursor"))
        yield ParseDict(found | {"statusCode": 200}, page())
    elif method == "Publish":
        yield ParseDict(_base64("", json.loads(text)), page())
    else:
        for line in text.splitlines():
            yield ParseDict(_line(method, _base64("", json.loads(line))), page())


def _line(method: str, line: dict[str, Any]) -> dict[str, Any]:
    """Return a line as the page that it is a part of."""
    if method == "GetCoverage":
        return {"steps": [line]}
    if "messageId" in line:
        stored = {name: line[name] for name in line if name not in ("messageId", "proven")}
        return {"messages": [{"entry": {"messageId": line["messageId"]}, "stored": stored}]}
    if "messageHash" in line:
        return {"messages": [line]}
    if "missing" in line:
        return {"missing": [line["missing"]]}
    return line


async def _events(response: httpx.Response) -> AsyncIterator[Message]:
    """Yield the pages of server-sent events: the messages before each event ``page``, and it."""
    messages: list[Any] = []
    fields: dict[str, str] = {}
    async for text in response.aiter_lines():
        if text:
            name, _, value = text.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        data = _base64("", json.loads(fields["data"])) if "data" in fields else None
        if fields.get("event") == "page":
            assert data is not None
            page = {"messages": messages, "cursor": fields["id"], **data}
            messages = []
            yield ParseDict(page, store_pb2.FollowPage())
        elif data is not None:
            messages.append(data)
        fields = {}
