"""Ways to a terminal or a log: none of them carries a control character of another."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import logging
import os
import re
import sys
import threading
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.demo.report import ConsoleReport, SafeConsole
from chaos.node import NodeFailedError
from store.cli import db
from store.cli.run import announce
from store.domain.partitioning import Bounds
from store.observe import logging as observed
from storenode.cli import errors, main
from storenode.cli.chat.terminal import fitting, formatted, standing, state_of
from storenode.cli.chat.transcript import (
    MAX_MEMBERS,
    MAX_SHOWN_LINES,
    MAX_TEXT_ROWS,
    NOT_VERIFIED,
    ChatMember,
    Line,
    LineKind,
    Mark,
    Transcript,
    rows_of,
)
from storenode.cli.client import source
from storenode.cli.client.coverage import _line, sentence
from storenode.cli.client.output import Output
from storenode.cli.client.text import PREVIEW_CHARS, note
from storenode.cli.errors import USAGE, CliError
from storenode.cli.sync import listed
from storenode.client.plain import to_json, to_plain
from storenode.client.sds_messages import sds_payload
from storenode.client.types import (
    AnswerCoverage,
    CausalHistoryPage,
    CoverageStep,
    HistoryEntry,
    SdsStoredMessage,
    StoreCoverage,
    WakuMessage,
    WakuMessageKeyValue,
)
from storenode.sds.aio.status import Status
from storenode.sds.claims import Proof
from storenode.sds.events import (
    Acknowledged,
    Behind,
    CaughtUp,
    ChannelEvent,
    Disconnected,
    Forged,
    GaveUp,
    Lost,
    Message,
    PossiblyAcknowledged,
    Repaired,
    Sent,
    Withdrawn,
)
from tests.support.pages import ROOT
from tests.support.participant import claiming, genuine, genuine_id

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
    "store/cli/db.py": {"Target.print", "_progress.show"},
    "store/cli/demo.py": {"demo"},
    "store/cli/run.py": {"announce", "check_config"},
    "chaos/demo/report.py": {"ConsoleReport._line", "ConsoleReport._print"},
}
"""The functions that print, of all in the two packages; each is tried below. Logs are written by
`store.observe.logging` alone."""

PRINTS = re.compile(
    r"^print$|\b(stdout|stderr|_?console|click)\b.*\.(write|writelines|print|s?echo)$|print_exc$"
)


def printing(node: ast.AST, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the functions that call ``print``, ``click.echo``, or write to a stream."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from printing(child, (*path, child.name))
        else:
            if isinstance(child, ast.Call) and PRINTS.search(ast.unparse(child.func)):
                yield ".".join(path)
            yield from printing(child, path)


def test_every_function_that_prints_is_known() -> None:
    found = {
        str(path.relative_to(ROOT)): set(printing(ast.parse(path.read_text())))
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
    db.Target(None, Path(), as_json=False).print({}, db._table("ROWS", [(one, "1")]))  # type: ignore[list-item]


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


HOUR = 3_600_000_000_000


def page(
    state: AnswerCoverage.State.ValueType,
    *stores: str,
    reason: str = "",
    compared: int = 5,
    keyed: bool = True,
    within: tuple[int, int] = (0, 1),
) -> AnswerCoverage:
    start, end = within
    return AnswerCoverage(
        state=state,
        store_ids=stores or ("b",),
        reason=reason,
        compared_at=compared * HOUR,
        complete_from=start * HOUR,
        complete_until=end * HOUR,
        keyed=keyed,
    )


WHOLE = page(AnswerCoverage.COMPLETE)
ELSEWHERE = page(AnswerCoverage.COMPLETE, "c", compared=4)
PART = page(AnswerCoverage.PARTIAL, reason="the horizon", within=(1, 2))
UNKNOWN = page(AnswerCoverage.UNCONFIRMED, reason="why")
LACKING = page(AnswerCoverage.INCOMPLETE, "c\x1b", reason="it lacked messages", compared=3)
NEWER = page(99)  # type: ignore[arg-type] # as a newer node sends it


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([], "unknown: the node says nothing about this answer."),
        ([WHOLE], "complete as far as 1 store (b) knew as of 1970-01-01T05:00:00.000Z."),
        (
            [WHOLE, ELSEWHERE],
            "complete on each page as far as 2 stores (b, c) knew as of 1970-01-01T04:00:00.000Z.",
        ),
        (
            [WHOLE, PART],
            (
                "complete from 1970-01-01T01:00:00.000Z up to 1970-01-01T02:00:00.000Z as far as 1"
                " store (b) knew as of 1970-01-01T05:00:00.000Z; the horizon."
            ),
        ),
        ([WHOLE, UNKNOWN, PART], "not confirmed: why."),
        ([NEWER, WHOLE], "not confirmed: the node does not say why."),
        (
            [UNKNOWN, LACKING, WHOLE],
            (
                "incomplete as of 1970-01-01T03:00:00.000Z: it lacked messages: 1 store (c\\x1b);"
                " see storenode coverage."
            ),
        ),
        (
            [page(AnswerCoverage.COMPLETE, *"abcde", keyed=False)],
            (
                "complete as far as 5 stores (a, b, c and 2 more) knew as of"
                " 1970-01-01T05:00:00.000Z, by XOR."
            ),
        ),
    ],
)
def test_an_answer_is_as_complete_as_its_least_complete_page(
    said: list[AnswerCoverage], expected: str
) -> None:
    assert sentence(said) == f"Coverage: {expected}"


def store(**fields: Any) -> StoreCoverage:  # noqa: ANN401 - those of the message
    return StoreCoverage(store_id="b\x1b", compared_at=2 * HOUR, **fields)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (CoverageStep(), "messages not counted  not confirmed by any store"),
        (CoverageStep(messages=1, before_horizon=True), "1 message, before the horizon  not"),
        (
            CoverageStep(messages=2, intake=CoverageStep.RESUMED, missing_parents=1),
            "2 messages, in part resumed from a peer, 1 parent missing  not confirmed",
        ),
        (
            CoverageStep(messages=0, stores=[store(state=StoreCoverage.EQUAL)]),
            "0 messages  equal to b\\x1b as of 1970-01-01T02:00:00.000Z, by XOR",
        ),
        (
            CoverageStep(stores=[store(state=StoreCoverage.DIFFERS, missing_here=1), store()]),
            (
                "messages not counted  differs from b\\x1b as of 1970-01-01T02:00:00.000Z"
                " (missing here 1, there 0); not confirmed by b\\x1b as it is now"
            ),
        ),
        (
            CoverageStep(stores=[store(equal_until=HOUR, last_equal=1)]),
            "messages not counted  equal to b\\x1b up to 1970-01-01T01:00:00.000Z only, equal as",
        ),
    ],
)
def test_a_step_says_what_is_stored_and_by_whom_it_is_confirmed(
    step: CoverageStep, expected: str
) -> None:
    assert _line(step).startswith(f"1970-01-01T00:00:00.000Z  {expected}")


def test_json_of_nested_and_repeated_messages() -> None:
    page = CausalHistoryPage(truncated=True)
    page.messages.add().entry.message_id = '"0\x7f\n'
    page.missing.add(message_id="é", retrieval_hint=b"\x01")
    page.missing.add(message_id="")
    assert to_json(page) == (
        '{"messages": [{"entry": {"message_id": "\\"0\\u007f\\n"}}],'
        ' "missing": [{"message_id": "\\u00e9", "retrieval_hint": "01"}, {"message_id": ""}],'
        ' "truncated": true}'
    )


def stored() -> list[WakuMessageKeyValue]:
    spoken = sds_payload("room", "id\x1b", b"hello\x07", sender_id="al\u202eice")
    payloads = [b"text \x7f", b"\xff" * 90, b"", b"x" * 200, spoken]
    found = [WakuMessageKeyValue(message_hash=bytes([9] * 32))]
    for number, payload in enumerate(payloads):
        # Also before 1970, and over the end of a second.
        message = WakuMessage(
            payload=payload,
            content_topic="/a\x7f/1/é/x",
            timestamp=(number - 2) * 999_999_999_999_999_999,
        )
        found.append(WakuMessageKeyValue(message_hash=bytes([number] * 32), message=message))
    return found


@pytest.mark.parametrize("as_json", [False, True])
def test_a_page_is_printed_as_its_messages_one_by_one(
    as_json: bool, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    items = stored()
    out = Output("json" if as_json else "table")
    out.stored(items)
    out.flush()
    together = capfdbinary.readouterr().out
    for item in items:
        out.stored([item])
    out.stored([])
    out.flush()
    assert capfdbinary.readouterr().out == together
    lines = together.decode().splitlines()
    assert len(lines) == len(items)
    assert all(line.isprintable() for line in lines)
    if as_json:
        assert [json.loads(line) for line in lines] == [to_plain(item) for item in items]
    else:
        assert lines[0] == "09" * 32
        assert lines[1] == rf"1906-08-16T20:26:40.000Z  {'00' * 32}  /a\x7f/1/é/x  text \x7f"
        assert lines[2].endswith("  0x" + "f" * (PREVIEW_CHARS - 5) + "...")
        assert lines[3] == rf"1970-01-01T00:00:00.000Z  {'02' * 32}  /a\x7f/1/é/x  "
        assert lines[5].endswith(r"  [id\x1b] al\u202eice: hello\x07  (not verified)")


def test_what_an_id_does_not_prove_is_forged_beside_what_it_proves(
    capfd: pytest.CaptureFixture[str],
) -> None:
    name = genuine_id("room", b"genuine")
    payloads = [claiming("room", name, b"first"), genuine("room", b"genuine")]
    items = [
        SdsStoredMessage(
            entry=HistoryEntry(message_id=name),
            stored=WakuMessageKeyValue(message=WakuMessage(payload=payload)),
        )
        for payload in [*payloads, payloads[0]]
    ]
    # A node may give it for an ID that it does not have.
    items.append(SdsStoredMessage(entry=HistoryEntry(message_id="m1"), stored=items[1].stored))
    for shape in ("table", "json"):
        out = Output(shape)
        # On pages of their own: what came before the genuine message cannot be called forged.
        for item in items:
            out.sds([item])
        out.sds(items)
        out.flush()
        lines = capfd.readouterr().out.splitlines()
        if shape == "json":
            assert [json.loads(line)["proven"] for line in lines] == [False, True, False, False] * 2
        else:
            said = [line.rpartition("  ")[2] for line in lines]
            assert said[:3] == ["(not verified)", "alice: genuine", "(FORGED)"]
            assert said[4:7] == ["(FORGED)", "alice: genuine", "(FORGED)"]
            assert said[3] == said[7] == "(not verified)"


def test_raw_output_is_the_payloads_and_remarks_go_elsewhere(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    out = Output("raw")
    out.stored(stored()[:3])
    out.cursor("cursor", b"\x01")
    out.finish()
    shown = capfdbinary.readouterr()
    assert shown.out == b"\x09" * 32 + b"\ntext \x7f\n" + b"\xff" * 90 + b"\n"
    assert shown.err == b"cursor: 01\n"


def test_progress_is_shown_on_a_terminal_when_the_output_goes_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("storenode.cli.client.output.PROGRESS_INTERVAL_S", 0.0)
    out = Output("json")
    out.stored(stored())
    out.finish()
    shown, cleared, _ = capfd.readouterr().err.split("\r")
    assert shown.rstrip() == "6 messages, up to 2033-05-18T03:33:19.999Z"
    assert cleared == " " * len(shown)


def test_input_that_comes_after_the_end_leaves_no_warning(
    capfd: pytest.CaptureFixture[str],
) -> None:
    out, into = os.pipe()

    async def interrupted() -> None:
        async with asyncio.timeout(0):
            await anext(source.lines(out))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(TimeoutError):
            asyncio.run(interrupted())
        (reader,) = (each for each in threading.enumerate() if each.name == "input")
        os.write(into, b"late")
        reader.join()
    os.close(into)
    os.close(out)
    assert [str(each.message) for each in caught] == []
    assert capfd.readouterr().err == ""


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("list") / "ids"


@given(given=st.lists(st.tuples(texts, texts, st.none() | st.binary(min_size=32, max_size=32))))
def test_what_is_written_line_by_line_is_read(
    path: Path, given: list[tuple[str, str, bytes | None]]
) -> None:
    lines = [
        {"channel": channel, "message_id": name, "hint": hint and hint.hex(), "other": 1}
        for channel, name, hint in given
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert list(listed(path)) == [(channel, (name, hint)) for channel, name, hint in given]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "Line 1 of"),
        ("[]", "is not like"),
        ("\n", "is not like"),
        ('{"channel": "a"}', "is not like"),
        ('{"channel": "a", "message_id": ""}', "is not like"),
        ('{"channel": 1, "message_id": "b"}', "is not like"),
        ('{"channel": "a", "message_id": "b", "hint": 7}', "is not like"),
        ('{"channel": "a", "message_id": "b", "hint": "00"}', "64 hexadecimal digits"),
        ('{"channel": "a", "message_id": "\\ud800"}', "is not like"),
        ("[" * 100_000, "is not like"),
        ("x" * 300_000, "is longer than"),
        ('{"channel": "a", "message_id": "b"}\n{}', "Line 2 of"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "ids"
    path.write_text(text)
    with pytest.raises(CliError, match=sentence) as caught:
        list(listed(path))
    assert caught.value.code == USAGE
    assert len(caught.value.sentence.splitlines()) == 1


FAMILY = "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}"
PRIDE = "\N{WAVING WHITE FLAG}\ufe0f\u200d\N{RAINBOW}"
WALES = "\N{WAVING BLACK FLAG}\U000e0067\U000e0062\U000e007f"


def own(name: str, lamport: int) -> Message:
    return Message(name, "alice", lamport, name.encode(), own=True, published=False)


def said(name: str, lamport: int, text: str = "x", after: int = 0) -> Message:
    return Message(name, "bob", lamport, text.encode(), entries_after=after, proof=Proof.MESSAGE)


def text_of(line: Line) -> str:
    return "".join(part[1] for part in formatted(line))[6:]


def test_marks_never_go_back() -> None:
    transcript = Transcript("alice", 0)
    (line,) = transcript.take(own("a", 1))
    seen, kept = [line.mark], transcript.messages["a"]
    for event in (
        Sent("a", None),
        PossiblyAcknowledged("a", 1, 0.1),
        Sent("a", None),
        Acknowledged("a"),
        GaveUp("a", 3),
    ):
        transcript.take(event)
        seen.append(kept.mark)
    assert seen[:3] == [Mark.WAITING, Mark.STORED, Mark.POSSIBLY]
    assert seen[3:] == [Mark.POSSIBLY, Mark.ACKNOWLEDGED, Mark.ACKNOWLEDGED]


def test_a_line_comes_once_with_its_time_mark_rows_and_place() -> None:
    transcript = Transcript("alice", 0)
    (line,) = transcript.take(own("first\nsecond", 3))
    assert text_of(line) == "… alice: first\n        second"
    (late,) = transcript.take(said("far", 1, after=2))
    assert text_of(late) == "  bob: x (2 above)"
    assert transcript.take(said("far", 1)) == []
    # The largest clock there is has no date, and is a line nevertheless.
    (far,) = transcript.take(own("far away", 2**64 - 1))
    assert formatted(far)


def test_old_lines_and_silent_participants_make_room() -> None:
    transcript = Transcript("alice", 0)
    for number in range(MAX_MEMBERS + 10):
        transcript.take(Message(str(number), f"name {number}", number, b"x" * 10_000))
    assert next(iter(transcript.messages)) == str(MAX_MEMBERS + 10 - MAX_SHOWN_LINES)
    assert len(transcript.members) == MAX_MEMBERS
    assert "name 9" not in transcript.members
    assert sum(len(row) for each in transcript.messages.values() for row in each.rows) < 200_000


def test_lines_under_the_own_name_that_were_not_said_here_are_marked() -> None:
    transcript = Transcript("alice", since_ms=100)
    (earlier,) = transcript.take(Message("1", "alice", 50, b"x", own=True), live=True)
    assert (earlier.sender, earlier.mark, earlier.own) == ("alice (not here)", Mark.NONE, False)
    assert not transcript.has_namesake
    _, warning = transcript.take(Message("2", "alice", 150, b"x", own=True), live=True)
    assert (warning.kind, transcript.has_namesake) == (LineKind.WARNING, True)
    assert len(transcript.take(Message("3", "alice", 151, b"x", own=True), live=True)) == 1
    # What is said from here, or was in the state, is our own.
    (mine,) = transcript.take(own("4", 152), live=True)
    (kept,) = transcript.stored(Message("5", "alice", 1, b"x", own=True))
    assert [(each.sender, each.own) for each in (mine, kept)] == [("alice", True)] * 2


@pytest.mark.parametrize(
    ("event", "remark"),
    [
        (Repaired(2, 1, 1), "fetched 1 of 2 missing messages"),
        (Repaired(2, 0, 1), None),
        (Behind("bob", 0, 4, 1), "bob has 4 messages or more that are not here: searching"),
        (Behind("bob", 0, 4, 2), None),
        (CaughtUp("bob"), "everything that bob has is here now"),
        (Lost(("a",)), "1 message could not be fetched from any participant: lost for good"),
        (Lost(("a", "b"), early=True), "2 messages were too many to wait for: searching the node"),
    ],
)
def test_remarks_about_events(event: ChannelEvent, remark: str | None) -> None:
    lines = Transcript("alice", 0).take(event)
    assert [line.rows[0][: len(remark or "")] for line in lines] == ([remark] if remark else [])


def test_who_is_ahead_or_lacks_messages_is_described() -> None:
    transcript = Transcript("alice", 0)
    for event, ahead in ((Behind("bob", 0, 1, 1), 1), (CaughtUp("bob"), 0)):
        transcript.take(event)
        assert transcript.members["bob"].ahead == ahead
    assert standing("bob", ChatMember(last_seen_ms=0, ahead=1), 2) == (
        "bob: not heard yet, has 1 message or more that are not here: searching, "
        "lacks 2 messages that are here"
    )


def test_forged_lines_are_shown_as_forged_wherever_they_come() -> None:
    transcript = Transcript("alice", 0)
    false = replace(said("a", 1, "pay mallory"), proof=Proof.NONE)
    (line,) = transcript.take(false)
    assert line.rows == ["pay mallory", NOT_VERIFIED]
    (withdrawn,) = transcript.take(Withdrawn("a", 1))
    assert transcript.take(Withdrawn("a", 1)) == []
    (genuine,) = transcript.take(said("a", 2, "pay\x1b[2J carol"))
    (second,) = transcript.take(Forged("a", "bob", 3, b"pay \x1b[2Jeve", None))
    (doubtful,) = transcript.take(Forged("b", "bob", 3, b"x" * 1_000, None, certain=False))
    assert {each.kind for each in (withdrawn, second, doubtful)} == {LineKind.WARNING}
    assert withdrawn.rows == [
        'FORGED: "pay mallory" was not written by bob: the genuine line follows'
    ]
    assert genuine.rows == ["pay\\x1b[2J carol"]
    assert second.rows[0].startswith(
        'FORGED: "pay \\x1b[2Jeve" came under the ID of the line of bob'
    )
    assert "cannot be told" in doubtful.rows[0]
    assert len(doubtful.rows[0]) < 400


def test_rows_of_a_message_keep_emoji_and_nothing_else_that_does_not_print() -> None:
    assert rows_of(b"a\r\nb\rc\n\td\n") == ["a", "b", "c", "    d"]
    emoji = f"x {FAMILY} {PRIDE} {WALES}"
    assert rows_of(emoji.encode()) == [emoji]
    # Joiners between letters of Latin, at an end, in a row, and letters of a region alone.
    hidden = "a\u200db \N{MAN}\u200d \N{MAN}\u200d\u200d\N{MAN} \U000e0067 \u202e"
    (row,) = rows_of(hidden.encode())
    assert row.isprintable()
    assert row.count(r"\u200d") == 4
    many = rows_of(b"x\n" * (MAX_TEXT_ROWS + 7))
    assert (len(many), many[-1]) == (MAX_TEXT_ROWS + 1, "[7 more rows not shown]")
    assert rows_of(b"x" * 64_001)[-1] == "[1 more characters not shown]"


def test_the_state_in_words() -> None:
    offline = Status(trouble="No node could be reached: check the address.", unpublished=2)
    lacking = Status("a:1", live=True, missing=3, behind=4, lost=1, unacknowledged=3, unpublished=1)
    odd = Status("a:1", live=True, trouble="The disk is full.")
    assert [state_of(each) for each in (Status(), offline, Status("a:1"), lacking, odd)] == [
        "connecting",
        "offline, 2 not sent yet, No node could be reached: check the address",
        "catching up, connected to a:1",
        (
            "incomplete, 3 missing, being fetched, others have 4 or more that are not here: "
            "searching, 1 lost for good, 1 not sent yet, 2 not confirmed by anybody yet, connected "
            "to a:1"
        ),
        "up to date, The disk is full",
    ]


def test_a_text_that_is_wider_than_its_row_is_cut() -> None:
    assert [fitting("字 short", columns) for columns in (8, 7, 1)] == ["字 short", "字 sho…", "…"]
    assert fitting("abcdefgh", 6) == "abcde…"
