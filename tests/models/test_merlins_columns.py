"""How often CowClip counts an id in each kind of Merlin's columns, against a slow count."""

import numpy as np
import pandas as pd
import pytest

import cowclip_merlin as cc
from cowclip_merlin import compat

mm = compat.merlin_models()
IDS, R, RATE = 8, 1e-6, 1e5
ONE_HOT = [1, 4, 1, 1, 7, 4]
LISTS = [[1, 1, 2, 1], [3], [], [7, 2, 2], [5, 5], []]
FILLED = [ids or [6, 6] for ids in LISTS]  # layers may not know what an empty list is
PADDED = [ids + [0] * (4 - len(ids)) for ids in LISTS]


def mean(tf):
    return tf.keras.layers.Lambda(lambda x: tf.reduce_mean(x, axis=1))


def weighted(tf):
    return mm.AverageEmbeddingsByWeightFeature("weight")


# The combiner, and the columns.
KINDS = {
    "one-hot": (None, {"a": ONE_HOT}),
    "ragged list": ("mean", {"b": LISTS}),
    "dense list": ("mean", {"c": PADDED}),
    "shared table": ("mean", {"a": ONE_HOT, "b": LISTS, "c": PADDED, "d": LISTS[::-1]}),
    "sequence": (mean, {"b": FILLED}),
    "weighted list": (weighted, {"b": FILLED}),
}
LENGTHS = {"b": (0, 4), "c": (4, 4), "d": (0, 4), "weight": (0, 4)}


def counts(columns):
    """How often each id occurs, one occurrence after the other."""
    found = [0] * IDS
    for lists in columns.values():
        for ids in lists:
            for id_ in ids if isinstance(ids, list) else [ids]:
                found[id_] += 1
    return found


def schema_of(names):
    from merlin.schema import ColumnSchema, Schema, Tags

    columns = []
    for name in names:
        least, most = LENGTHS.get(name, (None, None))
        properties = {} if most is None else {"value_count": {"min": least, "max": most}}
        if name == "weight":
            tags, dtype = [], np.float32  # no input by itself
        else:
            tags, dtype = [Tags.CATEGORICAL], np.int64
            properties["domain"] = {"min": 0, "max": IDS - 1, "name": "shared"}
        columns.append(ColumnSchema(name, dtype=dtype, tags=tags, properties=properties))
    target = ColumnSchema("click", dtype=np.float32, tags=[Tags.TARGET, Tags.BINARY])
    return Schema([*columns, target])


def loader_of(columns, schema):
    from merlin.io import Dataset

    frame = pd.DataFrame(columns | {"click": np.arange(6, dtype="f") % 2})
    return mm.Loader(Dataset(frame, schema=schema), batch_size=6, shuffle=False)


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("kind", "eager"), [*((kind, False) for kind in KINDS), ("ragged list", True)]
)
def test_counts_of_a_column(tf, kind, eager):
    """Each row moves by its threshold, and so by its count times its norm."""
    combiner, columns = KINDS[kind]
    schema = schema_of([*columns, "weight"] if combiner is weighted else columns)
    given = columns | ({"weight": [[0.5] * len(x) for x in FILLED]} if combiner is weighted else {})
    tf.keras.utils.set_random_seed(1)
    ids = schema.select_by_name(list(columns))
    embeddings = mm.Embeddings(
        ids, dim=3, sequence_combiner=combiner(tf) if callable(combiner) else combiner
    )
    inputs = mm.InputBlockV2(schema, categorical=embeddings)
    model = mm.Model(inputs, mm.MLPBlock([4], activation="tanh"), mm.BinaryOutput("click"))
    sgd = tf.keras.optimizers.legacy.SGD
    optimizer = cc.CowClip(sgd(RATE), sgd(0.0), r=R, zeta=0.0, l2=0.0, update="lazy")
    model.compile(optimizer, "binary_crossentropy", run_eagerly=eager)
    model(next(iter(loader_of(given, schema)))[0])  # makes its variables
    (table,) = [v for v in model.trainable_variables if "embeddings" in v.name]
    before = table.numpy()
    model.fit(loader_of(given, schema), epochs=1, verbose=0)
    moved = np.linalg.norm(table.numpy() - before, axis=1) / np.linalg.norm(before, axis=1)
    np.testing.assert_allclose(moved / (R * RATE), counts(columns), rtol=1e-4, atol=1e-6)
