"""Ways to a terminal or a log: none of them carries a control character of another."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos.demo.report import ConsoleReport, SafeConsole
from chaos.node import NodeFailedError
from store.cli import db
from store.cli.run import announce
from store.domain.partitioning import Bounds
from store.observe import logging as observed
from storenode.cli import errors, main
from storenode.cli.chat.terminal import formatted
from storenode.cli.chat.transcript import Transcript
from storenode.cli.client.output import Output
from storenode.cli.client.text import note
from storenode.sds.aio.events import Disconnected, Message
from tests.support.pages import ROOT

HOSTILE = "=cmd\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp\u2066\u2028\x7f<b>\r\b"
"""A title, a cleared screen, colours, directions of writing, an end of a line, and a deletion."""

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

KNOWN = {
    "storenode/cli/client/output.py": {"Output._write"},
    "storenode/cli/client/text.py": {"note"},
    "storenode/cli/errors.py": {"complain"},
    "storenode/cli/main.py": {"main"},
    "store/config/options.py": {"_show_all"},
    "store/cli/capacity.py": {"capacity_command"},
    "store/cli/check_config.py": {"check_config"},
    "store/cli/db.py": {"Target.print", "partitions", "_progress.show"},
    "store/cli/demo.py": {"demo"},
    "store/cli/run.py": {"announce"},
    "chaos/demo/report.py": {"ConsoleReport._line", "ConsoleReport._print"},
    "store/embedded/launcher.py": {"main"},
}
"""The functions that print, of all in the two packages; each is tried below, but the launcher,
which prints the path of its program. Logs are written by `store.observe.logging` alone."""

PRINTS = re.compile(
    r"^print$|\b(stdout|stderr|_?console|click)\b.*\.(write|writelines|print|s?echo)$|print_exc$"
)


class Finder(ast.NodeVisitor):
    """Notes the functions that print."""

    def __init__(self) -> None:
        self.path: list[str] = []
        self.found: set[str] = set()

    def _named(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.path.append(node.name)
        self.generic_visit(node)
        self.path.pop()

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _named  # noqa: N815

    def visit_Call(self, node: ast.Call) -> None:
        """Note a call of ``print``, ``click.echo``, or of a method that writes to a stream."""
        if PRINTS.search(ast.unparse(node.func)):
            self.found.add(".".join(self.path))
        self.generic_visit(node)


def printing(path: Path) -> set[str]:
    """Return the functions of a file that print."""
    finder = Finder()
    finder.visit(ast.parse(path.read_text()))
    return finder.found


def test_every_function_that_prints_is_known() -> None:
    found = {
        str(path.relative_to(ROOT)): printing(path)
        for package in ("storenode", "store", "chaos/demo")
        for path in (ROOT / package).rglob("*.py")
    }
    assert {path: names for path, names in found.items() if names} == KNOWN


def logged(log_format: str, say: Callable[[], None]) -> None:
    observed.configure(log_format, "info", sys.stderr)
    try:
        say()
    finally:
        logging.getLogger().handlers.clear()


def raised() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        observed.get_logger("a").error("x", exc_info=error)
        logging.getLogger("library").exception(HOSTILE)


def demo_fails() -> None:
    def run(*_arguments: object) -> None:
        raise NodeFailedError(HOSTILE, f"one\n{HOSTILE}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chaos.demo.story.run", run)
        with pytest.raises(SystemExit):
            main.main(["demo", "--plain"])


def checked() -> None:
    async def check_start(_config: object) -> list[str]:
        return [HOSTILE]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("store.runtime.preflight.check_start", check_start)
        ended("check-config")


def ended(*arguments: str) -> None:
    with pytest.raises(SystemExit):
        main.main(arguments)


def on_console(width: int = 80) -> None:
    report = ConsoleReport(console=SafeConsole(highlight=False, width=width, force_terminal=False))
    report.line(HOSTILE)
    report.failure([HOSTILE], [HOSTILE])


def in_a_chat() -> None:
    transcript = Transcript("me", 0)
    remarks = transcript.take(Disconnected(HOSTILE, HOSTILE))
    said = transcript.stored(Message("1", HOSTILE, 1, HOSTILE.encode()))
    for line in remarks + said:
        for row in line.plain():
            Output().shown(row)
        Output().shown("".join(part[1] for part in formatted(line)))


def fields() -> None:
    observed.get_logger("a").warning("x", peer=HOSTILE, many=[HOSTILE], by={HOSTILE: 1})


def partitions() -> None:
    one = SimpleNamespace(
        table=HOSTILE, name=HOSTILE, rows=1, size_bytes=1, bounds=Bounds(1, 2), detached=False
    )
    found = SimpleNamespace(partitions=[one], size_bytes=1, horizon_ns=0)
    target = db.Target(None, Path(), as_json=False)
    target.print({}, list(db._partition_lines(found)))  # type: ignore[arg-type]


OUTPUTS: dict[str, Callable[[], None]] = {
    "a line": lambda: Output().line(HOSTILE),
    "a line of JSON": lambda: Output("json").json({HOSTILE: HOSTILE}),
    "a remark": lambda: note(HOSTILE),
    "a complaint": lambda: errors.complain(HOSTILE),
    "an option that is none": lambda: ended(f"--{HOSTILE[1:]}"),
    "a command that is none": lambda: ended(HOSTILE),
    "a wrong value": lambda: ended("query", "--limit", HOSTILE),
    "a report for people": lambda: db.Target(None, Path(), as_json=False).print({}, [HOSTILE]),
    "a report as JSON": lambda: db.Target(None, Path(), as_json=True).print({"x": HOSTILE}, []),
    "problems of a configuration": checked,
    "partitions": partitions,
    "the ready line": lambda: announce(json.dumps({"node_id": HOSTILE})),
    "a node of the demo that fails": demo_fails,
    "the demo": on_console,
    "a chat": in_a_chat,
    "fields in a text log": lambda: logged("text", fields),
    "fields in a JSON log": lambda: logged("json", fields),
    "a library in a text log": lambda: logged("text", raised),
    "a library in a JSON log": lambda: logged("json", raised),
}


@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
def test_no_output_carries_what_does_not_print(
    output: Callable[[], None], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    output()
    said = b"".join(capfdbinary.readouterr()).decode()
    assert "owned" in said, "the text is shown"
    assert [each for each in said if each != "\n" and unicodedata.category(each) in HIDDEN] == []


def test_a_traceback_in_a_text_log_cannot_look_like_a_line_of_it() -> None:
    written = io.StringIO()
    observed.configure("text", "info", written)
    forged = "2026-11-23T00:00:00Z [error    ] forged"
    try:
        try:
            raise ValueError(f"x\n{forged}")
        except ValueError:
            logging.getLogger("library").exception("x\n%s", forged)
    finally:
        logging.getLogger().handlers.clear()
    lines = written.getvalue().splitlines()
    assert any(forged in line for line in lines[1:])
    assert all(line.startswith(" ") for line in lines[1:])


def test_a_node_on_a_terminal_says_what_to_do_next(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    announce(json.dumps({"listen": "127.0.0.1:7430"}))
    assert capfd.readouterr().err == (
        "Ready. Publish: storenode publish --node 127.0.0.1:7430 -t /my-app/1/chat/proto hello."
        " Read: storenode query --node 127.0.0.1:7430. Stop: Ctrl-C.\n"
    )
