"""Training on columns with several values per row: loading, runs, evaluation, scores."""

import numpy as np
import pandas
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import ColumnArrays, DeviceData, StreamedData, open_columns
from cowclip_merlin.loading.id_layout import IdLayout
from cowclip_merlin.training import RunSettings, evaluate_run, train
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare

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


@pytest.fixture(scope="module")
def data(folder):
    return PreparedData.load(folder / "DATA")


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


@pytest.mark.parametrize("again", [False, True], ids=["made", "from the cache"])
def test_batches_have_the_rows_of_the_files(data, again):
    columns = open_columns(data, "train")
    rows = rows_of(data, "train")
    for loaded in (DeviceData(columns), StreamedData(columns, memory=20_000)):
        found = []
        for batch in loaded.batches_in_file_order(100):
            found += rows_of_batch(loaded.unpack(batch).ids)
        assert found == rows


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


def test_streamed_batches_are_those_on_the_device(data):
    columns = open_columns(data, "train")
    kinds = DeviceData(columns), StreamedData(columns, memory=20_000)
    batches = [each.batches(64, seed=1, epoch=2) for each in kinds]
    for pair in zip(*batches, strict=True):
        first, second = (kind.unpack(batch) for kind, batch in zip(kinds, pair))
        assert rows_of_batch(first.ids) == rows_of_batch(second.ids)
        np.testing.assert_array_equal(first.numbers, second.numbers)
        parts = (kind.unpack(kind.part(batch, 3, 9)) for kind, batch in zip(kinds, pair))
        for part in parts:
            assert rows_of_batch(part.ids) == rows_of_batch(first.ids)[3:9]


def run(folder, name, **settings):
    settings = RunSettings(model=settings.pop("model", "deepfm"), **SMALL | settings)
    return train(folder / "DATA", settings, out=folder / name)[-1]


@pytest.fixture(scope="module")
def auc(folder):
    return run(folder, "RUN")["test_auc"]


@pytest.mark.parametrize("settings", [{"update": "exact"}, {"tables": "per_field"}], ids=str)
def test_the_ways_to_train_agree(folder, auc, settings):
    row = run(folder, "-".join(settings.values()), **settings)
    assert row["test_auc"] == pytest.approx(auc, abs=1e-6)


def test_a_streamed_run_is_the_resident_one(folder, auc):
    settings = RunSettings(model="deepfm", **SMALL)
    rows = train(folder / "DATA", settings, out=folder / "streamed", data_memory=0.02)
    assert rows[-1]["test_auc"] == auc


def test_a_combiner_is_chosen_by_column(folder, auc):
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


def test_a_combiner_needs_a_multi_valued_column():
    settings = RunSettings(model="deepfm", combiner="sum", batch_size=8)
    with pytest.raises(InputError, match="`combiner` has no effect"):
        settings.combiners(())


def test_the_tags_are_learned(folder):
    row = run(
        folder,
        "long",
        model="dcnv2",
        rule="none",
        overrides={"embedding_lr": 0.01, "dense_lr": 0.01},
        epochs=4,
    )
    assert row["test_auc"] > 0.7, "without the tags it is 0.5"


def test_validation_rows_keep_their_tags(folder):
    row = run(folder, "validated", validation_fraction=0.3)
    assert 0 < row["validation_auc"] < 1


def test_scores_are_those_of_evaluate(folder, auc):
    assert evaluate_run(folder / "RUN", folder / "DATA").auc == auc
    frame = log()
    lists = frame.assign(tags=[text.split("|") if text else [] for text in frame.tags])
    scores = [cc.score(folder / "RUN", rows) for rows in (folder / "log.csv", frame, lists)]
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(scores[0], scores[2])
    rows = folder / "NEW"
    new = {"kind": "table", "like": folder / "DATA"}
    prepare(PrepareSettings(files=(folder / "log.csv",), out=rows, **new))
    evaluate_run(folder / "RUN", rows, predictions=folder / "p.parquet")
    np.testing.assert_array_equal(scores[0], pandas.read_parquet(folder / "p.parquet").probability)


def test_unknown_tags_are_counted_per_value(folder, auc, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("user,tags,age\n1,t1|new,0.5\n1,,0.5\n")
    words = ["score", str(folder / "RUN"), str(tmp_path / "new.csv")]
    assert main([*words, "--out", str(tmp_path / "s.parquet")]) == 0
    assert "tags" in capsys.readouterr().out.splitlines()[-1]


def test_a_loaded_run_takes_ragged_columns(folder, auc):
    tf, data = compat.tensorflow(), PreparedData.load(folder / "DATA")
    columns = open_columns(data, "test")
    tags = tf.RaggedTensor.from_row_lengths(*columns.column(1))
    model = cc.training.load_run(folder / "RUN", folder / "DATA")
    inputs = {"user": tf.constant(columns.column(0)[0]), "tags": tags}
    found = model({**inputs, "age": tf.constant(columns.continuous[:, 0])})
    evaluate_run(folder / "RUN", folder / "DATA", predictions=folder / "q.parquet")
    expected = pandas.read_parquet(folder / "q.parquet").probability
    np.testing.assert_allclose(np.reshape(found, -1), expected, rtol=2e-6)


def test_a_loaded_run_takes_the_matrices_of_a_scorer(folder, auc, tmp_path):
    """The model of a run, its SavedModel, and that model loaded by Keras score them alike."""
    tf, run, data = compat.tensorflow(), folder / "RUN", folder / "DATA"
    scorer = cc.training.Scorer(run)
    inputs = scorer.inputs(folder / "log.csv")
    assert [(name, x.dtype.name) for name, x in inputs.items()] == [
        ("user", "int64"), ("tags", "int64"), ("age", "float32")
    ]  # fmt: skip
    assert (inputs["tags"][:, -1] == 0).any(), "some row must be filled up"
    np.testing.assert_array_equal(scorer.inputs(log())["tags"], inputs["tags"])
    cc.training.export_run(run, data, out=tmp_path / "MODEL")
    signature = tf.saved_model.load(str(tmp_path / "MODEL")).signatures["serving_default"]
    expected = scorer.score(folder / "log.csv")
    for found in (
        cc.training.load_run(run, data).predict(inputs, verbose=0),
        cc.load_model(str(tmp_path / "MODEL")).predict(inputs, verbose=0),
        signature(**{name: tf.constant(x) for name, x in inputs.items()})["probability"],
    ):
        np.testing.assert_allclose(np.reshape(found, -1), expected, rtol=2e-6)
    assert [x.shape for x in scorer.inputs(log().head(0)).values()] == [(0,), (0, 0), (0,)]


@pytest.mark.thorough
def test_an_exported_run_takes_matrices(folder, auc, tmp_path, capsys):
    tf, data, out = compat.tensorflow(), PreparedData.load(folder / "DATA"), tmp_path / "MODEL"
    words = ["export", str(folder / "RUN"), str(folder / "DATA"), "--out", str(out)]
    assert main(words) == 0
    assert "  int64 [b, k], filled with 0: tags\n" in capsys.readouterr().out
    columns = open_columns(data, "test")
    tags = tf.cast(tf.RaggedTensor.from_row_lengths(*columns.column(1)), tf.int64).to_tensor()
    user = tf.cast(columns.column(0)[0], tf.int64)
    served = tf.saved_model.load(str(out)).signatures["serving_default"]
    found = served(user=user, tags=tags, age=tf.constant(columns.continuous[:, 0]))
    evaluate_run(folder / "RUN", folder / "DATA", predictions=folder / "r.parquet")
    expected = pandas.read_parquet(folder / "r.parquet").probability
    np.testing.assert_allclose(found["probability"], expected, rtol=2e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="tags"):
        served(user=user[:1], tags=tf.constant([[99]], tf.int64), age=tf.constant([0.5]))
    values, lengths = columns.column(1)
    ragged = tf.saved_model.load(str(out)).signatures["serving_ragged"]
    given = {"user": user, "age": tf.constant(columns.continuous[:, 0])}
    given["tags__values"] = tf.constant(values, tf.int64)
    given["tags__offsets"] = tf.constant([0, *np.cumsum(lengths)], tf.int32)
    np.testing.assert_allclose(ragged(**given)["probability"], expected, rtol=2e-6)
    for wrong, words in [
        ({"tags__values": tf.constant([99] * len(values), tf.int64)}, "tags"),
        ({"tags__offsets": given["tags__offsets"][:-1]}, "tags__offsets must end with"),
    ]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=words):
            ragged(**given | wrong)


def test_what_does_not_read_lists_says_so(folder, auc, capsys):
    words = ["evaluate", str(folder / "RUN"), str(folder / "DATA"), "--by", "tags"]
    assert main(words) == 2
    assert "unknown by 'tags'; choose one of user" in capsys.readouterr().err
