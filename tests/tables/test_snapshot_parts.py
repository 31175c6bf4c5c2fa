"""Snapshots in parts: complete or not there, and read by any number of workers."""

import os
import threading

import numpy as np
import pytest
from test_growing_shard import admit_together, batches_of, contents, shards_of, whole_table

from cowclip_merlin.errors import InputError
from cowclip_merlin.tables.growing_shard import GrowingParts
from cowclip_merlin.tables.snapshot import (
    WORKERS,
    link_snapshot,
    load_part,
    load_snapshot,
    numbers,
    part_folder,
    part_of,
    remove_parts,
    remove_snapshots,
    save_snapshot,
    set_aside,
)
from cowclip_merlin.tables.snapshot_writer import SnapshotWriter

PREFIX = "trainer.table."
TABLE = GrowingParts(PREFIX)


def named(shard):
    return {f"{PREFIX}{name}": np.array(x) for name, x in shard.state().items()}


def write(folder, shards, number):
    """Write the parts, the one of worker 0 last."""
    size = len(shards)
    for rank, shard in reversed(list(enumerate(shards))):
        more, extra = ({}, {}) if rank else ({"dense0": np.arange(3)}, {WORKERS: size, "a": 1})
        save_snapshot(part_folder(folder, rank, size), number, named(shard) | more, extra, keep=9)


@pytest.fixture
def trained():
    shards = shards_of(3)
    for ids, times in batches_of(4, False):
        admit_together(shards, ids, times)
    return shards


@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_number_of_workers_reads_all_rows(tmp_path, trained, size):
    write(tmp_path, trained, 40)
    new = shards_of(size)
    for rank, shard in enumerate(new):
        snapshot = load_part(tmp_path, 40, TABLE, rank=rank, size=size)
        assert snapshot.arrays["dense0"].tolist() == [0, 1, 2] and snapshot.extra["a"] == 1
        shard.restore(part_of(snapshot.arrays, PREFIX))
    assert contents(new) == contents(trained) and len(contents(new)) > 10


def test_one_process_reads_all_rows_and_others_read_its(tmp_path, trained):
    write(tmp_path, trained, 40)
    table = whole_table()
    table.restore(part_of(load_part(tmp_path, 40, TABLE).arrays, PREFIX))
    assert contents([table]) == contents(trained)
    save_snapshot(tmp_path, 50, named(table), {})
    new = shards_of(2)
    for rank, shard in enumerate(new):
        own = load_part(tmp_path, 50, TABLE, rank=rank, size=2).arrays
        shard.restore(part_of(own, PREFIX))
    assert contents(new) == contents(trained)


def test_a_server_needs_no_moments(tmp_path, trained):
    write(tmp_path, trained, 40)
    wanted = ("ids", "fields", "free", "numbers", "table0.w")
    needed = [f"{PREFIX}{name}" for name in wanted]
    found = load_part(tmp_path, 40, TABLE, wanted=needed.__contains__).arrays
    assert set(found) == {*needed}
    assert len(found[f"{PREFIX}table0.w"]) == 3 + len(contents(trained))


def test_a_damaged_part_is_refused(tmp_path, trained):
    write(tmp_path, trained, 40)
    (tmp_path / WORKERS / "1-of-3" / "40" / f"{PREFIX}ids.bin").write_bytes(b"")
    for size in (2, 3):
        with pytest.raises(InputError, match=r"1-of-3.*damaged"):
            load_part(tmp_path, 40, TABLE, rank=1, size=size)


def test_worker_0_writes_last_and_removes_old_parts(tmp_path, trained):
    writer, other = (SnapshotWriter(tmp_path, keep=1, rank=q, workers=2) for q in range(2))
    for number in (10, 20):
        writer.begin(number, named(trained[0]), {})
        assert writer.finished() is None and number not in numbers(tmp_path)
        thread = threading.Timer(0.01, other.begin, (number, named(trained[1]), {}))
        thread.start()
        assert writer.finished(wait=True) == number
        thread.join()
        assert other.finished(wait=True) == number
    assert load_snapshot(tmp_path).extra == {WORKERS: 2}
    assert numbers(tmp_path) == numbers(part_folder(tmp_path, 1, 2)) == [20]
    writer.begin(30, {}, {})
    writer.close()  # as when another worker was lost
    with pytest.raises(InputError, match="did not write snapshot 30"):
        writer.finished(wait=True)
    assert numbers(tmp_path) == [20] and not other.busy
    other.close()


def test_parts_go_with_their_snapshot(tmp_path, trained):
    for number in (10, 20, 30):
        write(tmp_path, trained, number)
    set_aside(tmp_path, 30, "rolled-back")
    for rank in range(3):
        assert (part_folder(tmp_path, rank, 3) / "rolled-back-30").is_dir()
    remove_parts(tmp_path, lambda number: number > 10)
    assert sorted(numbers(tmp_path)) == [10, 20] and numbers(part_folder(tmp_path, 2, 3)) == [10]


def refuse_links(*_):
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False])
def test_a_copy_has_all_parts_and_shares_their_files_if_it_can(
    tmp_path, trained, monkeypatch, links
):
    write(tmp_path / "a", trained, 40)
    left = part_folder(tmp_path / "b", 2, 3) / "7"  # of a killed process
    left.mkdir(parents=True)
    if not links:
        monkeypatch.setattr(os, "link", refuse_links)
    link_snapshot(tmp_path / "a", 40, tmp_path / "b", 7)
    for rank in range(3):
        one, other = (load_snapshot(part_folder(tmp_path / x, rank, 3)) for x in "ab")
        assert one.extra == other.extra and one.arrays.keys() == other.arrays.keys()
        files = [part_folder(tmp_path / x, rank, 3) / n for x, n in (("a", "40"), ("b", "7"))]
        assert (files[0] / "manifest.json").samefile(files[1] / "manifest.json") == links
    remove_snapshots(tmp_path / "a", lambda number: number == 40)
    assert not list((tmp_path / "a").rglob("*.bin"))
    assert contents([restored(load_part(tmp_path / "b", 7, TABLE))]) == contents(trained)


def restored(snapshot):
    table = whole_table()
    table.restore(part_of(snapshot.arrays, PREFIX))
    return table
