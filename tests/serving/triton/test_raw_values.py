"""Raw values to ids and numbers in TensorFlow, compared with NVTabular's workflow."""

import dataclasses
import itertools

import numpy as np
import pandas
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cowclip_merlin import compat
from cowclip_merlin.serving import raw_value_model
from cowclip_merlin.serving.raw_value_model import ids_of, scaled, vocabulary, whole
from cowclip_merlin.workflows import Recipe
from cowclip_merlin.workflows.nvtabular_graph import Statistics, load_workflow
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.values.value_text import whole_text

tf, nvtabular = compat.tensorflow(), compat.nvtabular()

SPECIAL = [None, None, None]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
# TensorFlow computes with subnormal numbers as with 0.
FLOATS = st.floats(-1e12, 1e12, allow_subnormal=False)
NUMBERS = st.one_of(st.none(), FLOATS, st.sampled_from([0.0, -0.0, 1.0, -3.0]))
COLUMNS = ("a", "b")
FORMAT = LogFormat(kind="table", label="y", categorical=("c",), continuous=COLUMNS)


@pytest.fixture(scope="module")
def workflow(tmp_path_factory):
    """Makes the fitted workflow of a vocabulary and of ranges."""
    names = itertools.count()

    def make(values, ranges, *, log):
        folder = tmp_path_factory.getbasetemp() / f"raw-values-{next(names)}"  # none is cached
        (folder / "categories").mkdir(parents=True)
        known = pandas.DataFrame({"c": pandas.array(values, "string")})
        known.to_parquet(folder / "categories/unique.c.parquet")
        low, high = (dict(zip(COLUMNS, limits, strict=True)) for limits in ranges)
        found = Statistics(cardinalities={"c": len(values) + 3}, minimum=low, maximum=high)
        return load_workflow(FORMAT, Recipe(log=log), found, folder)

    return make


def transformed(workflow, texts, numbers):
    """Ids [n] and numbers [n, 2] by NVTabular; None is a missing value."""
    raw = pandas.DataFrame(numbers, columns=COLUMNS, dtype="float64")
    raw["c"], raw["y"] = pandas.array(texts, "string"), np.zeros(len(raw), np.int8)
    ready = workflow.transform(nvtabular.Dataset(raw)).to_ddf().compute()
    return ready.c.to_numpy(), ready[list(COLUMNS)].to_numpy()


@settings(max_examples=25)
@given(
    st.lists(TEXTS, max_size=8, unique=True),
    st.lists(TEXTS, max_size=4),
    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12),
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4),
    st.booleans(),
    st.randoms(use_true_random=False),
)
@example(["x"], [], [(1.0, None), (0.0, 5.0)], [0.0, 0.0, 0.0, 3.0], False, None)
@example(["x\n", "x"], ["x\r\n"], [(-5.0, 1e308), (2.0, -1.0)], [0.0, 2.0, 1.0, 2.0], True, None)
def test_values_become_what_nvtabular_makes_of_them(
    workflow, values, others, numbers, limits, log, draw
):
    ranges = (limits[:2], [max(pair) for pair in zip(limits[:2], limits[2:], strict=True)])
    candidates = [None, *values, *others]
    texts = [draw.choice(candidates) if draw else candidates[-1] for _ in numbers]
    ids, x = transformed(workflow(values, ranges, log=log), texts, numbers)
    got = ids_of(tf.constant([text or "" for text in texts]), vocabulary(SPECIAL + values))
    assert got.numpy().tolist() == ids.tolist()
    got = scaled(tf.constant(np.array(numbers, np.float64)), ranges, log=log).numpy()
    np.testing.assert_allclose(got, x, rtol=2e-6, atol=1e-6)


@given(st.lists(st.from_regex(r"-?[0-9]{0,17}\.?0{0,2}\n?", fullmatch=True) | TEXTS))
def test_whole_floats_are_read_as_prepare_reads_them(texts):
    found = whole(tf.constant(texts, tf.string), "c", FORMAT).numpy()
    assert [text.decode() for text in found] == [whole_text(text) for text in texts]
    kept = whole(tf.constant(texts, tf.string), "c", dataclasses.replace(FORMAT, text=("c",)))
    assert [text.decode() for text in kept.numpy()] == texts


def test_a_large_vocabulary_is_filled_in_steps(monkeypatch):
    monkeypatch.setattr(raw_value_model, "_VALUES_AT_ONCE", 7)
    values = [f"v{i}" for i in range(50)]
    table = vocabulary(SPECIAL + values)
    assert table.lookup(tf.constant([*values, "v50"])).numpy().tolist() == [*range(3, 53), 2]


def test_a_table_without_numbers():
    assert scaled(tf.zeros([4, 0], tf.float64), ([], []), log=True).shape == (4, 0)
