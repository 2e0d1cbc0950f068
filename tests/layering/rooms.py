"""The rooms that each room may import: the table that the tests in this folder enforce.

A room is a package; a module belongs to the room with the longest matching name. A room may
always import itself. A package without a row neither imports nor is imported.
"""

COMMON = "storenode.common"
"""All rooms may import it."""

EDGES_SHARE = frozenset(
    {"store.domain", "store.gossip", "store.messages", "store.observe", "storenode.message"}
)

MAY_IMPORT: dict[str, frozenset[str]] = {
    # the library: what an application installs, and what knows nothing of the node
    "storenode": frozenset({"storenode.client", "storenode.sds.aio"}),
    COMMON: frozenset(),
    "storenode.wire": frozenset(),
    "storenode.message": frozenset(),
    "storenode.sds": frozenset({"storenode.wire"}),
    "storenode.connection": frozenset({"storenode.message"}),
    "storenode.client": frozenset(
        {"storenode.connection", "storenode.message", "storenode.sds", "storenode.wire"}
    ),
    "storenode.sds.aio": frozenset(
        {"storenode.client", "storenode.connection", "storenode.message", "storenode.sds"}
        | {"storenode.wire"}
    ),
    "storenode.cli.options": frozenset({"storenode.connection", "storenode.message"}),
    "storenode.cli": frozenset(
        {"storenode.cli.options", "storenode.client", "storenode.connection"}
        | {"storenode.message", "storenode.sds", "storenode.sds.aio"}
    ),
    # pure rooms: what a node does
    "reconcile": frozenset({"storenode.message"}),
    "store.messages": frozenset({"storenode.message", "storenode.sds", "storenode.wire"}),
    "store.gossip": frozenset({"store.domain", "store.messages", "storenode.message"}),
    "store.gossip.driver": frozenset(
        {"store.domain", "store.gossip", "store.messages", "storenode.message"}
    ),
    "store.domain": frozenset(
        {"reconcile", "store.messages", "storenode.message", "storenode.sds"}
    ),
    # cores of the exchange with peers, and the drivers beside them
    "store.sync": frozenset(
        {"reconcile", "store.domain", "store.messages", "storenode.message", "storenode.wire"}
    ),
    # cores and drivers of a node, many times over
    "sim": frozenset(
        {"reconcile", "store.domain", "store.gateway", "store.gossip", "store.gossip.driver"}
        | {"store.messages", "store.sync"}
        | {"storenode.message", "storenode.sds", "storenode.sds.aio"}
    ),
    # edges, which never import each other
    "store.db": EDGES_SHARE | {"reconcile", "storenode.sds"},
    "store.embedded": frozenset(),
    "store.gateway": frozenset({"store.config", "store.domain", "store.observe", "store.serving"})
    | {"storenode.cli.options", "storenode.client", "storenode.connection", "storenode.message"}
    | {"storenode.wire"},
    "store.rpc": EDGES_SHARE
    | {"reconcile", "store.gossip.driver", "store.serving", "store.sync"}
    | {"storenode.connection", "storenode.wire"},
    "store.http": frozenset(
        {"store.domain", "store.messages", "store.observe", "store.serving"}
        | {"storenode.message", "storenode.sds", "storenode.wire"}
    ),
    # what the edges that serve clients share
    "store.serving": frozenset(
        {"store.domain", "store.messages", "store.observe", "storenode.message", "storenode.wire"}
    ),
    # what the rooms above them are given
    "store.config": frozenset({"store.domain", "storenode.cli.options", "storenode.message"}),
    "store.observe": frozenset({"storenode.message"}),
    # the top: these wire everything
    "store.runtime": EDGES_SHARE
    | {"store.config", "store.db", "store.embedded", "store.gossip.driver", "store.http"}
    | {"store.rpc", "store.serving", "store.sync", "storenode.cli.options"},
    "store.cli": frozenset({"storenode.cli", "storenode.cli.options", "storenode.connection"})
    | {"store.config", "store.db", "store.domain", "store.embedded"}
    | {"store.gateway", "store.observe", "store.pipeline", "store.runtime", "storenode.message"}
    | {"chaos", "chaos.checker", "chaos.demo"},
    # nodes seen from outside, as processes, and their participants; the checker shares no code
    "chaos.checker": frozenset({"storenode.wire"}),
    "chaos": frozenset(
        {"chaos.checker", "store.embedded", "storenode.sds", "storenode.sds.aio"}
        | {"storenode.wire"}
    ),
    "chaos.demo": frozenset(
        {"chaos", "chaos.checker", "storenode.client", "storenode.connection"}
        | {"storenode.message", "storenode.sds", "storenode.sds.aio"}
    ),
    "chaos.soak": frozenset(
        {"chaos", "chaos.checker", "store.db", "store.embedded", "storenode.cli"}
        | {"storenode.sds", "storenode.sds.aio"}
    ),
    "chaos.attacks": frozenset(
        {"chaos", "chaos.checker", "reconcile", "storenode.message", "storenode.sds"}
        | {"storenode.wire"}
    ),
    "chaos.fuzz": frozenset({"chaos", "chaos.attacks", "reconcile"}),
    # jobs beside the nodes; restoring writes as a node does
    "store.pipeline": frozenset(
        {"reconcile", "store.db", "store.domain", "store.messages", "storenode.message"}
        | {"storenode.sds", "storenode.wire"}
    ),
    # the parent package is a name and holds nothing
    "store": frozenset(),
    # a migration is frozen when it is released and leans on nothing that changes
    "migrations": frozenset(),
}

PURE_ROOMS = frozenset(
    {"reconcile", "sim", "store.domain", "store.gossip", "store.gossip.driver", "store.messages"}
    | {"store.sync", COMMON, "storenode.message", "storenode.sds"}
)

# Drivers, modules or packages of them, run on an event loop, which is given: a node's, or one on
# virtual time. They have no more of the world than that.
DRIVERS = frozenset(
    {f"store.sync.session.{name}" for name in ("exchange", "initiator", "responder")}
    | {"store.sync.session.reconciliation"}
    | {f"store.sync.{name}.driver" for name in ("schedule", "transfer")}
    | {"sim", "sim.gossiping", "sim.groups", "sim.year"}
    | {"store.gossip.driver", "store.sync.index", "store.sync.lookup", "store.sync.resume"}
)

# What is run by hand has a terminal, and seeds the generator that the rest is given.
RUN_BY_HAND = frozenset({"sim.__main__"})

# The only libraries besides the standard one in a pure room: messages, arrays, hashes and sorted
# lists are plain values.
PURE_LIBRARIES = frozenset({"Crypto", "google", "mmh3", "numpy", "sortedcontainers"})

# Clocks, sockets, files, the environment, global randomness, threads and event loops.
IMPURE_MODULES = frozenset(
    {"asyncio", "builtins", "concurrent", "ctypes", "fcntl", "glob", "http", "importlib", "io"}
    | {"logging", "mmap", "multiprocessing", "os", "pathlib", "queue", "random", "sched"}
    | {"secrets", "select", "selectors", "shutil", "signal", "socket", "socketserver", "sqlite3"}
    | {"ssl", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "warnings"}
)

# Functions that reach outside although their modules are harmless otherwise; a leading dot
# means a method or a module's function.
IMPURE_CALLS = frozenset(
    {"__import__", "input", "open", "print", "uuid1", "uuid4"}
    | {".now", ".today", ".utcnow", ".uuid1", ".uuid4"}
)

MAX_FILE_LINES = 1_000
