"""Columns of a prepared folder: read, checked, and mapped from a cache."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import (
    DeviceData,
    cache,
    open_columns,
    placement,
    read_columns,
    train_validation_split,
)
from cowclip_merlin.system.folders import try_lock
from cowclip_merlin.training import RunSettings, train
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare

NAMES = ("ids", "continuous", "label")


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


@pytest.mark.parametrize("lists", [False, True])
def test_rows_of_two_splits_are_one_without_a_copy_in_memory(folder, tmp_path, monkeypatch, lists):
    if lists:
        log = "".join(f"{i % 2},u{i % 7},{'|'.join('xyz'[: i % 4])}\n" for i in range(200))
        (tmp_path / "log.csv").write_text("y,user,tags\n" + log)
        columns = {"label": "y", "categorical": ("user",), "multi": ("tags",)}
        folder = prepare(
            PrepareSettings(
                files=(tmp_path / "log.csv",), kind="table", out=tmp_path / "D", **columns
            )
        )
    parts = [open_columns(folder, split) for split in ("train", "test")]
    found = cache.open_joined(folder, "train", "test")
    for name, array in found.arrays.items():
        assert isinstance(array, np.memmap) or not array.size
        expected = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(array, expected)
    assert len(found) == sum(folder.rows.values()) and ("lengths" in found.arrays) == lists
    monkeypatch.setattr(cache, "_build", None)  # the next call finds it
    assert isinstance(cache.open_joined(folder, "train", "test").label, np.memmap)


def test_without_pyarrow_a_folder_with_a_cache_opens(folder, monkeypatch):
    made = open_columns(folder, "test")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    np.testing.assert_array_equal(open_columns(folder, "test").ids, made.ids)
    with pytest.raises(InputError, match="its rows are in parquet files; pip install pyarrow"):
        open_columns(folder, "train")
    assert not list(folder.path.glob(".cache-train*"))


def address_is_in(file, address):
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    ranges = [line.split()[0].split("-") for line in lines if line.endswith(str(file))]
    return any(int(low, 16) <= address < int(high, 16) for low, high in ranges)


@pytest.mark.parametrize(("version", "shared"), [("1.24.0", True), ("1.22.4", False)])
def test_mapped_columns_are_used_where_they_are(folder, monkeypatch, version, shared):
    """Older versions of NumPy abort Python when TensorFlow frees a shared array."""
    tf = compat.tensorflow()
    if tf.config.list_logical_devices("GPU"):
        pytest.skip("tensors are copies on a GPU")
    if shared and not compat.numpy_memory_can_be_shared(np.__version__):
        pytest.skip(f"NumPy {np.__version__} cannot share memory")
    monkeypatch.setattr(np, "__version__", version)
    columns = open_columns(folder, "train")
    data = DeviceData(columns)
    file = (folder.path / ".cache-train" / "label.npy").resolve()
    assert address_is_in(file, data._tensors[2]._numpy().ctypes.data) == shared
    np.testing.assert_array_equal(data._tensors[2].numpy(), columns.label)


def other_fingerprint(folder, _):
    path = folder.path / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "fingerprint": "0" * 64}))


def other_format(_, monkeypatch):
    monkeypatch.setattr(cache, "FORMAT_VERSION", 3)


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

    whole = list(cache.read_chunks(folder, "train"))
    monkeypatch.setattr(cache, "read_chunks", interrupted)
    with pytest.raises(error):
        open_columns(folder, "train")
    assert not list(folder.path.glob(".*cache*"))


def test_what_another_process_writes_is_left_alone(folder):
    """Told by its lock: in containers all processes have the same number."""
    mine, left = (folder.path / f"..cache-train.{n}.tmp" for n in ("abcd_123", os.getpid()))
    mine.mkdir()
    left.mkdir()
    with try_lock(mine) as ours:
        assert ours and isinstance(open_columns(folder, "train").ids, np.memmap)
        assert mine.exists() and not left.exists()


def test_a_cache_that_cannot_be_replaced_is_not_used(folder, tmp_path, caplog):
    open_columns(folder, "train")
    (folder.path / ".cache-train").rename(tmp_path / "elsewhere")
    (folder.path / ".cache-train").symlink_to(tmp_path / "elsewhere")
    other_file(folder, None)
    found = open_columns(folder, "train")
    np.testing.assert_array_equal(found.label, read_columns(folder, "train").label)
    assert "cannot be replaced" in caplog.text
    assert not list(folder.path.glob("*.tmp"))


def test_what_a_killed_process_left_is_removed(folder):
    left = folder.path / f"..cache-train.{2**22 + 1}.tmp"  # above the highest process number
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
    assert not list(folder.path.glob(".*cache*"))


class CudfFrame:
    """A frame of cuDF: what is asked of it exists in pandas and NumPy, too."""

    def __init__(self, file, columns):
        self.frame = pq.read_table(file, columns=columns).to_pandas()

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, name):
        column = self.frame[name]
        return SimpleNamespace(values=column.values, null_count=int(column.isna().sum()))


class CupyArray:
    """An array of CuPy: it is no NumPy array, and converts on request."""

    def __init__(self, inner):
        self.inner, self.ndim, self.shape = inner, inner.ndim, inner.shape

    def __len__(self):
        return len(self.inner)

    def __array__(self, *args, **kw):
        raise TypeError("implicit conversion to a NumPy array")

    def get(self):
        return self.inner


@pytest.fixture
def waits(monkeypatch):
    """Stand-ins for cuDF and CuPy; what the latter is told."""
    told = []
    stream = SimpleNamespace(synchronize=lambda: told.append("TensorFlow may read"))
    pool = SimpleNamespace(free_all_blocks=lambda: told.append("TensorFlow may allocate"))
    cupy = SimpleNamespace(
        empty=np.empty,
        cuda=SimpleNamespace(get_current_stream=lambda: stream),
        get_default_memory_pool=lambda: pool,
    )
    monkeypatch.setitem(sys.modules, "cudf", SimpleNamespace(read_parquet=CudfFrame))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return told


def test_reading_by_cudf_gives_the_same_columns(folder, waits):
    read, expected = placement.read_columns_on_gpu(folder, "train"), read_columns(folder, "train")
    assert waits == ["TensorFlow may read", "TensorFlow may allocate"]
    for name in NAMES:
        np.testing.assert_array_equal(getattr(read, name), getattr(expected, name))
    (file,) = folder.files("train")
    pq.read_table(file).to_pandas().assign(I1=np.inf).to_parquet(file, index=False)
    with pytest.raises(InputError, match="column 'I1' contains inf"):
        placement.read_columns_on_gpu(folder, "train")


@pytest.mark.parametrize("how", ["random", "last"])
def test_a_gpu_holds_out_the_rows_of_a_cpu(folder, how):
    columns = read_columns(folder, "train")
    arrays = {name: CupyArray(array) for name, array in columns.arrays.items()}
    expected = train_validation_split(columns, 0.2, how)
    for part, other in zip(train_validation_split(replace(columns, **arrays), 0.2, how), expected):
        assert part.on_gpu and part.ids is arrays["ids"]
        np.testing.assert_array_equal(part.rows, other.rows)
        np.testing.assert_array_equal(part.labels, other.labels)
    arrays["label"] = CupyArray(np.ones_like(columns.label))
    with pytest.raises(InputError, match="rows have the label 1, but AUC"):
        train_validation_split(replace(columns, **arrays), 0.2, how)


@pytest.mark.parametrize("fraction", [0.0, 0.2])
def test_cudf_reads_all_rows_of_a_run(waits, folder, tmp_path, monkeypatch, fraction):
    settings = RunSettings(model="deepfm", mlp=(8,), epochs=1, batch_size=512)
    settings = replace(settings, validation_fraction=fraction)
    expected = train(folder.path, settings, out=tmp_path / "cpu", device="cpu")
    monkeypatch.setattr(placement, "is_available", lambda: True)
    monkeypatch.setattr(placement, "open_columns", None)
    given = {"device": "cpu", "data_memory": 100}
    (row,) = train(folder.path, settings, out=tmp_path / "gpu", **given)
    split = settings.scored_split
    for name in ("train_loss", f"{split}_auc", f"{split}_log_loss"):
        assert row[name] == expected[0][name]
    assert len(waits) == (2 if fraction else 4)


def test_cudf_reads_what_fits(waits, folder, monkeypatch):
    """The train split once, to hold out rows of it; else both splits."""
    monkeypatch.setattr(placement, "is_available", lambda: True)
    rows, row = folder.rows, 168
    for most, read, more in (
        (rows["train"], placement.open_train_and_validation, (0.2,)),
        (rows["train"] + rows["test"], placement.open_train_and, ("test",)),
    ):
        for memory in (row * most - 1, row * most):
            waits.clear()
            read(folder, *more, memory=memory)
            assert bool(waits) == (memory == row * most)
