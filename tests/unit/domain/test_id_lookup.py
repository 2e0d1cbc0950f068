from hypothesis import example, given
from hypothesis import strategies as st

from reconcile.ids import SyncIds
from store.sync.transfer.id_lookup import IdLookup, hash_column

# Few different hashes, with common beginnings and zeros at the end.
hashes = st.builds(
    lambda start, end: bytes(start) + b"\x01" + bytes(30 - start) + bytes([end]),
    st.integers(0, 30),
    st.sampled_from([0, 1, 255]),
)


@given(st.lists(hashes, unique=True, max_size=40), st.lists(hashes, max_size=40))
@example([], [bytes(32)])
@example([bytes(32)], [])
@example([bytes(32)], [bytes(32), b"\xff" * 32])
def test_every_hash_is_found_at_its_place(stored: list[bytes], wanted: list[bytes]) -> None:
    lookup = IdLookup(SyncIds.of((number, digest) for number, digest in enumerate(stored)))
    found = lookup.find(hash_column(wanted)).tolist()
    assert found == [stored.index(digest) if digest in stored else -1 for digest in wanted]
