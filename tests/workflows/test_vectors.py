"""Vectors of text and lists, against slow references."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.workflows.raw.values.multi_values import vector_damage, vectors_of_values

LENGTH = 3
CELL = st.one_of(st.none(), st.just(float("nan")), st.just(1e300), st.floats(width=32))
LISTS = st.lists(st.one_of(st.none(), st.lists(CELL, max_size=4)), max_size=12)


@given(LISTS)
def test_lists_are_checked_as_a_slow_reference_checks_them(lists):
    values = pa.array(lists, pa.list_(pa.float64()))
    vectors, good = vectors_of_values(values, "|", LENGTH, where="x")
    assert vectors.type == pa.list_(pa.float32()) and len(vectors) == len(lists)
    for given_list, vector, right in zip(lists, vectors.to_pylist(), good):
        largest = float(np.finfo(np.float32).max)
        expected = (
            given_list is not None
            and len(given_list) == LENGTH
            and all(x is not None and abs(x) <= largest for x in given_list)
        )
        assert right == expected == (not vector_damage("x", given_list, "|", LENGTH))
        assert vector == (given_list if expected else [0.0] * LENGTH)


@pytest.mark.parametrize("as_list", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, LENGTH)])
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.int16()])
def test_all_kinds_of_lists_are_read(as_list, kind):
    values = pa.array([[1, 2, 3], None, [4, 5, 6]], as_list(kind))
    for rows in (values, pa.chunked_array([values.slice(0, 1), values.slice(1)])):
        vectors, good = vectors_of_values(rows, "|", LENGTH, where="x")
        assert vectors.to_pylist() == [[1, 2, 3], [0, 0, 0], [4, 5, 6]]
        assert good.tolist() == [True, False, True]


@given(
    st.lists(st.lists(st.sampled_from(["1", " 2.5 ", "-1e-3", "", "x", "nan", "0x1"]), max_size=4))
)
def test_text_is_checked_as_a_slow_reference_checks_it(rows):
    texts = ["|".join(row) or None for row in rows]
    vectors, good = vectors_of_values(pa.array(texts, pa.string()), "|", LENGTH, where="x")
    numbers = {"1": 1.0, " 2.5 ": 2.5, "-1e-3": float(np.float32(-1e-3))}
    for row, text, vector, right in zip(rows, texts, vectors.to_pylist(), good):
        expected = len(row) == LENGTH and all(each in numbers for each in row)
        assert right == expected == (not vector_damage("x", text, "|", LENGTH))
        assert vector == ([numbers[each] for each in row] if expected else [0.0] * LENGTH)
