"""Which room may call which: the table that the tests in this folder enforce.

A room is a package; a module belongs to the room with the longest matching name. A room may
always import itself. What has no row may be imported by nobody and may import nothing.
"""

EDGES_SHARE = frozenset({"store.domain", "store.observe", "gossip", "message"})

MAY_IMPORT: dict[str, frozenset[str]] = {
    # generated classes: the bottom
    "wire": frozenset(),
    # pure rooms: the vocabulary, the codec, what a node does
    "message": frozenset({"wire"}),
    "sds": frozenset({"message", "wire"}),
    "reconcile": frozenset({"message"}),
    "gossip": frozenset({"message"}),
    "store.domain": frozenset({"message", "reconcile", "sds"}),
    # connections to nodes, for those who call one
    "dial": frozenset(),
    # a participant that calls store nodes by itself; it knows the schema and no node
    "sds.aio": frozenset({"dial", "message", "sds", "wire"}),
    # the pure rooms of a node, many times over
    "sim": frozenset({"gossip", "message", "reconcile", "sds", "store.domain"}),
    # edges, which never import each other
    "store.db": EDGES_SHARE | {"reconcile", "sds"},
    "store.embedded": frozenset(),
    "store.rpc": EDGES_SHARE | {"dial", "reconcile", "wire"},
    # a program of its own, as far as the node is concerned
    "store.client": frozenset({"dial", "message", "sds", "wire"}),
    # what the rooms above them are given
    "store.config": frozenset({"dial", "message", "store.domain"}),
    "store.observe": frozenset(),
    # the top: these wire everything
    "store.runtime": EDGES_SHARE | {"store.db", "store.embedded", "store.rpc", "store.config"},
    "store.cli": frozenset({"message", "store.domain", "store.observe"})
    | {"store.db", "store.embedded", "store.client", "store.config", "store.runtime"}
    | {"demo", "dial", "pipeline", "sds", "sds.aio"},
    # nodes seen from outside, as processes, and participants of theirs
    "demo": frozenset({"dial", "sds", "sds.aio", "store.client"}),
    # jobs beside the nodes; restoring writes as a node does
    "pipeline": frozenset({"message", "sds", "store.db", "store.domain"}),
    # the parent package is a name and holds nothing
    "store": frozenset(),
    # a migration is frozen when it is released and leans on nothing that changes
    "migrations": frozenset(),
}

PURE_ROOMS = frozenset({"gossip", "message", "reconcile", "sds", "sim", "store.domain"})

# What is run by hand has a terminal, and seeds the generator that the rest is given.
RUN_BY_HAND = frozenset({"sim.__main__"})

# The only libraries besides the standard one in a pure room: messages, arrays, hashes and sorted
# lists are plain values.
PURE_LIBRARIES = frozenset({"google", "mmh3", "numpy", "sortedcontainers"})

# Clocks, sockets, files, the environment, global randomness, threads and event loops.
IMPURE_MODULES = frozenset(
    {
        "asyncio",
        "builtins",
        "concurrent",
        "ctypes",
        "fcntl",
        "glob",
        "http",
        "importlib",
        "io",
        "logging",
        "mmap",
        "multiprocessing",
        "os",
        "pathlib",
        "queue",
        "random",
        "sched",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "sqlite3",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "warnings",
    }
)

# Functions that reach outside although their modules are harmless otherwise; a leading dot
# means a method or a module's function.
IMPURE_CALLS = frozenset(
    {
        "__import__",
        "input",
        "open",
        "print",
        "uuid1",
        "uuid4",
        ".now",
        ".today",
        ".utcnow",
        ".uuid1",
        ".uuid4",
    }
)

MAX_FILE_LINES = 600
