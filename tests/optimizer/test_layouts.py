"""Which rows belong to which field: told by the models, or by `CowClip(fields=...)`."""

import copy

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import TableLayout

FIELDS = {"user": 3, "item": 4}


@pytest.fixture
def tables(tf):
    """One of 7 rows and one of 2."""
    rng = np.random.default_rng(0)
    start = [rng.normal(0, 1, (rows, 2)).astype("f") for rows in (7, 2)]
    return [tf.Variable(w, name=f"{n}_embeddings") for w, n in zip(start, "ab", strict=True)]


def gradient(tf, table):
    rows = int(table.shape[0])
    g = np.arange(1, 2 * rows + 1, dtype="f").reshape(rows, 2)
    return tf.IndexedSlices(tf.constant(g), tf.range(rows), tf.constant(table.shape))


def stepped(tf, tables, *, layouts=None, **arguments):
    """The tables after one step of SGD under the clip by field."""
    copies = [tf.Variable(table, name=table.name.split(":")[0]) for table in tables]
    sgd = tf.keras.optimizers.legacy.SGD(1.0)
    optimizer = cc.CowClip(sgd, l2=0.0, clip="field", bound=1.0, **arguments)
    if layouts:
        optimizer.register_tables(copies, layouts)
    optimizer.apply_gradients([(gradient(tf, table), table) for table in copies])
    return [table.numpy() for table in copies]


def moved(before, after, rows):
    return np.linalg.norm((before.numpy() - after)[rows])


def test_fields_are_those_of_every_table(tf, tables):
    (after,) = stepped(tf, tables[:1], fields=FIELDS)
    for rows in (slice(0, 3), slice(3, 7)):
        assert moved(tables[0], after, rows) == pytest.approx(1.0, rel=1e-5)
    (whole,) = stepped(tf, tables[:1])
    assert moved(tables[0], whole, slice(None)) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_a_table_that_fields_do_not_fill_is_refused(tf, tables, update):
    before = [table.numpy() for table in tables]
    optimizer = cc.CowClip(fields=FIELDS, update=update)
    said = r"'b_embeddings:0' has 2 rows, .* 7 in all: .*fields=\{'b_embeddings:0': \{field: "
    with pytest.raises(InputError, match=said):
        optimizer.apply_gradients([(gradient(tf, table), table) for table in tables])
    for a, b in zip(before, tables, strict=True):
        np.testing.assert_array_equal(a, b.numpy())


def test_fields_by_name_of_the_table(tf, tables):
    both = stepped(tf, tables, fields={"^a_": FIELDS, "^b_": {"shop": 1, "day": 1}})
    np.testing.assert_array_equal(both[0], stepped(tf, tables[:1], fields=FIELDS)[0])
    np.testing.assert_array_equal(both[1], stepped(tf, tables[1:], fields={"shop": 1, "day": 1})[0])
    one = stepped(tf, tables, fields={"^a_": FIELDS})  # the other is one field
    np.testing.assert_array_equal(one[1], stepped(tf, tables[1:])[0])
    assert (one[1] != both[1]).any()


def test_a_table_of_fields_that_is_not_there_is_named(tf, tables):
    optimizer = cc.CowClip(fields={"^a_": FIELDS, "typo": {"shop": 2}})
    with pytest.raises(InputError, match=r"fields: 'typo' matches no table"):
        optimizer.apply_gradients([(gradient(tf, table), table) for table in tables])


def test_a_registered_layout_wins(tf, tables):
    told = [TableLayout(FIELDS), TableLayout({"shop": 2})]
    expected = stepped(tf, tables, fields={"^a_": FIELDS})
    for fields in (None, {"whole": 7}, {"^a_": {"whole": 7}}):
        got = stepped(tf, tables, layouts=told, fields=fields)
        for a, b in zip(expected, got, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_layout_of_other_rows_is_refused(tables):
    with pytest.raises(InputError, match=r"'b_embeddings:0' has 2 rows, .*layout has 7"):
        cc.CowClip().register_tables(tables, [TableLayout(FIELDS)] * 2)


@pytest.mark.parametrize("fields", [None, FIELDS, {"^a_": FIELDS, "^b_": {"shop": 2}}])
def test_fields_are_in_the_configuration(fields):
    config = cc.CowClip(fields=fields).get_config()
    assert config["fields"] == fields
    assert cc.CowClip.from_config(config).get_config() == config


def test_a_copy_of_an_optimizer_knows_the_same_tables(tables):
    optimizer = cc.CowClip()
    optimizer.register_tables(tables[:1], [TableLayout(FIELDS)])
    other = copy.deepcopy(optimizer)
    other.register_tables(tables[1:], [TableLayout({"shop": 2})])
    assert dict(other.tables.layout_of(tables[0]).fields) == FIELDS
    assert dict(other.tables.layout_of(tables[1]).fields) == {"shop": 2}
    assert optimizer.tables.layout_of(tables[1]) is None
