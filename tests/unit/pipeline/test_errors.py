"""What Spark says becomes one sentence."""

from __future__ import annotations

import pytest

from store.pipeline.errors import UNREACHABLE, PipelineError, of_spark

TRACEBACK = 'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n'


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        (
            f"{TRACEBACK}store.pipeline.errors.PipelineError: 3 The database is away.\n",
            UNREACHABLE,
            "The database is away.",
        ),
        (f"{TRACEBACK}ValueError: odd\n", 1, "Spark gave up: ValueError: odd"),
        ("[SOME.ERROR] What was wrong.\nMore.\n\nJVM stacktrace:\nat x", 1, "What was wrong."),
        (
            f"{TRACEBACK}OSError: [Errno 28] No space left on device",
            1,
            "No space is left on a disk",
        ),
        ("java.io.IOException: No space left on device\n\tat x", 1, "No space is left on a disk"),
    ],
)
def test_a_sentence_says_what_was_wrong(text: str, code: int, sentence: str) -> None:
    found = of_spark(Exception(text))
    assert isinstance(found, PipelineError)
    assert found.code == code
    assert sentence in found.sentence
    assert len(found.sentence.splitlines()) == 1
