"""Files without the right to read or write them: the rights are named, and no damage is."""

import os
import shutil
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cowclip_merlin.errors import InputError, error_message
from cowclip_merlin.system.files import reading_parquet
from cowclip_merlin.training import RunSettings, evaluate_run, run_logs, train
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.raw.readers import open_parquet

SETTINGS = RunSettings(
    model="deepfm", epochs=1, mlp=(8,), batch_size=256, base_batch_size=64, seed=5
)
NOBODY = 65534


@contextmanager
def as_nobody():
    """Without root's rights, if the tests have them."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture(scope="module")
def data(small):
    return small


@pytest.fixture
def folder():
    """A folder that anyone can look into: not below pytest's, which is root's alone."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("rights") / "run"
    train(data, SETTINGS, out=out)
    return out


def test_a_split_that_may_not_be_read_is_not_called_empty(data, folder):
    prepared = PreparedData.load(shutil.copytree(data, folder / "data"))
    (folder / "data" / "train").chmod(0)
    try:
        with as_nobody(), pytest.raises(PermissionError) as failure:
            prepared.files("train")
    finally:
        (folder / "data" / "train").chmod(0o755)
    assert error_message(failure.value).startswith(f"{folder}/data/train: Permission denied")


@pytest.mark.parametrize("what", ["a log", "prepared data"])
def test_parquet_that_may_not_be_read_is_named(data, folder, what):
    file = sorted((data / "test").glob("*.parquet"))[0]
    file = Path(shutil.copy(file, folder / "rows.parquet"))
    file.chmod(0)
    with as_nobody(), pytest.raises(PermissionError) as failure:
        if what == "a log":
            open_parquet(file)
        with reading_parquet(file):
            pq.ParquetFile(file)
    told = error_message(failure.value)
    assert str(file) in told and "None" not in told and "check the path" in told


@pytest.mark.one_case
@pytest.mark.parametrize("name", ["manifest.json", "weights.0.bin"])
def test_a_checkpoint_that_may_not_be_read_is_not_called_missing(run, data, folder, name):
    shutil.copytree(run, folder / "run")
    readable = shutil.copytree(data, folder / "data")
    evaluate_run(folder / "run", readable)  # all that it needs is imported, which nobody may do
    file = folder / "run" / "checkpoints" / "1" / name
    file.chmod(0)
    with as_nobody(), pytest.raises(PermissionError) as failure:
        evaluate_run(folder / "run", readable)
    assert error_message(failure.value).startswith(f"{file}: Permission denied; ")


def test_a_checkpoint_that_cannot_be_written_ends_the_training(data, tmp_path, monkeypatch):
    """Before its next one: a step later, or at the end. The checkpoint before stays."""
    real, full = os.fsync, OSError(28, "No space left on device")

    def fsync(file):
        if "/checkpoints/.2." in os.readlink(f"/proc/self/fd/{file}"):
            raise full
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    for settings in (SETTINGS, replace(SETTINGS, epochs=9)):
        out = tmp_path / f"run-{settings.epochs}"
        every = {"checkpoint_every": 1} if settings is SETTINGS else {}
        with pytest.raises(OSError) as failure:
            train(data, settings, out=out, **every)
        told = error_message(failure.value)
        assert told.startswith(f"{out}/checkpoints/2: no space left")
        assert [path.name for path in (out / "checkpoints").iterdir()] == ["1"]
        monkeypatch.setattr(os, "fsync", real)
        assert train(data, settings, out=out, resume=True)[-1]["epoch"] == settings.epochs
        monkeypatch.setattr(os, "fsync", fsync)


def test_no_thread_is_left_where_the_events_cannot_be_written(data, tmp_path, monkeypatch):
    def close(board):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_logs.TensorBoard, "close", close)
    with pytest.raises(OSError, match="No space left"):
        train(data, SETTINGS, out=tmp_path / "run")
    assert not [x for x in threading.enumerate() if x.name.startswith("snapshot")]


def test_nobody_is_told_to_delete_what_is_left_of_checkpoints(run, data, tmp_path):
    out = shutil.copytree(run, tmp_path / "run")
    for file in (out / "checkpoints").glob("*/*.bin"):
        file.unlink()
    with pytest.raises(InputError) as failure:
        evaluate_run(out, data)
    assert f"delete {out}" not in str(failure.value)
