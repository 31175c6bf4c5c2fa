"""Every layout of the tables, with lists and with columns that share a table, against slow loops.

So does TensorFlow's own lookup of lists. All layouts start from the same numbers, and train alike.
"""

import numpy as np
import pytest
from by_hand import POWERS, for_task
from hypothesis import given, settings
from hypothesis import strategies as st
from table_schemas import schema_of_tables

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.batch import Batch, Ids
from cowclip_merlin.models import Columns, attach, logits
from cowclip_merlin.models.embedding import GrowingEmbedding
from cowclip_merlin.optimizer.unique_rows import sum_duplicates

deepfm = cc.models.deepfm
SIZES = {"a": 6, "b": 4, "c": 6, "d": 3}
TABLE, TABLES = (0, 1, 0, 2), (6, 4, 3)  # "a" and "c" share
COMBINERS = {"b": "sum", "c": "mean", "d": "sqrtn"}  # "a" has one id per row
LAYOUTS = {
    "fused": {},
    "per_field": {"tables": "per_field"},
    "sharded": {"tables": "sharded"},
    "frozen": {"freeze_embeddings": ("b",)},
}
SETTINGS = {"embedding_dim": 3, "mlp": (4,), "seed": 2, "init_std": 0.5}


def schema(lists=COMBINERS):
    """As of NVTabular's joint encoding: the domains of a group have one name."""
    return schema_of_tables(SIZES, lists=lists, tables=dict.fromkeys("ac", "a_c"))


@pytest.fixture(scope="module", params=LAYOUTS)
def model(request):
    return deepfm(schema(), **LAYOUTS[request.param], **SETTINGS)


def lists_of(name):
    """Lists of ids with nulls; a list may be null itself. The column "a" has one id per row."""
    ids = st.integers(0, SIZES[name] - 1)
    if name not in COMBINERS:
        return ids.map(lambda id_: [id_])
    return st.none() | st.lists(st.none() | ids, max_size=4)


ROWS = st.lists(st.tuples(*map(lists_of, SIZES)), min_size=1, max_size=5)
SOME = [([1], [1, 1, 3], None, [2]), ([4], [], [None, 5], [0, 1, 0]), ([0], [2], [5, 5], [])]


def without_nulls(lists):
    return [id_ for id_ in lists or [] if id_ is not None]


def ids_of(rows):
    """Nulls are left out, and a null list is empty."""
    lists = [[without_nulls(column) for column in row] for row in rows]
    values = [id_ for row in lists for column in row for id_ in column]
    lengths = [[len(column) for column in row] for row in lists]
    return Ids(np.array(values, np.int64), np.array(lengths, np.int32))


def tables_of(layer, values=None):
    """The table of each group of columns, or other arrays of the variables' shapes by group."""
    found, layouts = {}, layer.table_layouts()
    given = [table.numpy() for table, _ in layouts] if values is None else values
    for x, (_, layout) in zip(given, layouts, strict=True):
        parts = np.split(x, np.cumsum([*layout.fields.values()])[:-1])
        found |= dict(zip(layout.fields, parts, strict=True))
    return [found[name] for name in ("a_c", "b", "d")]


def by_loops(layer, rows):
    found, tables = np.zeros((len(rows), len(SIZES), layer.dim)), tables_of(layer)
    for i, row in enumerate(rows):
        for f, name in enumerate(SIZES):
            ids = without_nulls(row[f])
            for id_ in ids:
                found[i, f] += tables[TABLE[f]][id_]
            found[i, f] /= max(len(ids), 1) ** POWERS[COMBINERS.get(name, "sum")]
    return found


def by_tensorflow(tf, layer, rows):
    """A null is a negative id there."""
    found, tables = [], tables_of(layer)
    for f, name in enumerate(SIZES):
        lists = [[-1 if id_ is None else id_ for id_ in row[f] or []] for row in rows]
        ids = tf.ragged.constant(lists, tf.int64, ragged_rank=1).to_sparse()
        combiner = COMBINERS.get(name, "sum")
        found.append(tf.nn.safe_embedding_lookup_sparse(tables[TABLE[f]], ids, combiner=combiner))
    return tf.stack(found, axis=1)


@settings(deadline=None)
@given(rows=ROWS)
def test_lookups_and_counts_equal_the_loops_and_tensorflow(tf, model, rows):
    body, trained = model.blocks[0], [t for t in model.trainable_variables if "wide" in t.name]
    with tf.GradientTape() as tape:
        every = body.look_up(body.columns.stack({"categorical": ids_of(rows)})[0], training=True)
        loss = tf.reduce_sum(every[1])
    for layer, found in zip((body.embedding, body.wide), every, strict=True):
        assert found.shape == (len(rows), len(SIZES), layer.dim)
        np.testing.assert_allclose(found, by_loops(layer, rows), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(found, by_tensorflow(tf, layer, rows), rtol=1e-6, atol=1e-6)
    counts = []
    for table, gradient in zip(trained, tape.gradient(loss, trained), strict=True):
        unique = sum_duplicates(gradient)
        counts.append(np.zeros(table.shape[0], int))
        counts[-1][unique.ids.numpy()] = unique.cnt.numpy()
    expected = [np.zeros(size, int) for size in TABLES]
    for row in rows:
        for f, lists in enumerate(row):
            for id_ in without_nulls(lists):
                expected[TABLE[f]][id_] += 1
    for seen, wanted in zip(tables_of(body.wide, counts), expected, strict=True):
        np.testing.assert_array_equal(seen, wanted)


@pytest.mark.parametrize("layout", [*LAYOUTS][1:])
@pytest.mark.parametrize("lists", [COMBINERS, ()])
def test_all_layouts_start_from_the_same_numbers(layout, lists):
    models = [
        deepfm(for_task(schema(lists), "mmoe"), multi_task="mmoe", **LAYOUTS[each], **SETTINGS)
        for each in ("fused", layout)
    ]
    for tables in zip(*(tables_of(each.blocks[0].embedding) for each in models)):
        np.testing.assert_array_equal(*tables)
    ids = ids_of(SOME) if lists else Ids(np.arange(12).reshape(3, 4) % 3)
    found = (logits(each, {"categorical": ids}).numpy() for each in models)
    np.testing.assert_allclose(*found, rtol=1e-6)


@pytest.mark.parametrize("way", ["compile", "attach"])
@pytest.mark.parametrize("layout", ["fused", "per_field", "frozen"])
def test_the_optimizer_knows_the_fields_of_every_table(layout, way):
    model, optimizer = deepfm(schema(()), **LAYOUTS[layout], **SETTINGS), cc.CowClip()
    model.compile(optimizer, "mse") if way == "compile" else attach(model, optimizer)
    trained = [v for v in model.trainable_variables if "embeddings" in v.name]
    found = [dict(optimizer.tables.layout_of(variable).fields) for variable in trained]
    every = {"a_c": 6, "b": 4, "d": 3}
    each = {
        "fused": [every] * 2,
        "per_field": [{name: rows} for name, rows in every.items()] * 2,
        "frozen": [{"a_c": 6, "d": 3}, {"a_c": 6, "d": 3}, {"b": 4}],
    }
    assert found == each[layout]


@pytest.mark.parametrize("update", ["exact", "lazy"])
def test_a_field_is_named_in_an_error_of_its_own_table(tf, update):
    model, optimizer = (
        deepfm(schema(), tables="per_field", **SETTINGS),
        cc.CowClip(update=update),
    )
    attach(model, optimizer)
    batch = Batch(ids_of(SOME), np.zeros((3, 0), np.float32))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(logits(model, batch, training=True))
    table = next(v for v in model.trainable_variables if "b_embeddings" in v.name)
    g = tape.gradient(loss, table)
    g = tf.IndexedSlices(g.values * np.nan, g.indices, g.dense_shape)
    with pytest.raises((cc.InputError, tf.errors.OpError), match="gradient of id 1 of field 'b'"):
        optimizer.apply_gradients([(g, table)])
        optimizer.flush()


@settings(deadline=None)
@given(rows=ROWS)
def test_ragged_inputs_are_the_same_ids(tf, rows):
    columns = Columns.from_schema(schema())
    lists = {name: [without_nulls(row[f]) for row in rows] for f, name in enumerate(SIZES)}
    inputs = {name: tf.ragged.constant(x, tf.int64, ragged_rank=1) for name, x in lists.items()}
    inputs["a"] = tf.constant(np.array(lists["a"]))
    ids, _ = columns.stack(inputs)
    np.testing.assert_array_equal(ids.values, ids_of(rows).values)
    np.testing.assert_array_equal(ids.lengths, ids_of(rows).lengths)


def test_zeros_fill_up_a_matrix(tf):
    """Eagerly and in a graph bit for bit, and in Keras's `predict`, as the lists without them."""
    model = deepfm(schema(), **SETTINGS)
    ragged = {name: tf.ragged.constant([[1, 2], [], [2, 1, 1]], tf.int64) for name in COMBINERS}
    dense = {name: x.to_tensor(shape=[None, 5]) for name, x in ragged.items()}
    dense["a"] = ragged["a"] = tf.constant([0, 4, 0], tf.int64)  # 0 of one id per row is an id
    expected = logits(model, ragged)
    arrays = {name: x.numpy() for name, x in dense.items()}
    scores = tf.sigmoid(expected)
    np.testing.assert_array_equal(logits(model, dense), expected)
    in_graph = tf.function(lambda x: logits(model, x))  # it sums in another order
    np.testing.assert_array_equal(in_graph(dense), in_graph(ragged))
    np.testing.assert_allclose(model.predict(arrays, verbose=0), scores, rtol=1e-6)
    sparse = dense | {name: tf.sparse.from_dense(dense[name]) for name in COMBINERS}
    np.testing.assert_allclose(model(sparse), scores, rtol=1e-6)


def test_lists_of_one_id_are_one_id_per_row(model):
    dense = np.stack([np.arange(8) % size for size in SIZES.values()], axis=1)
    one, several = (
        logits(model, Batch(ids, np.zeros((8, 0), np.float32)), training=True)
        for ids in (Ids(dense), Ids(dense).multi_valued())
    )
    np.testing.assert_array_equal(one, several)


def inputs_of_merlin(rows):
    """Values and offsets of list columns, as Merlin's loader gives them to a step."""
    inputs = {}
    for f, name in enumerate(SIZES):
        lists = [without_nulls(row[f]) for row in rows]
        values = np.array([id_ for ids in lists for id_ in ids], np.int64)
        if name in COMBINERS:
            offsets = np.cumsum([0, *map(len, lists)])
            inputs |= {f"{name}__values": values, f"{name}__offsets": offsets.astype(np.int32)}
        else:
            inputs[name] = values[:, None]
    return {name: compat.tensorflow().constant(x) for name, x in inputs.items()}


def test_models_train_on_merlins_lists(tf):
    """All layouts train to the same numbers, but for the rows that are frozen."""
    labels, ends = tf.constant([[1.0], [0], [1]]), {}
    data = tf.data.Dataset.from_tensors((inputs_of_merlin(SOME), labels))
    for each in ("fused", "per_field", "frozen"):
        model = deepfm(schema(), **LAYOUTS[each], **SETTINGS)
        model.compile(cc.CowClip(update="exact", l2=1e-3), "binary_crossentropy")
        before = tables_of(model.blocks[0].embedding)
        model.fit(data.repeat(3), verbose=0)
        batch = Batch(ids_of(SOME), np.zeros((3, 0), np.float32))
        after, expected = tables_of(model.blocks[0].embedding), tf.sigmoid(logits(model, batch))
        np.testing.assert_allclose(model.predict(data, verbose=0), expected, rtol=1e-6)
        assert (before[0] != after[0]).any()
        assert (before[1] != after[1]).any() == (each != "frozen")
        ends[each] = [after[0], after[2], expected]
    for layout, atol in (("per_field", 1e-6), ("frozen", 1e-2)):
        for one, other in zip(ends["fused"], ends[layout], strict=True):
            np.testing.assert_allclose(one, other, atol=atol)


def test_growing_tables_read_the_row_of_each_id(tf):
    layer = GrowingEmbedding(6, 2, std=0.1, seed=1)
    ids = Ids(tf.constant([1, 5, 5]), tf.constant([[2, 0], [0, 1]]))
    layer(ids)
    layer.table.assign(np.arange(12, dtype=np.float32).reshape(6, 2))
    np.testing.assert_array_equal(layer(ids), [[2, 3], [10, 11], [10, 11]])


def test_equal_names_of_domains_share_a_table():
    columns = Columns.from_schema(schema())
    assert columns.table_rows == {"a_c": 6, "b": 4, "d": 3}
    assert columns.table_of_field == [*TABLE]
    assert Columns.from_schema(schema_of_tables(SIZES)).tables == {}


def test_columns_encoded_jointly_by_nvtabular_share_a_table(tmp_path):
    import pandas as pd

    nvt = compat.nvtabular()
    frame = pd.DataFrame({"a": ["x", "y", "z"], "b": ["x", "x", "x"], "c": ["z", "w", "z"]})
    joint = [["a", "c"], "b"] >> nvt.ops.Categorify(encode_type="joint", out_path=str(tmp_path))
    workflow = nvt.Workflow(joint)
    workflow.fit(nvt.Dataset(frame, cpu=True))
    columns = Columns.from_schema(workflow.output_schema + schema_of_tables({}))
    assert columns.tables["a"] == columns.tables["c"] and "b" not in columns.tables
    assert columns.table_rows[columns.tables["a"]] == 3 + 4


def test_what_does_not_fit_is_refused():
    wrong = schema()
    wrong["c"] = wrong["c"].with_properties({"domain": {"min": 0, "max": 8, "name": "a_c"}})
    with pytest.raises(cc.InputError, match=r"column 'c' has 9 ids, but the table 'a_c'.* has 6"):
        deepfm(wrong, **SETTINGS)
    with pytest.raises(cc.InputError, match="combiner"):
        Columns({"a": 3}, (), "click", {"a": "max"})
    for shared in ({"a": "x"}, {"x": "a"}, {"a": "b", "b": "c"}, {"a": "a"}):
        with pytest.raises(cc.InputError, match="share_embedding"):
            cc.models.growing_schema(categorical=["a", "b", "c"], share_embedding=shared)
