"""Columns that share a table: which ones do, lookups against loops, growing tables."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_schemas import schema_of_tables

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.batch import Ids
from cowclip_merlin.models import MODELS, logits
from cowclip_merlin.models.columns import Columns
from cowclip_merlin.optimizer.unique_rows import sum_duplicates
from cowclip_merlin.tables import FieldRules, GrowingTable
from cowclip_merlin.tables.initial_rows import RowMemory

SMALL = {"embedding_dim": 3, "mlp": (4,), "seed": 2, "init_std": 0.5}
FIELDS = {"a": 6, "b": 5, "c": 6, "d": 6}  # "a", "c" and "d" share
TABLE = (0, 1, 0, 0)


def shared_schema(lists=()):
    """A schema of NVTabular's joint encoding: the domains of a group have one name."""
    return schema_of_tables(FIELDS, tables=dict.fromkeys("acd", "a_c_d"), lists=lists)


def test_equal_names_of_domains_share_a_table():
    columns = Columns.from_schema(shared_schema())
    assert columns.table_rows == {"a_c_d": 6, "b": 5}
    assert columns.table_of_field == [*TABLE]
    assert Columns.from_schema(schema_of_tables(FIELDS)).tables == {}


def test_columns_encoded_jointly_by_nvtabular_share_a_table(tmp_path):
    import pandas as pd

    nvt = compat.nvtabular()
    frame = pd.DataFrame({"a": ["x", "y", "z"], "b": ["x", "x", "x"], "c": ["z", "w", "z"]})
    joint = [["a", "c"], "b"] >> nvt.ops.Categorify(encode_type="joint", out_path=str(tmp_path))
    workflow = nvt.Workflow(joint)
    workflow.fit(nvt.Dataset(frame, cpu=True))
    schema = workflow.output_schema + schema_of_tables({})
    columns = Columns.from_schema(schema)
    assert columns.tables["a"] == columns.tables["c"] and "b" not in columns.tables
    assert columns.table_rows[columns.tables["a"]] == 3 + 4
    model = cc.models.deepfm(schema, **SMALL)
    assert model.blocks[0].embedding.table.shape[0] == sum(columns.table_rows.values())


def test_one_table_has_one_size():
    schema = shared_schema()
    schema["c"] = schema["c"].with_properties({"domain": {"min": 0, "max": 8, "name": "a_c_d"}})
    with pytest.raises(cc.InputError, match=r"column 'c' has 9 ids, but the table 'a_c_d'.* has 6"):
        cc.models.deepfm(schema, **SMALL)


LISTS = st.lists(st.integers(0, 5), max_size=3)
ROWS = st.lists(
    st.tuples(*(st.integers(0, size - 1).map(lambda i: [i]) for size in (6, 5, 6)), LISTS),
    min_size=1,
    max_size=5,
)


def ids_of(rows):
    values = [id_ for row in rows for column in row for id_ in column]
    return Ids(np.array(values, np.int64), np.array([[*map(len, row)] for row in rows], np.int32))


def tables_of(layer):
    """The table of the group, and that of "b"."""
    tables = [table.numpy() for table in layer.tables]
    return tables if len(tables) > 1 else np.split(tables[0], [6])


@pytest.fixture(scope="module", params=["fused", "per_field", "sharded"])
def model(request):
    return cc.models.deepfm(shared_schema(["d"]), tables=request.param, **SMALL)


@settings(deadline=None)
@given(rows=ROWS)
def test_lookups_and_counts_equal_the_loops(tf, model, rows):
    body = model.blocks[0]
    tables = getattr(body.embedding, "tables", None) or [body.embedding.table]
    with tf.GradientTape() as tape:
        found, _ = body.look_up(body.columns.stack({"categorical": ids_of(rows)})[0], training=True)
        loss = tf.reduce_sum(found)
    first, counts = tables_of(body.embedding), [np.zeros(6, int), np.zeros(5, int)]
    for i, row in enumerate(rows):
        for f, ids in enumerate(row):
            counts[TABLE[f]] += np.bincount(ids, minlength=len(counts[TABLE[f]]))
            wanted = sum(first[TABLE[f]][id_] for id_ in ids) / max(len(ids), 1)
            np.testing.assert_allclose(found[i, f], wanted * np.ones(3), rtol=1e-6)
    seen = []
    for table, gradient in zip(tables, tape.gradient(loss, tables), strict=True):
        unique = sum_duplicates(gradient)
        seen.append(np.zeros(table.shape[0], int))
        seen[-1][unique.ids.numpy()] = unique.cnt.numpy()
    np.testing.assert_array_equal(np.concatenate(seen), np.concatenate(counts))


@pytest.mark.parametrize("tables", ["per_field", "sharded"])
def test_columns_of_one_id_share_it_in_every_layout(tf, tables):
    fused, other = (cc.models.deepfm(shared_schema(), tables=t, **SMALL) for t in ("fused", tables))
    ids = np.random.default_rng(0).integers(0, 5, [8, 4])
    batch = {"categorical": ids.astype(np.int32)}
    np.testing.assert_array_equal(logits(fused, batch), logits(other, batch))
    assert len(tables_of(other.blocks[0].embedding)) == 2
    np.testing.assert_array_equal(
        np.concatenate(tables_of(other.blocks[0].embedding)), fused.blocks[0].embedding.table
    )


def test_a_saved_model_shares_its_table(tmp_path, tf):
    model = cc.models.deepfm(shared_schema(), **SMALL)
    model.compile(cc.CowClip(), "binary_crossentropy")
    model.save(str(tmp_path / "model"))
    loaded = cc.load_model(str(tmp_path / "model"))
    rows = {name: np.array([[1], [4]]) for name in FIELDS}
    np.testing.assert_array_equal(loaded(rows), model(rows))
    assert loaded.blocks[0].columns.tables == model.blocks[0].columns.tables


@settings(deadline=None)
@given(batches=st.lists(ROWS, min_size=1, max_size=4))
def test_a_growing_table_gives_an_id_one_row_in_all_columns(batches):
    """Against a dictionary; an id of the group gets its row at its second occurrence in a batch."""
    memory = [RowMemory(w=np.zeros((60, 2), np.float32), std=1.0)]
    rules = [FieldRules(admit=2), FieldRules()]
    table = GrowingTable(rules, memory=memory, capacity=60, field_of_column=TABLE)
    seen, row_of = {}, {}
    for now, rows in enumerate(batches):
        keys = [(TABLE[f], id_) for row in rows for f, ids in enumerate(row) for id_ in ids]
        for key in keys:
            seen[key] = seen.get(key, 0) + 1
        for found in (table.admit(ids_of(rows), now), table.lookup(ids_of(rows))):
            for key, row in zip(keys, found.values.tolist(), strict=True):
                admitted = seen[key] >= (2, 1)[key[0]]
                assert row == (row_of.setdefault(key, row) if admitted else key[0])
    assert len({*row_of.values()}) == len(row_of) == table.num_rows
    assert min(row_of.values(), default=2) >= 2


def test_a_growing_table_needs_a_column_for_each_field():
    memory = [RowMemory(w=np.zeros((60, 2), np.float32), std=1.0)]
    with pytest.raises(cc.InputError, match="field_of_column"):
        GrowingTable([FieldRules()] * 2, memory=memory, capacity=60, field_of_column=[0, 0])


def test_a_growing_schema_refuses_columns_that_it_lacks():
    for shared in ({"a": "x"}, {"x": "a"}, {"a": "b", "b": "c"}, {"a": "a"}):
        with pytest.raises(cc.InputError, match="share_embedding"):
            cc.models.growing_schema(categorical=["a", "b", "c"], share_embedding=shared)


@pytest.mark.thorough
def test_every_other_model_trains_with_shared_columns(tf):
    ids = np.random.default_rng(1).integers(0, 5, [16, 4]).astype(np.int32)
    for name in sorted({*MODELS} - {"din"}):
        model = MODELS[name](shared_schema(), **SMALL)
        rows = dict(zip(FIELDS, ids.T[:, :, None], strict=True))
        model.compile(cc.CowClip(update="exact"), "binary_crossentropy")
        data = tf.data.Dataset.from_tensors((rows, np.arange(16)[:, None] % 2))
        model.fit(data.repeat(3), verbose=0)
        np.testing.assert_allclose(logits(model, {"categorical": ids}), logits(model, rows))
