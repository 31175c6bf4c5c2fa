"""Rows on the device, streamed to it and mapped from files: always the same rows."""

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from cowclip_merlin import compat
from cowclip_merlin.bench import field_sizes, random_rows
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import (
    DeviceData,
    StreamedData,
    batches,
    bytes_of,
    cache,
    gpu,
    open_columns,
    order,
    place,
    read_columns,
    stream,
)
from cowclip_merlin.training import RunSettings, train
from cowclip_merlin.workflows import PreparedData

ROWS, BATCH = 1003, 16
NAMES = ("ids", "continuous", "label")


@pytest.fixture(scope="module")
def columns():
    return random_rows(ROWS, field_sizes(2000), seed=1)


@pytest.fixture
def folder(data, tmp_path):
    """A prepared folder of its own, without a cache."""
    return PreparedData.load(
        shutil.copytree(data, tmp_path / "data", ignore=lambda _, names: hidden(names))
    )


def hidden(names):
    return [name for name in names if name.startswith(".cache")]


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(stream, "BATCHES_PER_CHUNK", 4)
    monkeypatch.setattr(stream, "ROWS_AT_ONCE", 10)


def taken(data, batch):
    inputs, label = data.take(batch)
    return [inputs["categorical"].numpy(), inputs["continuous"].numpy(), label.numpy()]


def epoch(data, **how):
    how = {"seed": 1, "epoch": 0} | how
    return [taken(data, batch) for batch in data.batches(BATCH, **how)]


def assert_equal(a, b):
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        for x, y in zip(one, other, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("cowclip-stream")]


@pytest.mark.parametrize("kind", [DeviceData, StreamedData])
def test_every_row_comes_once_in_the_order_of_the_seed(columns, kind, small_chunks):
    data = kind(columns)
    got = epoch(data)
    assert [len(label) for *_, label in got] == [BATCH] * 62 + [11]
    rows = np.concatenate(list(batches(ROWS, BATCH, seed=1, epoch=0)))
    assert sorted(rows) == list(range(ROWS))
    expected = [columns.ids[rows], columns.continuous[rows], columns.label[rows]]
    assert_equal([[np.concatenate(part) for part in zip(*got, strict=True)]], [expected])
    assert_equal(got, epoch(data))
    for other in ({"epoch": 1}, {"seed": 2}):
        assert not np.array_equal(got[0][0], epoch(data, **other)[0][0])


def test_streamed_rows_are_the_resident_ones(columns, small_chunks):
    resident, streamed = DeviceData(columns), StreamedData(columns)
    for start in (0, 1, 5, 62, 63):
        assert_equal(epoch(resident, epoch=3, start=start), epoch(streamed, epoch=3, start=start))
    in_order = [[taken(d, b) for b in d.in_order(100)] for d in (resident, streamed)]
    assert_equal(*in_order)
    np.testing.assert_array_equal(np.concatenate([b[0] for b in in_order[0]]), columns.ids)
    assert not threads()


def test_without_continuous_columns(columns):
    without = type(columns)(columns.ids, columns.continuous[:, :0], columns.label)
    for data in (DeviceData(without), StreamedData(without)):
        inputs, _ = data.take(next(data.batches(BATCH, seed=0, epoch=0)))
        assert list(inputs) == ["categorical"]


def test_the_order_is_written_down():
    """Another one would silently break the resumption of runs that were stopped before."""
    assert order.permutation(8, seed=1234, epoch=2).tolist() == [2, 3, 4, 5, 0, 6, 1, 7]
    assert order.permutation(8, seed=0, epoch=0).dtype == np.int32


def test_an_early_stop_ends_the_thread(columns, small_chunks):
    got = StreamedData(columns).batches(BATCH, seed=0, epoch=0)
    next(got)
    assert threads()
    got.close()
    assert not threads()


def test_an_error_in_the_thread_surfaces(columns, small_chunks, monkeypatch):
    data, calls = StreamedData(columns), []
    load = data._load

    def failing(rows):
        calls.append(rows)
        if len(calls) == 3:
            raise OSError("the disk is gone")
        return load(rows)

    monkeypatch.setattr(data, "_load", failing)
    seen = 0
    with pytest.raises(OSError, match="the disk is gone"):
        for _ in data.batches(BATCH, seed=0, epoch=0):
            seen += 1
    assert seen == 2 * 4 and not threads()


def test_memory_bounds_the_chunks(columns):
    batch = BATCH * columns.bytes_per_row
    sizes = [StreamedData(columns, memory=n * batch)._batches_per_chunk(BATCH) for n in (3, 9, 999)]
    assert sizes == [1, 4, 64]


def test_what_is_streamed(columns):
    test = random_rows(100, field_sizes(2000))
    size, least = ROWS * 168, 3 * BATCH * 160

    def chosen(memory):
        placed = place(columns, test, batch_size=BATCH, scoring_batch=32, memory=memory)
        return placed.train.resident, placed.test.resident

    assert chosen(None) == chosen(size + 100 * 168) == (True, True)
    assert chosen(size + 2 * least) == (True, False)
    assert chosen(size) == chosen(2 * least) == (False, False)
    with pytest.raises(InputError, match=r"less than three batches; give at least 0\.016"):
        chosen(2 * least - 1)


def test_the_cache_is_written_once(folder, monkeypatch):
    read = read_columns(folder, "train")
    made = open_columns(folder, "train")
    monkeypatch.setattr(pq, "ParquetFile", None)
    again = open_columns(folder, "train")
    for name in NAMES:
        assert isinstance(getattr(again, name), np.memmap)
        assert getattr(made, name).dtype == getattr(read, name).dtype
        np.testing.assert_array_equal(getattr(made, name), getattr(read, name))
        np.testing.assert_array_equal(getattr(again, name), getattr(read, name))
    assert sorted(p.name for p in (folder.path / ".cache-train").iterdir()) == [
        "cache.json", "continuous.npy", "ids.npy", "label.npy",
    ]  # fmt: skip


def test_mapped_columns_are_used_where_they_are(folder):
    tf = compat.tensorflow()
    if tf.config.list_logical_devices("GPU"):
        pytest.skip("tensors are copies on a GPU")
    data = DeviceData(open_columns(folder, "train"))
    file = str((folder.path / ".cache-train" / "label.npy").resolve())
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if line.endswith(file)]
    address = data._tensors[2]._numpy().ctypes.data
    assert any(int(low, 16) <= address < int(high, 16) for low, high in ranges)


def other_fingerprint(folder, _):
    path = folder.path / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "fingerprint": "0" * 64}))


def other_format(_, monkeypatch):
    monkeypatch.setattr(cache, "FORMAT_VERSION", 2)


def other_file(folder, _):
    file = folder.files("train")[0]
    frame = pq.read_table(file).to_pandas()
    frame[folder.label] = 1 - frame[folder.label]
    frame.to_parquet(file, index=False)


def cut_short(folder, _):
    file = folder.path / ".cache-train" / "ids.npy"
    os.truncate(file, file.stat().st_size - 4)


def no_json(folder, _):
    (folder.path / ".cache-train" / "cache.json").write_text("{")


@pytest.mark.parametrize(
    "change", [other_fingerprint, other_format, other_file, cut_short, no_json]
)
def test_the_cache_is_remade(folder, monkeypatch, change):
    open_columns(folder, "train")
    before = (folder.path / ".cache-train" / "ids.npy").stat().st_ino
    change(folder, monkeypatch)
    folder = PreparedData.load(folder.path)
    after = open_columns(folder, "train")
    assert (folder.path / ".cache-train" / "ids.npy").stat().st_ino != before
    for name in NAMES:
        np.testing.assert_array_equal(
            getattr(after, name), getattr(read_columns(folder, "train"), name)
        )


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupted_writing_leaves_nothing(folder, monkeypatch, error):
    def interrupted(*_):
        yield next(iter(whole))
        raise error

    whole = list(cache.parts(folder, "train"))
    monkeypatch.setattr(cache, "parts", interrupted)
    with pytest.raises(error):
        open_columns(folder, "train")
    assert not list(folder.path.glob(".cache*"))


def test_what_a_killed_process_left_is_removed(folder):
    left = folder.path / f".cache-train.{2**22 + 1}.tmp"  # above the highest process number
    left.mkdir()
    open_columns(folder, "train")
    assert not left.exists()


def test_a_folder_that_cannot_be_written_is_read_into_memory(folder, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_write", full)
    columns = open_columns(folder, "train")
    assert not isinstance(columns.ids, np.memmap) and len(columns) == folder.rows["train"]
    assert "No space left on device" in caplog.text and len(caplog.records) == 1
    assert not list(folder.path.glob(".cache*"))


def damaged(folder, column, change):
    file = folder.files("train")[0]
    frame = pq.read_table(file).to_pandas()
    frame = frame.drop(columns=column) if change is None else change(frame)
    frame.to_parquet(file, index=False)


def with_value(column, value):
    def change(frame):
        frame[column] = frame[column].astype("Int64") if value is None else frame[column]
        frame.loc[5, column] = value
        return frame

    return change


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("C1", None, "column 'C1' is missing"),
        ("C1", with_value("C1", 10**6), "column 'C1' holds id 1000000, outside its vocabulary"),
        ("C1", with_value("C1", -1), "column 'C1' holds id -1"),
        ("C1", with_value("C1", None), "column 'C1' holds a null"),
        ("I1", with_value("I1", np.inf), "column 'I1' holds inf"),
        ("label", with_value("label", 2), "label 'label' holds 2, neither 0 nor 1"),
        ("label", lambda frame: frame[:-1], "rows, dataset.json says"),
        ("label", lambda frame: frame.iloc[[0, *range(len(frame))]], "more rows than dataset"),
    ],
)
def test_wrong_values_are_named(folder, column, change, message):
    open_columns(folder, "train")
    damaged(folder, column, change)
    for read in (read_columns, open_columns):
        with pytest.raises(InputError, match=message) as error:
            read(folder, "train")
        assert "\n" not in str(error.value)
    assert not list(folder.path.glob(".cache-train.*"))


def test_a_run_with_little_memory_is_the_same_run(folder, tmp_path, small_chunks):
    settings = RunSettings(model="deepfm", mlp=(8,), batch_size=64, base_batch_size=64, epochs=2)
    least = 3 * folder.rows["test"] * 160 / 1e6
    ends, weights = {}, {}
    for name, memory in {"resident": None, "streamed": least}.items():
        out = tmp_path / name
        ends[name] = train(folder.path, settings, out=out, data_memory=memory, device="cpu")
        reader = compat.tensorflow().train.load_checkpoint(str(out / "checkpoints"))
        weights[name] = {
            key: reader.get_tensor(key)
            for key in reader.get_variable_to_shape_map()
            if "OBJECT_GRAPH" not in key
        }
        say = "streamed" if name == "streamed" else "on the device"
        assert (
            f"train rows {say}, scored rows {say}: 160 bytes a row"
            in (out / "train.log").read_text()
        )
    assert [r["test_auc"] for r in ends["streamed"]] == [r["test_auc"] for r in ends["resident"]]
    assert weights["streamed"].keys() == weights["resident"].keys()
    for key, value in weights["streamed"].items():
        np.testing.assert_array_equal(value, weights["resident"][key], err_msg=key)
    assert not threads()


def test_reading_by_cudf_gives_the_same_columns(folder, monkeypatch):
    """With stand-ins for cuDF and CuPy: what is asked of them exists in pandas and NumPy, too."""

    class Frame:
        def __init__(self, file, columns):
            self.frame = pq.read_table(file, columns=columns).to_pandas()

        def __len__(self):
            return len(self.frame)

        def __getitem__(self, name):
            column = self.frame[name]
            return SimpleNamespace(values=column.values, null_count=int(column.isna().sum()))

    monkeypatch.setitem(sys.modules, "cudf", SimpleNamespace(read_parquet=Frame))
    monkeypatch.setitem(sys.modules, "cupy", np)
    read, expected = gpu.read_columns_on_gpu(folder, "train"), read_columns(folder, "train")
    for name in NAMES:
        np.testing.assert_array_equal(getattr(read, name), getattr(expected, name))
    damaged(folder, "I1", with_value("I1", np.inf))
    with pytest.raises(InputError, match="column 'I1' holds inf"):
        gpu.read_columns_on_gpu(folder, "train")


@pytest.mark.parametrize("memory", ["0", "-3", "nan", "inf"])
def test_wrong_memory_is_said_in_one_line(data, tmp_path, capsys, memory):
    arguments = ["--out", str(tmp_path / "run"), "--model", "deepfm", "--batch-size", "64"]
    assert main(["train", str(data), *arguments, f"--data-memory={memory}"]) == 2
    assert "--data-memory" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_too_little_memory_names_what_is_enough(data, tmp_path, capsys):
    arguments = ["--out", str(tmp_path / "run"), "--model", "deepfm", "--batch-size", "1024"]
    assert main(["train", str(data), *arguments, "--data-memory", "0.1"]) == 2
    assert "give at least 0.49" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert bytes_of(0.5) == 500_000
