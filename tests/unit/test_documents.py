"""Names on the pages exist: files, tests, commands and options, targets, metrics, log events."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from bench.__main__ import BENCHMARKS
from storenode.cli.main import cli
from tests.support.pages import PAGES, ROOT, blocks, commands, name_of

LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(?:#[^)]*)?\)")
TEST = re.compile(r"`(tests/[\w/]+(?:\.py|/)?)`")
TARGET = re.compile(r"^([\w-]+):", re.MULTILINE)
NAME = re.compile(r"`(?:storenode_)?([a-z]+(?:_[a-z]+)+)(?:\{[^`]*\})?`")
OTHERS = re.compile(
    r"(autovacuum|blks|hot|idle|max|pg|recovery|synchronous|wal)_|gcs_base_url|site_url"
)
"""Names of Postgres, of an object store and of MkDocs."""
AFFIX = re.compile(r"^(?:database|audit|verify)_|_(?:total|seconds|exhausted)$")
"""Parts that the code joins to the names of metrics, log events, figures and statuses."""
FOLDERS = ("store", "storenode", "reconcile", "proto", "chaos", "bench", "deploy", "migrations")
KINDS = {".py", ".proto", ".toml", ".yml", ".yaml", ".example", ".txt", ".sql"}
FILES = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in KINDS)
SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in FILES)

every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


@every_page
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = [page.parent / link for link in LINK.findall(text)]
    paths += [ROOT / name for name in TEST.findall(text)]
    assert [str(path) for path in paths if not path.exists()] == []


@every_page
def test_metrics_log_events_and_fields_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names = {name for name in NAME.findall(text) if not OTHERS.match(name)}
    lost = {name for name in names if name not in SOURCES and AFFIX.sub("", name) not in SOURCES}
    assert lost == set()


@every_page
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in commands(page.read_text(encoding="utf-8")):
        match words:
            case ["storenode", *arguments]:
                check_arguments(arguments)
            case ["make", target, *_] if "=" not in target:
                assert target in TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8"))
            case ["python", "-m", "bench", name, *_]:
                assert name in BENCHMARKS
            case ["python" | "python3" | "sh", script, *_] if "/" in script:
                assert (ROOT / script).exists(), script


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise `click.UsageError` where a command or an option is not there."""
    command: click.Command = cli
    context = click.Context(cli)
    words = list(arguments)
    while isinstance(command, click.Group):
        if not words or words[0] in ("--help", "--version"):
            return
        found = command.get_command(context, words[0])
        assert found is not None, f"storenode {' '.join(arguments)}: no such command"
        command, context = found, click.Context(found, parent=context)
        words.pop(0)
    command.make_parser(context).parse_args(words)


@every_page
def test_files_that_a_page_shows_can_be_read(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for body in blocks(text, "toml"):
        tomllib.loads(body)
    for body in blocks(text, "json"):
        json.loads(body)
