"""The prepared folder does not depend on the number of Dask workers, down to its bytes."""

import hashlib
import json

import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from pandas_reference import make, read, reference_ids

ROWS = 1800
COLUMNS = {"kind": "table", "label": "y", "categorical": ("a", "b", "c"), "continuous": ("x",)}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A log in which hundreds of values are equally frequent, in no order."""
    random = np.random.default_rng(5)
    values = {
        "y": np.arange(ROWS) % 2,
        "a": [f"v{i % 300}" for i in random.permutation(ROWS)],  # each value 6 times
        "b": [f"w{i}" for i in random.permutation(ROWS)],  # each value once
        "c": random.choice(["p", "q", "r", ""], ROWS),
        "x": random.normal(size=ROWS).round(6),
    }
    file = tmp_path_factory.mktemp("table") / "log.csv"
    pd.DataFrame(values).to_csv(file, index=False)
    return file


def contents(folder):
    """Path -> hash of its bytes, or for JSON the value without the state of this checkout."""
    files = {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    described = json.loads(files.pop("dataset.json"))
    described["versions"].pop("git_revision", None)
    hashes = {name: hashlib.sha256(found).hexdigest() for name, found in files.items()}
    return hashes | {"dataset.json": described}


def prepared(table, folder, scheduler=None):
    folder.mkdir()  # the folder's own name is in its summary
    return make(table, folder / "data", scheduler=scheduler, partition_mb=0.004, **COLUMNS)


@pytest.mark.system
def test_1_2_and_4_workers_write_the_same_bytes(table, tmp_path):
    here = prepared(table, tmp_path / "here")
    assert len(here.files("train")) > 8
    expected = contents(here.path)
    one_thread = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**one_thread) as cluster, Client(cluster, set_as_default=False) as client:
        for workers in (1, 2, 4):
            cluster.scale(workers)
            client.wait_for_workers(workers)
            there = prepared(table, tmp_path / f"{workers}", cluster.scheduler_address)
            assert len(client.scheduler_info()["workers"]) == workers
            assert there.fingerprint == here.fingerprint
            assert contents(there.path) == expected


def test_equally_frequent_values_are_ordered_by_value(table, tmp_path):
    raw = pd.read_csv(table, keep_default_na=False, dtype={"a": str, "b": str})
    data = prepared(table, tmp_path / "here")
    raw_and_ids = pd.concat([read(data, split) for split in ("train", "test")])
    # `x` tells the rows apart: it is scaled, in the same order.
    rows = raw.iloc[raw.x.argsort()], raw_and_ids.iloc[raw_and_ids.x.argsort()]
    train = raw[raw.b.isin(known_values(data, "b"))]
    for column in ("a", "b"):
        ids, _ = reference_ids(train, column)
        assert rows[1][column].tolist() == [ids.get(value, 2) for value in rows[0][column]]


def known_values(data, column):
    import cowclip_merlin as cc

    return set(cc.workflows.value_to_id(data, column))
