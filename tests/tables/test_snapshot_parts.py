"""Snapshots in parts: complete or not there, and read by any number of workers."""

import threading

import numpy as np
import pytest
from test_growing_shard import admit_together, batches_of, contents, shards_of, whole_table

from cowclip_merlin.errors import InputError
from cowclip_merlin.tables.snapshot import numbers, part_of, save_snapshot
from cowclip_merlin.tables.snapshot_parts import (
    WORKERS,
    PartsWriter,
    load_own,
    load_whole,
    part_folder,
    remove_parts,
    set_parts_aside,
)

TABLE = "trainer.table."


def named(shard):
    return {f"{TABLE}{name}": np.array(x) for name, x in shard.state().items()}


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
        snapshot = load_own(tmp_path, 40, TABLE, rank, size)
        assert snapshot.arrays["dense0"].tolist() == [0, 1, 2] and snapshot.extra["a"] == 1
        shard.restore(part_of(snapshot.arrays, TABLE))
    assert contents(new) == contents(trained) and len(contents(new)) > 10


def test_one_process_reads_all_rows_and_others_read_its(tmp_path, trained):
    write(tmp_path, trained, 40)
    table = whole_table()
    table.restore(part_of(load_whole(tmp_path, 40, TABLE).arrays, TABLE))
    assert contents([table]) == contents(trained)
    save_snapshot(tmp_path, 50, named(table), {})
    new = shards_of(2)
    for rank, shard in enumerate(new):
        shard.restore(part_of(load_own(tmp_path, 50, TABLE, rank, 2).arrays, TABLE))
    assert contents(new) == contents(trained)


def test_a_server_needs_no_moments(tmp_path, trained):
    write(tmp_path, trained, 40)
    wanted = ("ids", "fields", "free", "numbers", "table0.w")
    found = load_whole(
        tmp_path, 40, TABLE, wanted=lambda name: name.removeprefix(TABLE) in wanted
    ).arrays
    assert set(found) == {f"{TABLE}{name}" for name in wanted}
    assert len(found[f"{TABLE}table0.w"]) == 3 + len(contents(trained))


def test_a_damaged_part_is_refused(tmp_path, trained):
    write(tmp_path, trained, 40)
    (tmp_path / WORKERS / "1-of-3" / "40" / f"{TABLE}ids.bin").write_bytes(b"")
    for size in (2, 3):
        with pytest.raises(InputError, match=r"1-of-3.*damaged"):
            load_own(tmp_path, 40, TABLE, 1, size)


def test_worker_0_writes_last_and_removes_old_parts(tmp_path, trained):
    writer, other = PartsWriter(tmp_path, 2, keep=1), part_folder(tmp_path, 1, 2)
    for number in (10, 20):
        writer.begin(number, named(trained[0]), {WORKERS: 2})
        assert writer.finished() is None and number not in numbers(tmp_path)
        thread = threading.Timer(0.1, save_snapshot, (other, number, named(trained[1]), {}))
        thread.start()
        assert writer.finished(wait=True) == number
        thread.join()
    assert numbers(tmp_path) == numbers(other) == [20]
    writer.begin(30, {}, {WORKERS: 2})
    writer.close()  # as when another worker was lost
    with pytest.raises(InputError, match="did not write snapshot 30"):
        writer.finished(wait=True)
    assert numbers(tmp_path) == [20]


def test_parts_go_with_their_snapshot(tmp_path, trained):
    for number in (10, 20, 30):
        write(tmp_path, trained, number)
    set_parts_aside(tmp_path, 30, "rolled-back")
    for rank in range(3):
        assert (part_folder(tmp_path, rank, 3) / "rolled-back-30").is_dir()
    remove_parts(tmp_path, lambda number: number > 10)
    assert sorted(numbers(tmp_path)) == [10, 20] and numbers(part_folder(tmp_path, 2, 3)) == [10]
