"""Tests of what a chat shows, without a channel: marks, order, rows of a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
from storenode.sds.aio.events import ChannelEvent, Message, Repaired
from storenode.sds.aio.status import Status
from storenode.sds.claims import Proof
from storenode.sds.events import (
    Acknowledged,
    Behind,
    CaughtUp,
    Forged,
    GaveUp,
    Lost,
    PossiblyAcknowledged,
    Sent,
    Withdrawn,
)

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
    seen = [line.mark]
    for event in (
        Sent("a", None),
        PossiblyAcknowledged("a", 1, 0.1),
        Sent("a", None),
        Acknowledged("a"),
        GaveUp("a", 3),
    ):
        transcript.take(event)
        seen.append(line.mark)
    assert seen[:3] == [Mark.WAITING, Mark.STORED, Mark.POSSIBLY]
    assert seen[3:] == [Mark.POSSIBLY, Mark.ACKNOWLEDGED, Mark.ACKNOWLEDGED]


def test_a_line_comes_once_with_its_time_mark_rows_and_place() -> None:
    transcript = Transcript("alice", 0)
    (line,) = transcript.take(own("first\nsecond", 3))
    transcript.take(Sent("first\nsecond", None))
    assert text_of(line) == "· alice: first\n        second"
    (late,) = transcript.take(said("far", 1, after=2))
    assert text_of(late) == "  bob: x (2 above)"
    assert transcript.take(said("far", 1)) == []
    # The largest clock there is has no date, and is a line nevertheless.
    (far,) = transcript.take(own("far away", 2**64 - 1))
    assert formatted(far)


def test_old_lines_and_silent_participants_make_room() -> None:
    transcript = Transcript("alice", 0)
    for number in range(MAX_MEMBERS + 10):
        transcript.take(Message(str(number), f"name {number}", number, b"x"))
    assert next(iter(transcript.messages)) == str(MAX_MEMBERS + 10 - MAX_SHOWN_LINES)
    assert len(transcript.members) == MAX_MEMBERS
    assert "name 9" not in transcript.members


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
