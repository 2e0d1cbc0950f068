"""The reference of the gRPC schemas, made of the comments in proto/."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

# The numbers of a path in `SourceCodeInfo`: fields of the descriptors' own schema.
_SERVICE, _METHOD = FileDescriptorProto.SERVICE_FIELD_NUMBER, 2
_MESSAGE, _FIELD = FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER, 2
_NESTED, _NESTED_ENUM = DescriptorProto.NESTED_TYPE_FIELD_NUMBER, 4
_ENUM, _VALUE = FileDescriptorProto.ENUM_TYPE_FIELD_NUMBER, 2
_SYNTAX: Final = (FileDescriptorProto.SYNTAX_FIELD_NUMBER,)

_FIRST: Final = "storenode/v1/store.proto"
"""The schema that readers come for."""

Position = tuple[int, ...]
"""The path of an element of a schema: fields and indices from the file's descriptor down."""

Row = tuple[tuple[str, ...], Position]
"""Cells of a table, and what its last one is the comment of."""


def reference(proto: Path) -> str:
    """Describe the public schemas of a folder in Markdown."""
    files = sorted(_described(proto), key=lambda file: (file.name != _FIRST, file.name))
    return "\n\n".join(part for file in files for part in Schema(file).sections())


def _described(proto: Path) -> Sequence[FileDescriptorProto]:
    """Return the public schemas with their comments."""
    public = [
        str(path.relative_to(proto))
        for path in sorted(proto.rglob("*.proto"))
        if "internal" not in path.parts
    ]
    include = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "schemas.binpb")
        code = protoc.main(
            [
                *("protoc", f"--proto_path={proto}", f"--proto_path={include}"),
                *("--include_source_info", f"--descriptor_set_out={out}", *public),
            ]
        )
        if code != 0:
            raise RuntimeError("the schemas do not compile: see the lines above")
        return FileDescriptorSet.FromString(out.read_bytes()).file


@dataclass
class Schema:
    """A file of schemas."""

    file: FileDescriptorProto

    def __post_init__(self) -> None:
        self._comments: dict[Position, str] = {
            tuple(location.path): _paragraphs(location.leading_comments)
            for location in self.file.source_code_info.location
        }

    def sections(self) -> Iterator[str]:
        """Yield the parts of the file in Markdown."""
        yield f"## `{self.file.name}`"
        yield f"Package `{self.file.package}`. {self._comments.get(_SYNTAX, '')}".rstrip()
        for n, service in enumerate(self.file.service):
            yield from self._service(service, (_SERVICE, n))
        for message, path, name in self._messages():
            yield self._message(message, path, name)
            for n, enum in enumerate(message.enum_type):
                yield self._enum(enum, (*path, _NESTED_ENUM, n), f"{name}.{enum.name}")
        for n, enum in enumerate(self.file.enum_type):
            yield self._enum(enum, (_ENUM, n), f"{self.file.package}.{enum.name}")

    def _messages(self) -> Iterator[tuple[DescriptorProto, Position, str]]:
        for n, message in enumerate(self.file.message_type):
            yield from _with_nested(message, (_MESSAGE, n), self.file.package)

    def _service(self, service: ServiceDescriptorProto, path: Position) -> Iterator[str]:
        name = f"{self.file.package}.{service.name}"
        yield f"### Service `{service.name}` {{#{name}}}"
        yield self._comments.get(path, "")
        for n, method in enumerate(service.method):
            yield f"#### `{service.name}.{method.name}` {{#{name}.{method.name}}}"
            yield _signature(method)
            yield self._comments.get((*path, _METHOD, n), "")

    def _message(self, message: DescriptorProto, path: Position, name: str) -> str:
        head = f"### `{self._short(name)}` {{#{name}}}\n\n{self._comments.get(path, '')}"
        if not message.field:
            return head
        rows = [
            ((f"`{field.name}`", f"{field.number}", _type(field)), (*path, _FIELD, n))
            for n, field in enumerate(message.field)
        ]
        return f"{head}\n\n" + self._table(("field", "number", "type"), rows)

    def _enum(self, enum: EnumDescriptorProto, path: Position, name: str) -> str:
        head = f"### `{self._short(name)}` {{#{name}}}\n\n{self._comments.get(path, '')}"
        rows = [
            ((f"`{value.name}`", f"{value.number}"), (*path, _VALUE, n))
            for n, value in enumerate(enum.value)
        ]
        return f"{head}\n\n" + self._table(("value", "number"), rows)

    def _table(self, titles: Sequence[str], rows: Sequence[Row]) -> str:
        lines = [" | ".join((*titles, "meaning")), " | ".join(["---"] * (len(titles) + 1))]
        for cells, path in rows:
            meaning = self._comments.get(path, "").replace("\n\n", "<br>").replace("\n", " ")
            lines.append(" | ".join((*cells, meaning.replace("|", "\\|"))))
        return "\n".join(f"| {line} |" for line in lines)

    def _short(self, name: str) -> str:
        return name.removeprefix(f"{self.file.package}.")


def _with_nested(
    message: DescriptorProto, path: Position, scope: str
) -> Iterator[tuple[DescriptorProto, Position, str]]:
    name = f"{scope}.{message.name}"
    yield message, path, name
    for n, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _with_nested(nested, (*path, _NESTED, n), name)


def _signature(method: MethodDescriptorProto) -> str:
    asked = ("stream of " if method.client_streaming else "") + _named(method.input_type)
    answer = ("stream of " if method.server_streaming else "") + _named(method.output_type)
    return f"Request: {asked}. Response: {answer}."


def _type(field: FieldDescriptorProto) -> str:
    """Return a field's type as the schema writes it, with ``optional`` or ``repeated``."""
    if field.type_name:
        kind = _named(field.type_name)
    else:
        scalar = FieldDescriptorProto.Type.Name(field.type)
        kind = f"`{scalar.removeprefix('TYPE_').lower()}`"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {kind}"
    return f"optional {kind}" if field.proto3_optional else kind


def _named(type_name: str) -> str:
    name = type_name.removeprefix(".")
    return f"`{name}`" if name.startswith("google.") else f"[`{name}`](#{name})"


def _paragraphs(comment: str) -> str:
    """Return a comment as Markdown: the lines without the space that begins each."""
    return "\n".join(line.removeprefix(" ") for line in comment.splitlines()).strip()
