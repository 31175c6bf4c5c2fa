"""Rows kept back for validation: which they are, and that test rows are left alone."""

import csv
import shutil

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import ColumnArrays, DeviceData, StreamedData, train_validation_split
from cowclip_merlin.loading.row_order import ORDERS, validation_mask
from cowclip_merlin.training import RunSettings, evaluate_run, train
from cowclip_merlin.workflows import PreparedData

SMALL = {"model": "deepfm", "mlp": (8,), "batch_size": 64, "base_batch_size": 64, "epochs": 1}
OF_TEST = ("test_auc", "test_log_loss", "test_seconds")


@pytest.fixture(scope="module")
def data(small):
    return small


@pytest.fixture
def without_test(data, tmp_path):
    """The prepared folder, the rows of its test split gone."""
    folder = shutil.copytree(
        data, tmp_path / "data", ignore=lambda _, names: [n for n in names if n[:6] == ".cache"]
    )
    shutil.rmtree(folder / "test")
    return folder


def numbered(rows):
    """Every row says its number; labels alternate."""
    number = np.arange(rows)
    return ColumnArrays(
        np.stack([number, 2 * number], 1).astype(np.int32),
        3 * number[:, None].astype(np.float32),
        (number % 2).astype(np.float32),
    )


@given(rows=st.integers(40, 3000), fraction=st.floats(0.02, 0.98))
def test_the_parts_are_disjoint_and_complete(rows, fraction):
    n = round(rows * fraction)
    columns = numbered(rows)
    assume(0 < n < rows and len(set(columns.label[validation_mask(rows, fraction)])) == 2)
    parts = train_validation_split(columns, fraction)
    assert [len(part) for part in parts] == [rows - n, n]
    for part in parts:
        assert (np.diff(part.rows) > 0).all() and part.ids is columns.ids
        np.testing.assert_array_equal(part.labels[:, 0], columns.label[part.rows])
    both = np.concatenate([part.rows for part in parts])
    assert sorted(both) == list(range(rows))


@pytest.mark.parametrize("generator", ORDERS)
def test_a_part_is_read_as_a_copy_of_its_rows(generator):
    """On the device, beside the other part there, and streamed: in order, and in an epoch's."""
    columns = numbered(500)
    train, held = train_validation_split(columns, 0.3)
    for part in (train, held):
        copy = ColumnArrays(
            *(x[part.rows] for x in (columns.ids, columns.continuous, columns.label))
        )
        kinds = [DeviceData(copy), DeviceData(part), DeviceData(part, beside=DeviceData(train))]
        kinds.append(StreamedData(part))
        for data in kinds:
            data.generator = generator
        epochs = [
            [data.unpack(x) for b in (data.batches(64, seed=1, epoch=2, start=1),
                                      data.batches_in_file_order(64)) for x in b]
            for data in kinds
        ]  # fmt: skip
        for one, *others in zip(*epochs, strict=True):
            for other in others:
                np.testing.assert_array_equal(other.ids.values, one.ids.values)
                np.testing.assert_array_equal(other.numbers, one.numbers)
                np.testing.assert_array_equal(other.labels, one.labels)
        for data in kinds:
            np.testing.assert_array_equal(data.labels(), copy.label)


@given(rows=st.integers(40, 1000), a=st.floats(0.05, 0.9), b=st.floats(0.05, 0.9))
def test_a_smaller_fraction_is_part_of_a_larger_one(rows, a, b):
    small, large = (validation_mask(rows, f) for f in sorted((a, b)))
    assert not (small & ~large).any()


@given(rows=st.integers(40, 1000), fraction=st.floats(0.05, 0.9))
def test_the_last_rows_are_held_out_if_asked_for(rows, fraction):
    kept, held = train_validation_split(numbered(rows), fraction, "last")
    assert [*kept.rows, *held.rows] == list(range(rows))
    assert len(held) == round(rows * fraction)


def test_the_rows_are_written_down():
    """Other ones would silently put old and new runs of a search on different rows."""
    assert np.flatnonzero(validation_mask(20, 0.25)).tolist() == [1, 3, 9, 11, 19]
    spread = np.flatnonzero(validation_mask(100_000, 0.1)) / 100_000
    assert abs(spread.mean() - 0.5) < 0.01 and abs((spread < 0.1).mean() - 0.1) < 0.01


def test_test_rows_are_neither_read_nor_named(without_test, tmp_path):
    """They are gone, and nobody misses them."""
    out = tmp_path / "run"
    rows = train(without_test, RunSettings(**SMALL, validation_fraction=0.1), out=out)
    assert not (without_test / ".cache-test").exists()
    assert not set(OF_TEST) & rows[0].keys()
    with (out / "metrics.csv").open(newline="") as file:
        (line,) = csv.DictReader(file)
    assert [line[name] for name in OF_TEST] == ["", "", ""]
    assert float(line["validation_auc"]) == rows[0]["validation_auc"]
    log = (out / "train.log").read_text()
    assert "validation AUC" in log and " test" not in log


def test_the_metrics_are_those_of_the_rows_kept_back(data, tmp_path):
    """All rates 0: the weights of the last epoch score any part as they did in the run."""
    zero = {"embedding_lr": 0.0, "dense_lr": 0.0, "warmup_epochs": 0.0}
    settings = RunSettings(**SMALL, overrides=zero, validation_fraction=0.3)
    (row,) = train(data, settings, out=tmp_path / "run")
    train_rows = PreparedData.load(data).rows["train"]
    n = round(0.3 * train_rows)
    whole = evaluate_run(tmp_path / "run", data, split="train").log_loss * train_rows
    parts = n * row["validation_log_loss"] + (train_rows - n) * row["train_loss"]
    assert parts == pytest.approx(whole, rel=1e-6)


def test_the_command_line_says_what_it_scored(data, tmp_path, capsys):
    out = str(tmp_path / "run")
    arguments = ["--model", "deepfm", "--batch-size", "256", "--mlp", "8", "--epochs", "1"]
    command = ["train", str(data), "--out", out, *arguments]
    assert main([*command, "--validation-fraction", "0.2"]) == 0
    assert "\nvalidation AUC 0." in capsys.readouterr().out
    assert main([*command, "--resume"]) == 0  # with the settings of the run
    assert "\nvalidation AUC 0." in capsys.readouterr().out
    assert main([*command, "--resume", "--validation-fraction", "0"]) == 2
    assert "validation_fraction 0.2, not 0.0" in capsys.readouterr().err


def test_rows_of_one_label_are_refused():
    columns = numbered(100)
    columns.label[:] = 1
    with pytest.raises(InputError, match=r"all 10 rows .*label 1,"):
        train_validation_split(columns, 0.1)
