"""Rows with several values per column: how they are stored, and combiners."""

import numpy as np
import pandas
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin.cli import main
from cowclip_merlin.loading import ColumnArrays, DeviceData, open_columns
from cowclip_merlin.loading.column_arrays import IdLayout
from cowclip_merlin.training import RunSettings, train
from cowclip_merlin.workflows import PrepareSettings, prepare

SMALL = {"mlp": (8,), "batch_size": 64, "base_batch_size": 64, "epochs": 2, "embedding_dim": 4}
ROWS = 1200


def log(rows=ROWS):
    """A log whose clicks depend on the tags; some rows have none, some have a tag twice."""
    rng = np.random.default_rng(3)
    names = np.array([f"t{i}" for i in range(12)])
    tags = [names[rng.integers(0, 12, size)] for size in rng.integers(0, 6, rows)]
    click = np.array(["t1" in each for each in tags]) ^ (rng.random(rows) < 0.2)
    return pd.DataFrame(
        {
            "user": rng.integers(0, 40, rows),
            "tags": ["|".join(each) for each in tags],
            "age": rng.random(rows),
            "y": click.astype(int),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("multi")
    log().to_csv(folder / "log.csv", index=False)
    columns = {"label": "y", "categorical": ("user",), "continuous": ("age",)}
    settings = {"kind": "table", "multi": ("tags",), **columns}
    prepare(PrepareSettings(files=(folder / "log.csv",), out=folder / "DATA", **settings))
    return folder


def rows_of(data, split):
    """The rows as plain lists: ids of each column."""
    frames = pandas.concat(map(pandas.read_parquet, data.files(split)), ignore_index=True)
    lists = [
        frames[c].map(list) if c in data.log_format.multi else frames[c].map(lambda id_: [id_])
        for c in data.categorical
    ]
    return list(zip(*lists))


def rows_of_batch(ids):
    """The rows of `Ids` as plain lists."""
    values, lengths = iter(ids.values.numpy().tolist()), ids.lengths.numpy()
    return [tuple([next(values) for _ in range(size)] for size in row) for row in lengths]


LISTS = st.lists(st.integers(0, 9), max_size=3)


@given(st.lists(st.tuples(LISTS, st.integers(0, 9), LISTS), max_size=7), st.data())
def test_rows_are_found_again(rows, drawn):
    """`take` and `column` against plain lists; columns 0 and 2 are multi-valued."""
    layout = IdLayout(3, (0, 2))
    columns = [
        np.array([row[1] for row in rows], np.int32)
        if j == 1
        else (
            np.array([x for row in rows for x in row[j]], np.int32),
            np.array([len(row[j]) for row in rows], np.int32),
        )
        for j in range(3)
    ]
    ids, lengths = layout.join(columns)
    empty = np.zeros((len(rows), 0), np.float32), np.zeros(len(rows), np.float32)
    arrays = ColumnArrays(ids, *empty, lengths, layout)
    which = drawn.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9) if rows else st.just([]))
    taken = arrays.take(np.array(which, np.int64))
    for j in range(3):
        expected = [rows[i][j] if j != 1 else [rows[i][1]] for i in which]
        values, sizes = taken.column(j)
        assert values.tolist() == [x for row in expected for x in row]
        assert sizes.tolist() == list(map(len, expected))


@pytest.mark.parametrize("multi", [("tags", "user"), ("user", "tags")])
def test_all_columns_may_be_lists(folder, tmp_path, multi):
    files, columns = (folder / "log.csv",), {"label": "y", "continuous": ("age",)}
    settings = PrepareSettings(
        files=files, out=tmp_path / "DATA", kind="table", multi=multi, **columns
    )
    data = prepare(settings)
    for _ in ("made", "from the cache"):
        loaded = DeviceData(open_columns(data, "train"))
        (batch,) = loaded.batches_in_file_order(2 * ROWS)
        assert rows_of_batch(loaded.unpack(batch).ids) == rows_of(data, "train")


def run(folder, name, **settings):
    settings = RunSettings(model=settings.pop("model", "deepfm"), **SMALL | settings)
    return train(folder / "DATA", settings, out=folder / name)[-1]


def test_a_combiner_is_chosen_by_column(folder):
    rows = [run(folder, name, combiner=name) for name in ("sum", "tags=sum", "sqrtn")]
    losses = [row["train_loss"] for row in rows]
    assert losses[0] == losses[1] != losses[2]
    model = cc.training.load_run(folder / "tags=sum", folder / "DATA")
    assert model.blocks[0].columns.combiners == {"tags": "sum"}


@pytest.mark.parametrize(
    ("combiner", "message"),
    [
        ("max", "unknown combiner 'max'; choose one of mean, sum, sqrtn"),
        ("user=sum", "--combiner: 'user' is no column with several values per row; these are tags"),
    ],
)
def test_other_combiners_are_refused(folder, capsys, combiner, message):
    words = ["train", str(folder / "DATA"), "--out", str(folder / "none"), "--model", "deepfm"]
    assert main([*words, "--batch-size", "64", "--combiner", combiner]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "none").exists()
