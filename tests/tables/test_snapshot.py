"""A snapshot is complete or not there; damage is seen."""

import json
import subprocess
import sys

import numpy as np
import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import snapshot_writer
from cowclip_merlin.tables.snapshot import load_snapshot, numbers, save_snapshot
from cowclip_merlin.tables.snapshot_writer import SnapshotWriter

ARRAYS = {
    "w": np.arange(12, dtype=np.float32).reshape(4, 3),
    "ids": np.array([2**63 - 1, -(2**63)]),
    "none": np.empty((0, 3), np.uint8),
    "view": np.arange(10, dtype=np.uint16)[::3],
    "step": np.array(7),
}
EXTRA = {"position": {"log": 12}, "names": ["é"]}


def test_round_trip(tmp_path):
    made = save_snapshot(tmp_path / "snapshots", 5, ARRAYS, EXTRA)
    assert made == tmp_path / "snapshots" / "5"
    number, arrays, extra = load_snapshot(tmp_path / "snapshots")
    assert number == 5 and extra == EXTRA and arrays.keys() == ARRAYS.keys()
    for name, x in ARRAYS.items():
        assert arrays[name].dtype == x.dtype and arrays[name].flags.writeable
        np.testing.assert_array_equal(arrays[name], x, strict=True)


def test_the_newest_stay(tmp_path):
    for number in (9, 10, 100):
        save_snapshot(tmp_path, number, {"n": np.array(number)}, None)
    assert sorted(numbers(tmp_path)) == [10, 100]
    assert load_snapshot(tmp_path).arrays["n"] == 100
    assert load_snapshot(tmp_path, 10).arrays["n"] == 10
    save_snapshot(tmp_path, 101, {}, None, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["101"]


@pytest.mark.parametrize("number", [4, 5])
def test_an_old_number_is_refused(tmp_path, number):
    save_snapshot(tmp_path, 5, {}, None)
    with pytest.raises(InputError, match=f"snapshot 5 is there; {number} "):
        save_snapshot(tmp_path, number, {}, None)


def test_no_snapshot(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="no snapshot"):
            load_snapshot(folder)
    with pytest.raises(InputError, match=r"manifest\.json: no such file"):
        load_snapshot(tmp_path, 3)


def changed(data):
    return bytes([data[0] ^ 1, *data[1:]])


@pytest.mark.parametrize("damage", [changed, lambda x: x[:-1], lambda x: x + b"\0"])
@pytest.mark.parametrize("name", ["w.bin", "view.bin", "manifest.json"])
def test_damage_is_seen(tmp_path, name, damage):
    file = save_snapshot(tmp_path, 5, ARRAYS, EXTRA) / name
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match=f"{name}: damaged"):
        load_snapshot(tmp_path)


def test_what_is_missing_or_was_changed_is_seen(tmp_path):
    folder = save_snapshot(tmp_path, 5, ARRAYS, EXTRA)
    manifest = json.loads((folder / "manifest.json").read_text())
    for value in (13, None):
        manifest["extra"]["position"] = value
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(InputError, match="damaged"):
            load_snapshot(tmp_path)
    (save_snapshot(tmp_path, 6, ARRAYS, EXTRA) / "ids.bin").unlink()
    with pytest.raises(InputError, match=r"ids\.bin: no such file"):
        load_snapshot(tmp_path)


def test_files_of_others_stay(tmp_path):
    mine = [tmp_path / ".notes.tmp", tmp_path / "12.txt", tmp_path / ".5.tmp"]
    for path in mine:
        path.write_text("mine")
    mine.append(tmp_path / ".notes.removed" / "a")
    mine[-1].parent.mkdir()
    mine[-1].write_text("mine")
    (tmp_path / ".4.removed").mkdir()  # of a killed process
    for number in (5, 6, 7):
        save_snapshot(tmp_path, number, {}, None)
    assert all(path.read_text() == "mine" for path in mine)
    assert not (tmp_path / ".4.removed").exists()


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import numpy as np
from cowclip_merlin.tables.snapshot import load_snapshot, numbers, save_snapshot
from cowclip_merlin.tables.snapshot_writer import SnapshotWriter

OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "tempfile.mkdtemp", "fsync")
work, done, last, fsync = Path(sys.argv[1]), 0, -1, os.fsync

def count(event, arguments=()):
    global done
    if last >= 0 and event in OPERATIONS:
        done += 1
        if done == last:
            os.kill(os.getpid(), signal.SIGKILL)

def flush(file):
    count("fsync")
    fsync(file)

def save(folder, n):
    save_snapshot(folder, n, {"a": np.full(99, n), "b": np.full((9, 9), n)}, {"n": n})

def check(folder, found):
    number, arrays, extra = load_snapshot(folder, found)
    assert extra == {"n": number} and all((x == number).all() for x in arrays.values())

os.fsync = flush
sys.addaudithook(count)
for kill in range(1, 1000):
    folder = work / str(kill)
    save(folder, 1), save(folder, 2)
    child = os.fork()
    if child == 0:
        last = kill
        save(folder, 3)
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    found = sorted(numbers(folder))
    assert found in ([1, 2], [1, 2, 3], [2, 3]), found
    for number in found:
        check(folder, number)
    save(folder, 4), save(folder, 5)
    assert sorted(path.name for path in folder.iterdir()) == ["4", "5"], list(folder.iterdir())
    if not killed:
        break
print(kill - 1)
"""


@pytest.mark.quick
@pytest.mark.system
def test_kill_9_between_any_two_file_operations(tmp_path):
    """What is there is complete, the one before is there, and nothing stays behind."""
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20  # operations, each of which was the last one once


@pytest.mark.parametrize("workers", [1, 2])
def test_without_memory_for_a_copy_the_snapshot_is_written_at_once(tmp_path, monkeypatch, workers):
    """Also by worker 0, which need not have the parts of others for that."""
    monkeypatch.setattr(snapshot_writer, "bytes_left", lambda: 10)
    made = [SnapshotWriter(tmp_path, rank=rank, workers=workers) for rank in range(workers)]
    x, copied = np.arange(6.0), []
    monkeypatch.setattr(snapshot_writer, "save_snapshot", seen(save_snapshot, copied, x))
    for writer in made:
        writer.begin(1, {"x": x}, {})
    x[:] = 0
    assert [writer.finished(wait=True) for writer in made] == [1] * workers
    assert copied == [False] * workers
    np.testing.assert_array_equal(load_snapshot(tmp_path).arrays["x"], np.arange(6.0))
    made[0].begin(1, {"x": x}, {})
    with pytest.raises(InputError, match="1 is not above it"):
        made[0].finished(wait=True)
    for writer in made:
        writer.close()


def seen(save, copied, x):
    """Like `save`, but notes whether it is given a copy."""

    def call(folder, number, arrays, *given, **how):
        copied.append(not np.shares_memory(arrays["x"], x))
        return save(folder, number, arrays, *given, **how)

    return call
