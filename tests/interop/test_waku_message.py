import pytest

from store.domain.admission import Verdict
from storenode.message.rules import Policy
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.interop.vectors import Case, case_name, load
from tests.support.admission import admit

VECTORS = load("waku_message")
BYTES_FIELDS = {"payload", "meta"}


def _fields(message: WakuMessage) -> dict[str, object]:
    """Return present fields in the vectors' notation, without the opaque rate limit proof."""
    found: dict[str, object] = {
        "payload": message.payload.hex(),
        "content_topic": message.content_topic,
    }
    for field, value in message.ListFields():
        if field.name == "timestamp":
            found[field.name] = str(value)
        elif field.name in BYTES_FIELDS:
            found[field.name] = value.hex()
        elif field.name != "rate_limit_proof":
            found[field.name] = value
    return found


def _without_proof(fields: Case) -> Case:
    return {name: value for name, value in fields.items() if name != "rate_limit_proof"}


@pytest.mark.parametrize("case", VECTORS["encode"], ids=case_name)
def test_messages_read_and_write_the_same_bytes(case: Case) -> None:
    raw = bytes.fromhex(case["bytes"])
    message = WakuMessage.FromString(raw)
    assert _fields(message) == _without_proof(case["fields"])
    assert message.HasField("rate_limit_proof") == ("rate_limit_proof" in case["fields"])
    assert message.SerializeToString() == raw


@pytest.mark.parametrize("case", VECTORS["core_encoder"], ids=case_name)
def test_a_client_s_message_gets_the_client_s_hash(case: Case) -> None:
    raw = bytes.fromhex(case["bytes"])
    message = WakuMessage.FromString(raw)
    assert _fields(message) == _without_proof(case["fields"])
    item = WakuMessageAndTopic(pubsub_topic=case["pubsub_topic"], message=message)
    admission = admit([item], message.timestamp, Policy(max_drift_ns=0))
    assert [digest.hex() for digest in admission.hashes] == [case["message_hash"]]
    expected = Verdict.EPHEMERAL if message.ephemeral else Verdict.ACCEPTED
    assert admission.verdicts == [expected]
