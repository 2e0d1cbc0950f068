import pytest

from store.messages.fields import ADMISSION_CHUNK_BYTES, ADMISSION_CHUNK_MESSAGES, chunk_messages


@pytest.mark.parametrize("size_bytes", [1, 300, 3_000, 30_000, 150_000])
def test_a_chunk_is_bounded_in_messages_and_in_bytes(size_bytes: int) -> None:
    for count in (1, 7, 500, 5_000):
        chunk = chunk_messages(count, count * size_bytes)
        assert 1 <= chunk <= ADMISSION_CHUNK_MESSAGES
        assert chunk == 1 or chunk * size_bytes <= ADMISSION_CHUNK_BYTES


def test_small_messages_are_judged_many_at_a_time() -> None:
    assert chunk_messages(5_000, 5_000 * 250) == ADMISSION_CHUNK_MESSAGES


def test_no_messages_make_no_endless_loop() -> None:
    assert chunk_messages(0, 0) == 1
