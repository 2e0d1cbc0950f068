"""Filters made by another implementation, bit for bit."""

import pytest

from storenode.sds.bloom import FilterShape, filter_of, holds
from tests.interop.vectors import Case, case_name, load

VECTORS = load("bloom")
CASES: list[Case] = [case for case in VECTORS["cases"] if case["k_hashes_option"] is None]
ASCII = [case for case in CASES if all(item.isascii() for item in case["inserted"])]
# The other implementation hashes UTF-16 there, so only such IDs can agree.
ASCII_HASHES = [vector for vector in VECTORS["hash_vectors"] if vector["item"].isascii()]


def _shape(case: Case) -> FilterShape:
    return FilterShape(case["capacity"], case["error_rate"])


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_sizes_follow_from_capacity_and_error_rate(case: Case) -> None:
    shape = _shape(case)
    assert (shape.hashes, shape.bits) == (case["k"], case["m_bits"])
    assert shape.size_bytes == case["byte_length"] == case["m_words"] * 8


@pytest.mark.parametrize("case", ASCII, ids=case_name)
def test_filters_have_the_same_bytes_and_answers(case: Case) -> None:
    shape = _shape(case)
    encoded = filter_of(shape, case["inserted"])
    assert encoded.hex() == case["bytes"]
    for item in case["lookup_true_inserted"] + case["lookup_true_false_positive"]:
        assert holds(encoded, shape.probe(item))
    for item in case["lookup_false"]:
        assert not holds(encoded, shape.probe(item))


@pytest.mark.parametrize("vector", ASCII_HASHES, ids=lambda vector: repr(vector["item"]))
def test_positions_are_the_same(vector: Case) -> None:
    assert FilterShape(10_000, 0.001).positions(vector["item"]) == vector["positions_k10_m150000"]
    assert FilterShape(10, 0.01).positions(vector["item"]) == vector["positions_k7_m100"]


@pytest.mark.parametrize("edge", VECTORS["deserialise_edge"], ids=case_name)
def test_only_the_right_length_is_information(edge: Case) -> None:
    assert FilterShape().reads(bytes(edge["byte_length"])) == (edge["name"] == "exact")
