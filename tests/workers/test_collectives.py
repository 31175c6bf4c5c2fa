"""Exchanges between workers give what NumPy gives, and keep all bits."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.workers import collectives
from cowclip_merlin.workers.collectives import padded_size

CHECKS = (
    "sums", "gathered", "gathered_rows", "exchanged", "in_a_loop", "arrays", "texts",
    "differences_of_facts", "errors_of_one", "refusal_of_one",
    "counted_bytes",
)  # fmt: skip


@pytest.fixture(scope="module", params=["by_two", "by_three"])
def found(request):
    """What each worker found in each check: an error or nothing."""
    folder = request.getfixturevalue(request.param) / "exchanges"
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


@pytest.mark.system
@pytest.mark.parametrize("name", CHECKS)
def test_exchanges(found, name):
    for rank, each in enumerate(found):
        assert not each[name], f"worker {rank}: {each[name]}"


@pytest.mark.system
def test_all_checks_are_here(found):
    assert all(set(each) == set(CHECKS) for each in found)


COUNTS = st.lists(st.integers(0, 2**30), min_size=1, max_size=200)


def sizes_of(counts):
    """Sizes and their numbers, by operations of graphs."""
    return [x.numpy().tolist() for x in padded_size(np.array(counts, np.int32))]


@given(COUNTS)
def test_few_rows_are_padding_and_no_number_has_two_sizes(counts):
    sizes, numbers = sizes_of(counts)
    assert [*zip(*map(padded_size, counts))] == [tuple(sizes), tuple(numbers)]
    for count, size in zip(counts, sizes, strict=True):
        assert count <= size <= max(16, count * 1.0625)
    assert len(set(zip(sizes, numbers, strict=True))) == len(set(numbers))


def test_sizes_grow():
    sizes, numbers = sizes_of(range(100_000))
    assert sizes == sorted(sizes) and numbers == sorted(numbers)
    assert len(set(zip(sizes, numbers, strict=True))) == len(set(numbers)) < 250
    _, (largest,) = sizes_of([2**30])
    assert largest < 1 << collectives._SIZE_BITS
    assert collectives._KEY_BITS + collectives._SIZE_BITS < 32  # a key is an int32
