"""A cluster that is made once; tests that only need some cluster work on copies of it."""

from pathlib import Path

import pytest

from store.embedded import EmbeddedPostgres
from tests.embedded.helpers import copy_owned, insert


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a stopped data directory whose table `kept` holds the value 1."""
    data_dir = tmp_path_factory.mktemp("made-once") / "data"
    with EmbeddedPostgres(data_dir) as server:
        insert(server.url, 1)
    return data_dir


@pytest.fixture
def data_dir(made_once: Path, tmp_path: Path) -> Path:
    """Return a copy of that directory for one test, with owners and modes as they were."""
    copy = tmp_path / "data"
    copy_owned(made_once, copy)
    return copy
