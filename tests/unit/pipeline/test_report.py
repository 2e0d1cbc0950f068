"""Pages, metrics and progress of a job."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import unicodedata
from collections import Counter, defaultdict
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from store.pipeline import nightly
from store.pipeline.archive import ArchiveJob, ArchiveReport
from store.pipeline.audit.summary import AuditReport
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import FAILED, UNREACHABLE, PipelineError
from store.pipeline.limits import DAY_NS, HOUR_NS, MAX_LISTED
from store.pipeline.report import figures as gathering
from store.pipeline.report import text
from store.pipeline.report.figures import MAX_NAMES, MAX_STEPS, Figures, axis_of, to_json
from store.pipeline.report.page import WARNING, finding_of, page_of
from store.pipeline.report.report import PageReport
from store.pipeline.reports import write_metrics
from store.pipeline.spark import (
    TerminatedError,
    _choose_python,
    _not_started,
    _relay,
    ended_by_signals,
    interrupt_here,
)
from store.pipeline.verify import VerifyReport

START = 20_000 * DAY_NS
TIMES = st.integers(0, 2**63 - 1)
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style></svg><a href=//evil.example>",
    "{{ 7 * 7 }}{% raw %}",
    "$\\frac{1}{2}$",
    "&lt;b&gt;",
    "\u202egnp.exe",
    "a\nb\x1b[31m\x00",
    "",
    "x" * 121,
    "\U0001f600" * 121,
]
MAX_PAGE_BYTES = 3_200_000


def ranking(names: list[str], *keys: str) -> Figures:
    top: list[Figures] = [
        {**dict.fromkeys(keys, name), "messages": 2_000 - place, "payload_bytes": 5_000}
        | {"first_ns": START, "last_ns": START + place}
        for place, name in enumerate((names * MAX_NAMES)[:MAX_NAMES])
    ]
    total = sum(each["messages"] for each in top) + 20_000
    others = {"others": 10_000, "others_messages": 20_000, "others_payload_bytes": 400}
    return {"count": MAX_NAMES + 10_000, "messages": total, "top": top, **others}


def traffic(shards: int, steps: int, names: list[str]) -> Figures:
    axis = axis_of(START, START + steps * HOUR_NS - 1)
    found = [{"start_ns": start, "messages": 1 + start // HOUR_NS % 50} for start in axis]
    return {
        "messages": sum(each["messages"] for each in found),
        "payload_bytes": 10**6,
        "from_ns": START,
        "to_ns": START + steps * HOUR_NS,
        "step_s": axis.step // 10**9,
        "days": [{"day": f"2024-10-{day:02}", "messages": 5, "payload_bytes": 9} for day in (4, 5)],
        "steps": found,
        "shards": [
            {"shard": shard, "messages": 7, "payload_bytes": 900, "active_hours": 1}
            for shard in range(-1, shards - 1)
        ],
        "topics": ranking(names, "pubsub_topic", "content_topic"),
        "channels": ranking(names, "channel"),
        "messages_not_sds": 17,
    }


def past(channel: str, missing: int, senders: list[str | None], more: int = 0) -> Figures:
    return {
        "channel": channel,
        "messages": 9,
        "missing": missing,
        "incomplete": missing,
        "last_complete": None,
        "missing_since": START if missing else None,
        "naming_senders": len(senders) + more,
        "named_by": senders,
    }


def completeness(names: list[str]) -> Figures:
    parents = [
        {"channel": name, "message_id": name, "named_by": 2, "sender": name, "hint": None}
        | {"first_named_by": name, "ts": START}
        for name in (names * MAX_LISTED)[:MAX_LISTED]
    ]
    pasts = [past(name, 3, [None, name], 4) for name in (names * MAX_LISTED)[:MAX_LISTED]]
    counts = {"channels": 1_000, "missing": 154, "incomplete": 200, "faults": 1, "left_out": []}
    return {**counts, "least_complete": pasts, "missing_parents": parents}


def figures(names: list[str], shards: int = 3, steps: int = MAX_STEPS, **parts: Any) -> Figures:  # noqa: ANN401
    found = {
        "name": "/archive/" + names[0],
        "made_ns": START + 10 * DAY_NS,
        "traffic": traffic(shards, steps, names),
        "completeness": completeness(names),
    }
    return {**found, **parts}


class Elements(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


@cache
def full_page() -> str:
    """Return a page with as much on it as there can be, and names that strangers chose."""
    return page_of(figures(HOSTILE, 65))


def test_a_page_loads_nothing_and_runs_nothing() -> None:
    found = Elements(full_page())
    forbidden = {"script", "link", "img", "iframe", "object", "embed", "base", "form", "image"}
    assert not forbidden & set(found.tags)
    for name, value in found.attributes:
        assert not name.startswith("on")
        assert name not in {"src", "srcset", "action", "data", "xmlns", "xmlns:xlink"}
        assert not name.endswith("href") or value.startswith("#")
    assert not re.search(r"https?:|@import", full_page())
    assert "default-src 'none'" in full_page()
    assert set(re.findall(r"url\((.)", full_page())) <= {"#"}
    assert len(full_page().encode()) < MAX_PAGE_BYTES


def test_names_of_strangers_are_text_and_nothing_else() -> None:
    found = Elements(full_page())
    assert found.tags == Elements(page_of(figures(["room"], 65))).tags
    for name in ("<script>alert(1)</script>", "{{ 7 * 7 }}{% raw %}", "&lt;b&gt;"):
        assert name in found.texts
    for escape in (r"\u202egnp.exe", r"a\nb\x1b[31m\x00", "(empty)", "x" * 120 + "…"):
        assert escape in found.texts
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", full_page())


def test_links_ids_charts_and_colours_of_a_page_are_its_own() -> None:
    found = Elements(full_page())
    ids = [value for name, value in found.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    wanted = set(re.findall(r'(?:href="|url\()#([^")]+)', full_page()))
    assert {"completeness", "traffic"} <= set(ids)
    assert wanted <= set(ids)
    style, _, body = full_page().partition("</style>")
    assert "prefers-color-scheme: dark" in style
    assert set(re.findall(r"#[0-9a-f]{6}\b", body)) <= {"#000000", "#ffffff"}
    assert set(re.findall(r"var\((--\w+)\)", body)) <= set(re.findall(r"(--\w+):", style))
    charts = re.findall(r"<svg([^>]*)>", body)
    assert len(charts) == 1
    for each in charts:
        assert all(part in each for part in ('role="img"', "aria-label=", "viewBox="))


def test_absent_figures_are_explained() -> None:
    assert "holds no messages of this time" in page_of(figures(["room"], traffic=None))
    page = page_of(figures(["room"], completeness=None, traffic=traffic(1, 1, [""])))
    assert "Missing messages were not looked for" in page
    assert "Messages per step of 1 h" in page
    assert Elements(page).tags[0] == "html"


def test_a_channel_is_listed_with_what_it_lacks_since_when_and_by_whom() -> None:
    found = completeness(["room"]) | {"missing": 3, "incomplete": 7, "faults": 0}
    found["least_complete"] = [past("room", 3, ["alice", None], 2), past("ok", 0, [])]
    page = page_of(figures(["room"], completeness=found, traffic=None))
    assert (
        f"3 messages that others name as parents are missing, first named {text.time(START)} in"
        " room; 7 messages with an incomplete past."
    ) in page
    assert "alice, (no sender) and 2 more" in page
    whole = found | {"missing": 0, "incomplete": 0, "least_complete": [], "missing_parents": []}
    page = page_of(figures(["room"], completeness=whole, traffic=None))
    assert "Every message that another names is held, in 1,000 channels." in page


def test_channels_that_the_audit_left_out_are_named(tmp_path: Path) -> None:
    left_out = [{"channel": "big\n", "entries": 5_000_001}]
    sentence = " Every message that another names is held, in 2 channels."
    for channels, rest in ((2, sentence), (0, "")):
        audited = AuditReport("it", Counter(channels=channels), defaultdict(list), left_out)
        found = gathering.completeness_of(audited)
        warning = rf"Too large to be audited, except in shorter ranges of time: big\n.{rest}"
        assert finding_of(found) == (WARNING, warning)
        made = PageReport(figures(["room"], completeness=found), tmp_path)
        assert (made.sound, made.lines()[1:]) == (False, [warning])
        assert made.as_json()["completeness"]["left_out"] == left_out
    assert PageReport(figures(["room"]), tmp_path).sound


def test_json_has_times_as_text() -> None:
    found = to_json({"start_ns": START, "last_ns": None, "listed": [{"since_ns": START}]})
    day = "2024-10-04T00:00:00Z"
    assert found == {"start": day, "last": None, "listed": [{"since": day}]}


@given(st.text(max_size=300))
def test_a_name_is_shown_by_what_prints_alone(name: str) -> None:
    shown = text.shown(name)
    assert shown.strip()
    categories = {unicodedata.category(char) for char in shown}
    assert not categories & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert len(shown) <= 10 * text.MAX_NAME_CHARS + 1


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (" \t", "(empty)"),
        ("\ud800", r"\ud800"),
        ("چت日本", "چت日本"),
        ("e" + 4 * "\u0301", "e\u0301\u0301" + 2 * r"\u0301"),
    ],
)
def test_a_name_is_shown_with_escapes(name: str, wanted: str) -> None:
    assert text.shown(name) == wanted


@given(TIMES, TIMES)
def test_an_axis_holds_every_hour_once(one: int, other: int) -> None:
    first, last = sorted((one, other))
    axis = axis_of(first, last)
    assert axis.start <= first <= last < axis.stop
    assert len(axis) <= MAX_STEPS
    assert all(start % axis.step == 0 for start in axis)
    assert axis_of(first // HOUR_NS * HOUR_NS, last) == axis


# Metrics of a job


def values(file: Path) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("storenode_pipeline_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(file.read_text(encoding="utf-8"))
        for sample in family.samples
    }


def test_the_last_success_stays_while_a_job_fails(tmp_path: Path) -> None:
    file = tmp_path / "nightly.prom"
    report = {"sound": True, "messages": 7, "faults": ["a", "b"], "name": "x", "listed": {"a": 1}}
    report["audit"] = {"sound": False, "missing": 3}
    write_metrics(file, "verify", 0, report, began_s=100.0, ended_s=160.0)
    assert values(file) == {
        ("last_run_timestamp_seconds", "verify"): 160.0,
        ("last_success_timestamp_seconds", "verify"): 160.0,
        ("duration_seconds", "verify"): 60.0,
        ("exit_code", "verify"): 0.0,
        ("figure", "sound", "verify"): 1.0,
        ("figure", "messages", "verify"): 7.0,
        ("figure", "faults", "verify"): 2.0,
        ("figure", "audit_sound", "verify"): 0.0,
        ("figure", "audit_missing", "verify"): 3.0,
    }
    write_metrics(file, "verify", 3, {}, began_s=200.0, ended_s=201.0)
    found = values(file)
    assert found["last_success_timestamp_seconds", "verify"] == 160.0
    assert (found["last_run_timestamp_seconds", "verify"], found["exit_code", "verify"]) == (201, 3)
    write_metrics(file, "audit", 1, {}, began_s=300.0, ended_s=301.0)
    assert ("last_success_timestamp_seconds", "audit") not in values(file)
    file.write_text("no metrics {")
    write_metrics(file, "audit", 1, {}, began_s=400.0, ended_s=401.0)
    assert values(file)["exit_code", "audit"] == 1.0
    assert [each.name for each in tmp_path.iterdir()] == ["nightly.prom"]


@pytest.mark.parametrize("code", [FAILED, UNREACHABLE])
def test_a_check_that_is_refused_does_not_hide_what_another_has_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise PipelineError("The channel x is too large.", code)

    monkeypatch.setattr(nightly, "archive", lambda *_: ArchiveReport())
    monkeypatch.setattr(nightly, "verify", lambda *_: VerifyReport(messages=7))
    monkeypatch.setattr(nightly, "ArchiveMessages", lambda *_: None)
    monkeypatch.setattr(nightly, "audit_recorded", refuse)
    session: Any = None
    job = ArchiveJob("", DeltaArchive(str(tmp_path)))
    if code != FAILED:
        with pytest.raises(PipelineError, match="too large"):
            nightly.nightly(session, job)
        return
    report = nightly.nightly(session, job)
    assert report.lines()[-1] == "audit: The channel x is too large."
    found = report.as_json()
    sound = found["sound"], found["audit"]["sound"]
    assert (*sound, found["verify"]["messages"]) == (False, False, 7)


# The start and the end of Spark


@pytest.fixture(autouse=True)
def no_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_ENV_LOADED", raising=False)


def test_workers_of_this_machine_are_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = sys.executable, "/usr/bin/other"
    for master, chosen in ((None, own), ("local[2]", own), ("spark://host:7077", other)):
        monkeypatch.setenv("PYSPARK_PYTHON", other)
        _choose_python(master)
        assert os.environ["PYSPARK_PYTHON"] == chosen
    monkeypatch.delenv("PYSPARK_PYTHON")
    _choose_python("spark://host:7077")
    assert os.environ["PYSPARK_PYTHON"] == own


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("[JAVA_GATEWAY_EXITED] The process exited.", "Spark's JVM has ended at its start"),
        (
            "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nat x",
            "the same spark.authenticate.secret",
        ),
        ("[SOME.ERROR] odd", "Spark gave up: [SOME.ERROR] odd"),
    ],
)
def test_why_spark_did_not_start_is_reported(said: str, sentence: str) -> None:
    assert sentence in _not_started(Exception(said)).sentence


def test_stray_lines_of_a_jvm_are_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    os.write(write, b"WARNING: Using incubator modules: x\nwrong\n[Stage 1:==> 2 of 8]\r")
    os.close(write)
    _relay(read)
    assert capfd.readouterr().err == "wrong\n[Stage 1:==> 2 of 8]\r"


def test_both_signals_are_exceptions_within_the_block(caplog: pytest.LogCaptureFixture) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(TerminatedError), ended_by_signals():
        terminated_while_py4j_waits()
    assert caplog.messages == ["something else"]
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        interrupted_after_a_library_took_the_signal()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def terminated_while_py4j_waits() -> None:
    logging.getLogger().error("KeyboardInterrupt while sending command.")
    logging.getLogger().error("something else")
    with pytest.raises(TerminatedError):
        os.kill(os.getpid(), signal.SIGTERM)
    raise ValueError("the library fails in its own way")


def interrupted_after_a_library_took_the_signal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupt_here()
    os.kill(os.getpid(), signal.SIGINT)
