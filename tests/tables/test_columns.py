"""The form of ids and rows: matrices, lists, columns that share a field; what does not fit."""

import numpy as np
import pytest
from reference import free, grown

import cowclip_merlin as cc
from cowclip_merlin.batch import Ids
from cowclip_merlin.tables.growing_table import with_more_fields
from cowclip_merlin.tables.serving_table import ServingTable

SHARED = (0, 1, 0)
IDS = np.array([[7, 8, 7], [9, 8, 8]])


def table_of(columns, fields=2):
    return grown(free(fields), 100, field_of_column=columns)


@pytest.mark.parametrize(
    ("columns", "fields", "rows"),
    [(None, 3, [[3, 4, 5], [6, 4, 7]]), (SHARED, 2, [[2, 3, 2], [4, 3, 5]])],
)
def test_the_form_of_the_rows_is_that_of_the_ids(columns, fields, rows):
    table, copy = table_of(columns, fields), ServingTable(fields, 9, [2], field_of_column=columns)
    assert table.admit(IDS, 0).tolist() == rows
    changes = table.track_changes().collect()
    copy.apply(changes, [table.memory[0].w[changes.rows]])
    assert copy.look_up(IDS).shape == IDS.shape
    np.testing.assert_array_equal(copy.read(IDS)[0], table.memory[0].w[rows])
    several = Ids(IDS).multi_valued()
    np.testing.assert_array_equal(copy.read(several)[0], table.memory[0].w[np.ravel(rows)])
    assert copy.look_up(several).lengths is several.lengths
    for look_up in (table.lookup, lambda ids: table_of(columns, fields).admit(ids, 0)):
        np.testing.assert_array_equal(look_up(Ids(IDS)).values, rows)
        listed = look_up(several)
        np.testing.assert_array_equal(listed.values, np.ravel(rows))
        np.testing.assert_array_equal(listed.lengths, np.ones((2, 3)))


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (np.zeros((1, 2), int), r"shape \(1, 2\); give \[rows, 3\]"),
        (Ids(np.zeros(2, int), np.array([[1, 1]])), r"shape \(1, 2\); give \[rows, 3\]"),
        (Ids(np.zeros(3, int), np.array([[1, 1, 0]])), "lengths of"),
        (Ids(np.zeros(3, int), np.array([[1, 3, -1]])), "lengths of"),
    ],
)
def test_ids_that_do_not_fit_are_refused(ids, words):
    table, copy = table_of(SHARED), ServingTable(2, 9, [2], field_of_column=SHARED)
    for call in (table.lookup, copy.look_up, lambda ids: table.admit(ids, 0)):
        with pytest.raises(cc.InputError, match=words):
            call(ids)


@pytest.mark.parametrize(
    ("saved", "now", "words"),
    [
        ((0, 1, 0), (0, 1, 1), "the fields 0, 1, 0, those of this one 0, 1, 1; "),
        ((0, 1, 0), None, "the fields 0, 1, 0, those of this one 0, 1; "),
        (None, (0, 1, 0), "the fields 0, 1, those of this one 0, 1, 0; "),
    ],
)
def test_a_table_of_other_columns_is_refused(saved, now, words):
    with pytest.raises(cc.InputError, match=words):
        table_of(now).restore(table_of(saved).state())


def test_columns_that_share_a_field_are_no_new_field():
    table, wider = table_of(None), table_of((0, 1, 1))
    table.admit(np.array([[7, 8], [7, 9]]), 0)
    wider.restore(with_more_fields(table.state(), 2, (0, 1, 1)))
    assert wider.lookup(np.array([[7, 8, 9]])).tolist() == [[2, 3, 4]]
    for name, x in table.state().items():
        np.testing.assert_array_equal(wider.state()[name], x)
