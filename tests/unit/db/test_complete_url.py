"""The settings that a node adds to a connection string, and strings that are refused."""

from __future__ import annotations

import pytest
from psycopg import conninfo

from store.db.pool import complete_url


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("postgresql://u@a/d", None),
        ("postgresql://u@a:1/d", "1"),
        ("postgresql://u@a:5432,b:65535/d", "5432,65535"),
        ("postgresql://u@a,b:5433/d", ",5433"),
        ("host=a,b port=5433 dbname=d", "5433"),
    ],
)
def test_hosts_and_ports_stay_and_a_primary_is_asked_for(url: str, ports: str | None) -> None:
    completed = conninfo.conninfo_to_dict(complete_url(url))
    assert completed.get("port") == ports
    assert completed["target_session_attrs"] == "primary"


def test_what_is_given_wins() -> None:
    completed = conninfo.conninfo_to_dict(
        complete_url("postgresql://u@a/d?target_session_attrs=any&connect_timeout=1")
    )
    assert completed["target_session_attrs"] == "any"
    assert completed["connect_timeout"] == "1"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u@a:notaport/d",
        "postgresql://u@a:0/d",
        "postgresql://u@a:65536/d",
        "postgresql://u@a:5432,b:-1/d",
        "host=a port=54x",
        "postgresql://u@[::1/d",
        "nonsense",
    ],
)
def test_what_no_server_can_have_is_refused_before_any_is_asked(url: str) -> None:
    with pytest.raises(ValueError, match="the database URL cannot be read"):
        complete_url(url)
