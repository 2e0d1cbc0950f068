import pytest

from storenode.message.hashing import message_hash
from tests.interop.vectors import Case, case_name, hex_or_none, int_or_none, load

VECTORS = load("message_hash")
CASES: list[Case] = VECTORS["cases"]


def _has_agreed_hash(case: Case) -> bool:
    timestamp = int_or_none(case["timestamp"])
    return timestamp is not None and timestamp != 0 and -(2**63) <= timestamp < 2**63


HASHED = [case for case in CASES if _has_agreed_hash(case)]
REFUSED = [case for case in CASES if not _has_agreed_hash(case) and case["timestamp"] is not None]


def _hash(case: Case) -> bytes:
    return message_hash(
        case["pubsub_topic"],
        bytes.fromhex(case["payload"]),
        case["content_topic"],
        hex_or_none(case["meta"]),
        int(case["timestamp"]),
    )


@pytest.mark.parametrize("case", HASHED, ids=case_name)
def test_the_hash_is_that_of_other_implementations(case: Case) -> None:
    assert _hash(case).hex() == case["hash"]


@pytest.mark.parametrize("case", REFUSED, ids=case_name)
def test_a_timestamp_that_wraps_elsewhere_is_refused(case: Case) -> None:
    with pytest.raises(ValueError, match="has no hash"):
        _hash(case)


@pytest.mark.parametrize("case", VECTORS["js_date_inputs"], ids=case_name)
def test_dates_give_the_hash_of_their_nanoseconds(case: Case) -> None:
    spec = next(case for case in CASES if case["name"] == "spec-meta-12")
    dated = {**spec, "timestamp": case["equivalent_ns"]}
    if int(case["equivalent_ns"]) == 0:
        with pytest.raises(ValueError, match="timestamp 0 has no hash"):
            _hash(dated)
    else:
        assert _hash(dated).hex() == case["hash"]
