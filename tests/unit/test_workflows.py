"""The workflows of the hosting service call `.ci/run`, and the forms are valid ones."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.pages import ROOT

WORKFLOWS = ROOT / ".github" / "workflows"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def workflow(name: str) -> dict[str, Any]:
    """Return a workflow; YAML takes its key `on` for a truth value."""
    loaded: dict[Any, Any] = yaml.safe_load((WORKFLOWS / name).read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in loaded.items()}


def steps(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from job.get("steps", ())


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step["run"] for step in steps(job) if "run" in step)


def test_a_change_is_checked_by_the_same_command_as_here() -> None:
    ci = workflow("ci.yml")
    assert {"pull_request", "push", "schedule", "workflow_call"} <= set(ci["on"])
    (job,) = ci["jobs"].values()
    run, condition = commands(job).splitlines()[-1].split(" ${{ ")
    assert run == "bash .ci/run"
    assert condition == (
        "(github.event_name == 'schedule' || github.ref_type == 'tag') && '--long' || '' }}"
    )
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert "openjdk-17" in commands(job)
    (checkout,) = [each for each in steps(job) if "checkout" in each.get("uses", "")]
    assert checkout["with"]["fetch-depth"] == 0


def planned(*arguments: str) -> str:
    """Return what make would run; each of its lines is shown and none is run."""
    options = ("--dry-run", "--no-print-directory")
    done = subprocess.run(
        ["make", *options, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_long_tests_are_run_where_they_are_asked_for() -> None:
    short, all_, long = planned("test"), planned("test", "LONG=1"), planned("test-long")
    assert "-m 'not long'" in short
    assert "`make test-long` runs them" in short
    assert "not long" not in all_
    assert "test-long" not in all_
    assert " -m long " in long
    assert "-m" not in planned("test", "ARGS=tests/unit").rpartition("pytest ")[2]
    refused = subprocess.run(
        ["bash", ".ci/run", "--short"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (refused.returncode, refused.stderr) == (2, "usage: .ci/run [--all | --long]\n")
    assert 'make test LONG="$long"' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_nothing_is_published_that_was_not_checked() -> None:
    release = workflow("release.yml")
    jobs = release["jobs"]
    assert release["on"] == {"push": {"tags": ["v*"]}}
    assert jobs["check"]["uses"] == "./.github/workflows/ci.yml"
    assert {"check", "dist", "wheels"} <= set(jobs["publish"]["needs"])
    assert jobs["images"]["needs"] == "check"
    assert "publish" in jobs["page"]["needs"]
    runners = jobs["wheels"]["strategy"]["matrix"]["runner"]
    assert {runner.partition("-")[0] for runner in runners} == {"macos", "ubuntu"}
    assert any(runner.endswith("-arm") for runner in runners)
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert not any("password" in step.get("with", {}) for step in steps(jobs["publish"]))


@pytest.mark.parametrize("name", [path.name for path in sorted(WORKFLOWS.iterdir())])
def test_what_a_workflow_names_exists(name: str) -> None:
    found = workflow(name)
    assert found["permissions"] == {"contents": "read"}
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for job in found["jobs"].values():
        for step in steps(job):
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[\w./]+", step["uses"])
            if "file" in step.get("with", {}):
                assert (ROOT / step["with"]["file"]).is_file()
        for path in re.findall(r"(?:tools|\.ci)/[\w.]+", commands(job)):
            assert (ROOT / path).exists(), path
        assert set(re.findall(r"\bmake ([\w-]+)", commands(job))) <= set(targets)


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_something(form: Path) -> None:
    loaded = yaml.safe_load(form.read_text(encoding="utf-8"))
    if form.stem == "config":
        assert loaded["blank_issues_enabled"] is False
        return
    assert loaded["name"]
    assert loaded["description"]
    ids = [field["id"] for field in loaded["body"]]
    assert len(ids) == len(set(ids)) > 0
    assert loaded["body"][0]["validations"]["required"]


def test_there_is_a_form_for_each_purpose() -> None:
    assert {form.stem for form in FORMS} == {"bug", "config", "feature", "question"}
