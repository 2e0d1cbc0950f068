"""The imports between rooms are those of the table, and pure rooms have no effects."""

import sys

import pytest

from tests.layering.rooms import (
    COMMON,
    DRIVERS,
    IMPURE_CALLS,
    IMPURE_MODULES,
    MAX_FILE_LINES,
    MAY_IMPORT,
    PURE_LIBRARIES,
    PURE_ROOMS,
    RUN_BY_HAND,
)
from tests.layering.sources import (
    ROOT,
    Module,
    modules,
    room_of,
    written_files,
)

WIRE_USERS = {
    "chaos",
    "chaos.attacks",
    "chaos.checker",
    "store.gateway",
    "store.http",
    "store.messages",
    "store.pipeline",
    "store.rpc",
    "store.serving",
    "store.sync",
    "storenode.client",
    "storenode.sds",
    "storenode.sds.aio",
    "storenode.wire",
}
LOOP_MODULES = {"asyncio", "concurrent"}
EDGES = {"store.db", "store.embedded", "store.http", "store.rpc"}
SOURCE_SUFFIXES = {".c", ".h", ".mako", ".proto", ".py", ".sh", ".sql"}


def forbidden_arrows(module: Module) -> list[str]:
    room = module.room
    if room is None:
        return [f"{module.name} lies in no room"]
    allowed = MAY_IMPORT[room] | {room, COMMON}
    return [
        f"{module.name}:{line} imports {target}, which {room} may not"
        for line, target in module.imports
        if (other := room_of(target)) is not None and other not in allowed
    ]


def impurities(module: Module) -> list[str]:
    imported = [
        f"{module.name}:{line} imports {target}"
        for line, target in module.imports
        if is_impure(target.split(".")[0])
        and not (target.split(".")[0] in LOOP_MODULES and is_driver(module))
    ]
    called = [
        f"{module.name}:{line} calls {name}()"
        for line, name in module.calls
        if name in IMPURE_CALLS
    ]
    return imported + called


def is_driver(module: Module) -> bool:
    return not DRIVERS.isdisjoint({module.name, module.name.rpartition(".")[0]})


def is_impure(top_level: str) -> bool:
    if top_level in sys.stdlib_module_names:
        return top_level in IMPURE_MODULES
    return room_of(top_level) is None and top_level not in PURE_LIBRARIES | {"store", "storenode"}


def test_no_arrow_that_is_not_drawn() -> None:
    assert [fault for module in modules() for fault in forbidden_arrows(module)] == []


def test_every_arrow_of_the_table_is_used() -> None:
    gone = {(module.room, room_of(target)) for module in modules() for _, target in module.imports}
    drawn = {(room, other) for room, others in MAY_IMPORT.items() for other in others}
    assert drawn - gone == set()


def test_pure_rooms_do_not_touch_the_world() -> None:
    pure = [
        module
        for module in modules()
        if module.room in PURE_ROOMS and module.name not in RUN_BY_HAND
    ]
    assert {module.room for module in pure} == PURE_ROOMS
    assert [fault for module in pure for fault in impurities(module)] == []


def test_protobuf_classes_stay_with_those_who_may_see_them() -> None:
    seen_by = {
        module.room
        for module in modules()
        for _, target in module.imports
        if target.startswith("google.protobuf") or room_of(target) == "storenode.wire"
    }
    # The fuzzer makes its classes from the descriptors of a running node.
    assert seen_by <= WIRE_USERS | {"chaos.fuzz"}


def test_the_table_keeps_the_edges_apart_and_wire_private() -> None:
    for edge in EDGES:
        assert MAY_IMPORT[edge].isdisjoint(EDGES)
    assert {room for room, allowed in MAY_IMPORT.items() if "storenode.wire" in allowed} | {
        "storenode.wire"
    } == WIRE_USERS


def test_the_table_names_rooms_that_exist() -> None:
    for room, allowed in MAY_IMPORT.items():
        assert (ROOT / room.replace(".", "/") / "__init__.py").is_file(), room
        assert allowed <= MAY_IMPORT.keys()


def test_the_table_has_no_cycle() -> None:
    left = dict(MAY_IMPORT)
    while left:
        ready = [room for room, allowed in left.items() if allowed.isdisjoint(left)]
        assert ready, f"these rooms import each other in a circle: {sorted(left)}"
        for room in ready:
            del left[room]


def test_no_file_is_too_long() -> None:
    lines = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in written_files()
        if path.suffix in SOURCE_SUFFIXES
    }
    too_long = {name: count for name, count in lines.items() if count > MAX_FILE_LINES}
    assert lines["tests/layering/test_imports.py"] > 100
    assert too_long == {}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("store.db.pool", "import store.rpc.server"),
        ("store.db.pool", "from store import rpc"),
        ("store.db.pool", "from store.embedded import supervisor"),
        ("store.db.pool", "from ..rpc import server"),
        ("store.db.pool", "def late():\n    from storenode.wire.sds.v1 import message_pb2"),
        ("store.domain.admission", "from storenode.wire.sds.v1 import message_pb2"),
        ("store.runtime.node", "from store.cli import main"),
        ("storenode.sds.codec", "import store"),
        ("storenode.message.hashing", "from storenode.sds import codec"),
        ("storenode.cli.main", "import migrations"),
        ("elsewhere.module", "import json"),
    ],
)
def test_a_forbidden_arrow_is_found(name: str, source: str) -> None:
    assert forbidden_arrows(Module.parse(name, source)) != []


@pytest.mark.parametrize(
    ("name", "source", "is_package"),
    [
        ("store.db.pool", "from store.domain import admission", False),
        ("store.db.pool", "from . import tables", False),
        ("store.db", "from . import pool", True),
        ("store.runtime.node", "from store.rpc.server import serve", False),
        ("store.rpc.server", "import grpc, json", False),
    ],
)
def test_a_drawn_arrow_passes(name: str, source: str, is_package: bool) -> None:
    assert forbidden_arrows(Module.parse(name, source, is_package=is_package)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from os import environ",
        "import asyncio.events",
        "import structlog",
        "from datetime import datetime\nstart = datetime.now()",
        "text = open('x').read()",
        "import uuid\nname = uuid.uuid4()",
    ],
)
def test_an_impurity_is_found(source: str) -> None:
    assert impurities(Module.parse("message.sample", source)) != []


def test_a_driver_may_use_asyncio_and_no_more() -> None:
    source = "import asyncio, time"
    (found,) = impurities(Module.parse("store.gossip.driver.sample", source))
    assert "time" in found


def test_pure_code_passes() -> None:
    source = (
        "import hashlib, struct, zlib\nfrom google.protobuf import message\nimport store.domain"
    )
    assert impurities(Module.parse("store.domain.sample", source)) == []
