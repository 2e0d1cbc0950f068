"""Metrics of a job: what Prometheus reads after a run that succeeded, and after one that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from store.pipeline import nightly
from store.pipeline.archive import ArchiveJob, ArchiveReport
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import FAILED, UNREACHABLE, PipelineError
from store.pipeline.reports import JobRun, write_metrics
from store.pipeline.verify import VerifyReport


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
    write_metrics(file, JobRun("verify", 100.0, 160.0, 0, report))
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
    write_metrics(file, JobRun("verify", 200.0, 201.0, 3, {}))
    found = values(file)
    assert found["last_success_timestamp_seconds", "verify"] == 160.0
    assert (found["last_run_timestamp_seconds", "verify"], found["exit_code", "verify"]) == (201, 3)
    write_metrics(file, JobRun("audit", 300.0, 301.0, 1, {}))
    assert ("last_success_timestamp_seconds", "audit") not in values(file)
    file.write_text("no metrics {")
    write_metrics(file, JobRun("audit", 400.0, 401.0, 1, {}))
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
    assert (found["sound"], found["verify"]["messages"], found["audit"]["sound"]) == (
        False,
        7,
        False,
    )
