"""What `prepare` does, in plain pandas: slow, and easy to check."""

import csv

import pandas as pd
import pyarrow.parquet as pq

from cowclip_merlin.workflows import PrepareSettings, prepare

CRITEO = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
CATEGORIES, NUMBERS = CRITEO[14:], CRITEO[1:14]


def read(data, split):
    files = data.files(split)
    return pd.concat([pq.read_table(f).to_pandas() for f in files], ignore_index=True)


def raw_frame(file):
    """The log as pandas reads it, every category as text."""
    types = dict.fromkeys(CATEGORIES, str)
    return pd.read_csv(
        file,
        sep="\t",
        header=None,
        names=CRITEO,
        dtype=types,
        na_values=[""],
        keep_default_na=False,
        quoting=csv.QUOTE_NONE,
    )


def reference_ids(train, column, threshold=0):
    """value -> id: 1 missing, 2 unknown, then by falling frequency and value."""
    counts = {}
    for value in train[column]:
        if isinstance(value, str):
            counts[value] = counts.get(value, 0) + 1
    kept = [v for v in counts if counts[v] >= threshold]
    ordered = sorted(kept, key=lambda v: (-counts[v], v))
    return {v: 3 + i for i, v in enumerate(ordered)}, counts


def assert_same(a, b):
    for split in ("train", "test"):
        pd.testing.assert_frame_equal(read(a, split), read(b, split))


def make(file, out, **settings):
    return prepare(PrepareSettings(files=(file,), out=out, **settings))
