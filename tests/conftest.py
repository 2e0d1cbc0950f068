"""Fixtures of all tests: a Postgres server, its databases, and how properties are tried.

`postgres` is one server for the whole run. `database_url` names a fresh database with the newest
schema, `empty_database_url` one without any; both are dropped after the test.
"""

from __future__ import annotations

import fcntl
import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from store.db.migrate import upgrade
from tests.support import warm
from tests.support.places import quick_directory
from tests.support.postgres import PostgresServer
from tests.support.processor_time import ProcessorTime

# Hundreds of processes import the same modules; compiling them would be half of a node's start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

settings.register_profile(
    "ci",
    max_examples=60,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "search", parent=settings.get_profile("ci"), max_examples=300, derandomize=False
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `tests.support.processor_time`."""
    parser.addoption("--processor-time", metavar="FILE", help="fail above the ceilings of a file")
    parser.addoption("--lower-processor-time", action="store_true", help="lower the ceilings")


def pytest_configure(config: pytest.Config) -> None:
    """Report the processor time of all tests."""
    config.pluginmanager.register(ProcessorTime(config))
    warm.use()


def pytest_unconfigure() -> None:
    """End what was begun for all tests."""
    warm.close()


SPARK = "tests/integration/pipeline/"
TOGETHER = (SPARK, "tests/install/", "tests/browser/", "tests/integration/gateway/")
"""Folders whose tests share what takes long to make: a Spark session, what was built, a browser,
what npm has installed."""
APART = (f"{SPARK}test_cluster.py",)
"""Files of these folders that have processes of their own for most of what they do."""
RUNBOOKS = "tests/deploy/test_runbooks.py"
MUTANTS = "tests/sim/test_mutants.py"
SPLIT = (RUNBOOKS, MUTANTS)
"""Files whose tests have nothing in common, and take longer than all others of their folders."""
LONGEST = (
    *(*APART, *TOGETHER, "tests/faults/test_soak.py", RUNBOOKS),
    *("tests/deploy/test_composition.py", "tests/faults/test_attacks.py"),
    "tests/integration/chaos/",
)
"""The longest first."""


def _scope(nodeid: str) -> str | None:
    """Return what a process is given as a whole, if that is not a file; None: it is the file."""
    if nodeid.startswith(SPLIT):
        return nodeid
    return next((each for each in (*APART, *TOGETHER) if nodeid.startswith(each)), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no process of several is left alone with it."""

    def rank(item: pytest.Item) -> int:
        places = (at for at, each in enumerate(LONGEST) if item.nodeid.startswith(each))
        return next(places, len(LONGEST))

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what lives as long as the process out of collections of garbage.

    Of several processes one collects before the others, which then find all modules compiled.
    """
    gc.disable()
    try:
        with Path(__file__).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(lock, fcntl.LOCK_SH)
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


class _WholeFiles(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a process whole files of tests, or a whole folder of `TOGETHER`."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid) or str(super()._split_scope(nodeid))


def pytest_xdist_auto_num_workers() -> int:
    """Return one more than there are cores: most tests wait for processes of their own."""
    return (os.cpu_count() or 1) + 1


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    """Return what decides which process runs which tests."""
    return _WholeFiles(config, log)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """Start the server that tests share."""
    kept = tmp_path_factory.mktemp("postgres")
    with quick_directory(kept) as directory:
        server = PostgresServer(directory)
        server.start()
        # For the reports of failures, which look below pytest's directory.
        shown = kept / "postgres.log"
        shown.symlink_to(directory / "postgres.log")
        yield server
        server.stop()
        shown.unlink()


@pytest.fixture(scope="session")
def template_database(postgres: PostgresServer) -> str:
    """Name of a database with the newest schema, to be copied."""
    name = postgres.create_database()
    upgrade(postgres.url(name))
    return name


@pytest.fixture(scope="session")
def new_store(postgres: PostgresServer, template_database: str) -> Callable[[], str]:
    """Return a function that makes databases for nodes, which stay until the end of the run."""
    return lambda: postgres.url(postgres.copy_store(template_database))


@pytest.fixture
def database_url(postgres: PostgresServer, template_database: str) -> Iterator[str]:
    """Return the URL of a fresh database with the newest schema and no messages."""
    name = postgres.create_database(template_database)
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
def empty_database_url(postgres: PostgresServer) -> Iterator[str]:
    """Return the URL of a fresh database without a schema of ours."""
    name = postgres.create_database()
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
def new_database(postgres: PostgresServer, template_database: str) -> Iterator[Callable[[], str]]:
    """Return a function that makes such databases, where a test needs several."""
    names: list[str] = []

    def make() -> str:
        names.append(postgres.create_database(template_database))
        return postgres.url(names[-1])

    yield make
    for name in names:
        postgres.drop_database(name)
