"""`storenode check-config`: bad configurations, a sentence each, before anything is touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from storenode.cli.main import main
from tests.integration.run.helpers import occupied_port, run_to_end
from tests.support.credentials import Pki
from tests.support.node import running_node

LISTENERS = ("--listen", "--peer-listen", "--admin-listen", "--metrics-listen")

Check = Callable[..., tuple[object, list[str]]]
READ_ONLY = "alter role storenode in database {} set default_transaction_read_only = on"


@pytest.fixture
def check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Check:
    """Return a function that runs the command, and returns its code and the lines it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[object, list[str]]:
        others = [f"{flag}=127.0.0.1:0" for flag in LISTENERS if flag not in arguments]
        with pytest.raises(SystemExit) as ended:
            main(["check-config", *others, *arguments])
        output, error = capsys.readouterr()
        return ended.value.code, [*output.splitlines(), *error.splitlines()]

    return run


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Return a pair of a certificate and its key, another pair, and files that hold none."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = Pki(tmp_path / "one"), Pki(tmp_path / "two")
    cert, key = one.issue("a.nodes.example")
    other_cert, other_key = two.issue("b.nodes.example")
    ip, ip_key = one.issue("127.0.0.1", file="ip")
    begin, end = "-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n"
    texts = {
        "rubbish": "no certificate at all\n",
        "damaged": f"{begin}bm90aGluZw==\n{end}",
        "half": one.ca.read_text() + f"{begin}bm90aGluZw==\n{end}",
        "tokens": "[clients.a]\nrights = ['everything']\n",
        "empty": "",
        "cut": cert.read_text()[:300],
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
    made = {name: tmp_path / f"{name}.txt" for name in texts}
    made["locked"] = tmp_path / "locked"
    (tmp_path / "locked" / "storenode.lock").mkdir(parents=True)
    made["cluster"] = tmp_path / "one"
    (tmp_path / "one" / "PG_VERSION").touch()
    pairs = {"cert": cert, "key": key, "ca": one.ca, "cert2": other_cert, "key2": other_key}
    pairs |= {"ip": ip, "ip_key": ip_key}
    return {**made, **pairs}


TLS = "--tls-cert {cert}"
PAIR = f"{TLS} --tls-key {{key}}"
BAD = {
    "a key of another certificate": (f"{TLS} --tls-key {{key2}}", "are not a certificate and"),
    "no certificate": ("--tls-cert {rubbish} --tls-key {key}", "is not a PEM file"),
    "half a certificate": ("--tls-cert {cut} --tls-key {key}", "are not a certificate and its key"),
    "a certificate without a name": ("--tls-cert {ip} --tls-key {ip_key}", "has no DNS name"),
    "no file": (f"{TLS} --tls-key nowhere.pem", "nowhere.pem cannot be read"),
    "an authority that is rubbish": (f"{PAIR} --tls-ca {{rubbish}}", "is not a PEM file"),
    "an authority that is damaged": (f"{PAIR} --tls-ca {{damaged}}", "no certificate of an auth"),
    "an authority, and a damaged one": (
        f"{PAIR} --client-ca {{half}}",
        "no certificate of an auth",
    ),
    "tokens with an unknown right": ("--client-token-file {tokens}", "cannot be used: "),
    "a managed setting": ("--postgres-setting port=1", "is managed by the node"),
    "no database": ("--database-url postgresql://127.0.0.1:1/x", "could not be reached"),
    "no database URL": ("--database-url postgresql://u:hunter2@h:x/d", "--database-url cannot be"),
    "a URL of another database": ("--database-url mysql://hunter2", "--database-url cannot be"),
    "a lock that is a directory": ("--data-dir {locked}", "lock cannot be used (Is a dir"),
    "a directory that is a file": ("--data-dir {empty}", "cannot be used"),
    "a directory that is a cluster": ("--data-dir {cluster}", "is itself a Postgres cluster"),
    "a directory of the kernel": ("--data-dir /proc", "cannot be used"),
}


@pytest.mark.parametrize(("arguments", "expected"), BAD.values(), ids=list(BAD))
def test_each_bad_configuration_is_one_sentence(
    check: Check, files: dict[str, Path], tmp_path: Path, arguments: str, expected: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    words = arguments.format(**files).split()
    code, lines = check(*words)
    assert (code, len(lines)) == (1, 1), lines
    assert expected in lines[0]
    assert lines[0].endswith(".")
    assert "hunter2" not in lines[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_all_problems_are_reported(check: Check, files: dict[str, Path]) -> None:
    words = f"{TLS} --tls-key {{key2}} --tls-ca {{damaged}} --client-token-file nowhere.toml"
    with occupied_port() as taken:
        words = f"{words} --http-listen {taken} --max-confirms 1 --gossip off"
        code, lines = check(*words.format(**files).split())
    assert (code, len(lines)) == (1, 5)
    assert any(f"--http-listen {taken} cannot be listened on" in line for line in lines)


def test_a_good_configuration_is_good_before_and_beside_the_node(
    check: Check, tmp_path: Path, database_url: str
) -> None:
    good = (0, ["A node would start with these options."])
    assert check() == good
    options = ("--database-url", database_url, "--data-dir", str(tmp_path / "data"))
    assert check(*options) == good
    with running_node(tmp_path / "data", database_url=database_url) as node:
        assert check(*options, "--http-listen", node.listen) == good
        _code, (line,) = check(*options, "--retention", "30d", "--config", _file(tmp_path))
        assert "No such" not in line
    with psycopg.connect(database_url) as connection:
        connection.execute("update storenode.alembic_version set version_num = '9999_later'")
    code, lines = check(*options)
    assert code == 1
    assert "newer" in lines[0]


def test_limits_that_the_store_has_not_agreed_to_are_refused_by_both(
    check: Check, tmp_path: Path, database_url: str
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("update storenode.store set retention_ns = 0, retention_bytes = 0")
        connection.execute(
            "create table storenode.messages_1970m01 partition of storenode.messages"
            " for values from (0) to (2678400000000000)"
        )
    options = ("--database-url", database_url, "--data-dir", str(tmp_path / "data"))
    code, (line,) = check(*options, "--retention", "30m")
    ended = run_to_end(tmp_path / "data", "--retention", "30m", database_url=database_url)
    assert (code, ended.code) == (1, 2)
    for sentence in (line, ended.sentence):
        assert "drop 31 days, 100% of the messages, more than the store has agreed to:" in sentence
    assert check(*options, "--retention", "30m", "--retention-confirm")[0] == 0
    with psycopg.connect(database_url) as connection:
        connection.execute(READ_ONLY.format(connection.info.dbname).encode())
    assert check(*options, "--retention", "off")[0] == 0, "agreed limits are not written again"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (READ_ONLY, "the database is read-only"),
        ("delete from storenode.store", "The table storenode.store is empty"),
    ],
)
def test_a_database_that_a_node_refuses_is_refused_by_both(
    check: Check, tmp_path: Path, database_url: str, statement: str, expected: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(statement.format(connection.info.dbname).encode())
    data = tmp_path / "data"
    code, (line,) = check("--database-url", database_url, "--data-dir", str(data))
    assert (code, line[-1]) == (1, ".")
    assert expected in line
    ended = run_to_end(data, database_url=database_url)
    assert ended.sentence == f"storenode: {line}"


def test_a_lock_of_another_session_is_reported_and_not_waited_for(
    check: Check, tmp_path: Path, database_url: str
) -> None:
    data = tmp_path / "data"
    with psycopg.connect(database_url) as connection:
        for lock in (b"select from storenode.store for update", b"lock table storenode.store"):
            connection.execute(lock)
            code, (line,) = check("--database-url", database_url, "--data-dir", str(data))
            assert (code, "a lock was not free in time" in line) == (1, True)
        ended = run_to_end(data, "--start-timeout", "1ms", database_url=database_url)
    assert (ended.code, ended.sentence) == (3, f"storenode: {line}")


def _file(directory: Path) -> str:
    path = directory / "node.toml"
    path.write_text("[run]\nsync-offset = '5s'\n")
    return str(path)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "DATA_DIR", "CONFIG"):
        monkeypatch.delenv(f"STORENODE_{name}", raising=False)
