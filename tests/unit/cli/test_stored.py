"""Stored messages as `scan` and `query` print them, page by page; and input after its end."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import warnings

import pytest

from storenode.cli.client import source
from storenode.cli.client.output import Output
from storenode.client.plain import to_json, to_plain
from storenode.client.sds_messages import sds_payload
from storenode.client.types import (
    CausalHistoryPage,
    HistoryEntry,
    SdsStoredMessage,
    WakuMessage,
    WakuMessageKeyValue,
)
from tests.support.forged import claiming, genuine, genuine_id


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
        shown = rf"1906-08-16T20:26:40.000Z  {'00' * 32}  /a\x7f/1/é/x  text \x7f"
        assert lines[1] == shown
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
    for shape in ("table", "json"):
        out = Output(shape)
        # On pages of their own: what came before the genuine message cannot be called forged.
        for item in items:
            out.sds([item])
        out.sds(items)
        out.flush()
        lines = capfd.readouterr().out.splitlines()
        if shape == "json":
            assert [json.loads(line)["proven"] for line in lines] == [False, True, False] * 2
        else:
            said = [line.rpartition("  ")[2] for line in lines]
            assert said[:3] == ["(not verified)", "alice: genuine", "(FORGED)"]
            assert said[3:] == ["(FORGED)", "alice: genuine", "(FORGED)"]


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
