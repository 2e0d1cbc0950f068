"""The schemas are those of 0.1.0 with additions; buf finds changes that break clients."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import (
    FileDescriptorProto,
    FileDescriptorSet,
)

from tests.layering.test_wire import MODULES
from tools.rooms import ROOT

BASELINE = ROOT / "tests" / "vectors" / "proto-0.1.0.binpb"
BUF = Path(sys.executable).with_name("buf")
STORE = "storenode/v1/store.proto"
MESSAGE = "waku/message/v1/message.proto"
BROKEN = 100
"""The exit code of buf where a check has failed."""

OPTIONS = {
    "csharp_namespace",
    "go_package",
    "java_multiple_files",
    "java_outer_classname",
    "java_package",
    "objc_class_prefix",
}

"""Something about the schema that clients and peers rely on."""


def of_0_1_0() -> list[FileDescriptorProto]:
    files = FileDescriptorSet.FromString(BASELINE.read_bytes()).file
    return [file for file in files if not file.name.startswith("google/")]


def generated(name: str) -> FileDescriptorProto:
    """Return a schema as the generated classes have it, and as reflection shows it."""
    found = FileDescriptorProto()
    descriptor_pool.Default().FindFileByName(name).CopyToProto(found)
    return found


def test_everything_of_0_1_0_is_there_unchanged() -> None:
    assert breaking(ROOT) == (0, "")


def test_every_public_schema_names_its_packages_in_other_languages() -> None:
    public = [each for each in MODULES if not each.DESCRIPTOR.package.endswith("internal.v1")]
    assert {each.DESCRIPTOR.name for each in public} >= {file.name for file in of_0_1_0()}
    for module in public:
        options = generated(module.DESCRIPTOR.name).options
        assert {field.name for field, _ in options.ListFields()} == OPTIONS, module.__name__


@pytest.fixture
def schemas(tmp_path: Path) -> Path:
    """Return a copy of the schemas and of the rules for them."""
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    return tmp_path


def change(schemas: Path, name: str, before: str, after: str) -> None:
    path = schemas / "proto" / name
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1
    path.write_text(text.replace(before, after), encoding="utf-8")


def buf(schemas: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [BUF, *arguments], cwd=schemas, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def breaking(schemas: Path) -> tuple[int, str]:
    return buf(schemas, "breaking", "--against", str(BASELINE))


@pytest.mark.parametrize(
    ("name", "before", "after", "finding"),
    [
        (MESSAGE, "bytes meta = 11", "bytes meta = 12", 'field "11" with name "meta"'),
        (MESSAGE, "bytes meta = 11", "bytes metadata = 11", '"meta" to "metadata"'),
        (MESSAGE, "bytes meta = 11", "string meta = 11", '"bytes" to "string"'),
        (MESSAGE, "optional bytes meta = 11", "bytes meta = 11", 'Field "11"'),
        (STORE, "  STORED = 1", "  KEPT = 1", '"STORED" to "KEPT"'),
        (STORE, "rpc Scan(ScanRequest)", "rpc Read(ScanRequest)", 'RPC "Scan"'),
        (STORE, "returns (stream ScanPage)", "returns (ScanPage)", "server streaming"),
        (STORE, "package storenode.v1;", "package storenode.v2;", '"storenode.v1" to'),
    ],
)  # fmt: skip
def test_a_change_that_breaks_clients_is_found(
    schemas: Path, name: str, before: str, after: str, finding: str
) -> None:
    change(schemas, name, before, after)
    code, output = breaking(schemas)
    assert code == BROKEN, output
    assert finding in output


def test_an_addition_breaks_nothing(schemas: Path) -> None:
    change(
        schemas, STORE, "uint32 confirms = 4;", "uint32 confirms = 4;\n\n  // New.\n  bool new = 5;"
    )
    assert breaking(schemas) == (0, "")
    assert buf(schemas, "lint") == (0, "")


@pytest.mark.parametrize(
    ("before", "after", "finding"),
    [
        ("uint32 confirms = 4;", "uint32 confirms = 4;\n  bool new = 5;", 'Field "new"'),
        ("service Store {", "service Store {\n  rpc New(NewRequest) returns (NewResponse);", "RPC"),
        ('"Storenode.V1"', '"Another.V1"', "csharp_namespace"),
    ],
)  # fmt: skip
def test_a_departure_from_the_style_is_found(
    schemas: Path, before: str, after: str, finding: str
) -> None:
    change(schemas, STORE, before, after)
    with (schemas / "proto" / STORE).open("a", encoding="utf-8") as file:
        file.write("\n// New.\nmessage NewRequest {}\n\n// New.\nmessage NewResponse {}\n")
    code, output = buf(schemas, "lint")
    assert code == BROKEN, output
    assert finding in output
