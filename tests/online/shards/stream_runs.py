"""Runs of a stream by several workers in a folder."""

import json
import os
import shutil
from pathlib import Path
from unittest.mock import patch

import numpy as np
from processes import ONE_THREAD, failures, run_workers
from shard_steps import event

from cowclip_merlin.cli import main
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.training.run_snapshots import TABLE
from cowclip_merlin.tables.snapshot import load_part, load_snapshot, numbers, part_folder

FIRST, LAST, NEWEST = 700, 1000, 1200
FEATURES = """\
label: click
time: time
key: key
categorical:
- user
- {name: item, ttl: 200, admit: 2}
continuous:
- {name: price, transform: none, minimum: 0, maximum: 1}
"""
MORE = "- {name: site, admit: 2, optional: true}\ncontinuous:"
MORE_FEATURES = FEATURES.replace("continuous:", MORE)
SCRIPT = str(Path(__file__).parent / "stream_worker.py")


def write_events(folder, first, last, sites=None):
    """Append events, some of them twice, and a damaged message."""
    names = ("click", "time", "user", "item", "price")
    chosen = [*range(first, last), *range(first + 100, first + 110)]
    values = [{name: event(i)[name] for name in names} | {"key": f"k{i}"} for i in chosen]
    for value in values if sites else ():
        value["site"] = value["time"] % sites
    log = FileLog(folder / "events", create=True)
    log.append([b"no event", *(json.dumps(value).encode() for value in values)])
    (folder / "f.yaml").write_text(FEATURES)


def words(folder, run, *more):
    """The command that trains in `folder/run`."""
    return [
        "online", "train", "--from", str(folder / "events"), "--features", str(folder / "f.yaml"),
        "--out", str(folder / run), "--to", str(folder / f"{run}-sync"), "--model", "deepfm",
        "--batch-size", "64", "--base-batch-size", "64", "--mlp", "16,8", "--embedding-dim", "4",
        "--embedding-lr", "0.01", "--dense-lr", "0.01", "--r", "0.0005", "--max-wait", "0",
        "--capacity", "4000", "--sync-every", "0.2", "--snapshot-every", "0.3", "--until-end",
        *more,
    ]  # fmt: skip


def run(folder, name, workers, *before, more=()):
    """Train in several processes; return how they ended."""
    return run_workers(workers, [SCRIPT, *before, *words(folder, name, *more)], timeout=300)


def run_well(folder, name, workers, *more):
    """Train; one worker is this process, and the command itself starts three."""
    if workers != 2:
        with patch.dict(os.environ, ONE_THREAD if workers > 1 else {}):
            assert main(words(folder, name, *more, "--workers", str(workers))) == 0
        return
    ended = run(folder, name, workers, more=more)
    assert [each.code for each in ended] == [0] * workers, failures(ended)


def make(folder):
    """All runs: by one, two workers, a kill, and others that go on."""
    write_events(folder, 0, FIRST)
    for name, workers in (("one", 1), ("two", 2)):
        run_well(folder, name, workers)
    ended = run(folder, "killed", 2, "--kill", "1", "8")
    codes = [each.code for each in ended]
    (folder / "killed.json").write_text(json.dumps([codes, [each.output for each in ended]]))
    run_well(folder, "killed", 2)
    ended = run(folder, "full", 2, "--full", "1", more=("--snapshot-every", "0"))
    codes = [each.code for each in ended]
    (folder / "full.json").write_text(json.dumps([codes, [each.output for each in ended]]))
    for name in ("by_one", "by_three"):
        shutil.copytree(folder / "two", folder / name)
    shutil.copytree(folder / "one", folder / "one_at_first")
    write_events(folder, FIRST, LAST)
    for name, workers in (("one", 1), ("by_one", 1), ("by_three", 3)):
        run_well(folder, name, workers)
    make_with_more_columns(folder)


def make_with_more_columns(folder):
    """Two runs that get a column, which the messages of the log lack."""
    file = folder / "more.yaml"
    file.write_text(MORE_FEATURES)
    copies = {"more_by_one": ("one_at_first", 1), "more_by_two": ("two", 2)}
    for name, (before, _) in copies.items():
        shutil.copytree(folder / before, folder / name)
    for last in (LAST, NEWEST):
        for name, (_, workers) in copies.items():
            run_well(folder, name, workers, "--features", str(file))
        if last == LAST:
            write_events(folder, LAST, NEWEST, sites=9)


def state(run):
    """The newest snapshot of a run, with all rows by field and id."""
    folder = run / "snapshots"
    number = max(numbers(folder))
    arrays = load_part(folder, number, TABLE).arrays
    fields, ids = arrays["trainer.table.fields"], arrays["trainer.table.ids"]
    rows = np.flatnonzero(fields != 0xFFFF)
    order = rows[np.lexsort((ids[rows], fields[rows]))]
    by_row = ("trainer.table.table", "trainer.table.ids", "trainer.table.fields")
    by_row += ("trainer.table.last_seen",)
    found = {name: x[order] for name, x in arrays.items() if name.startswith(by_row)}
    others = ("trainer.dense", "trainer.optimizer", "repeats.")
    return number, found | {k: x for k, x in arrays.items() if k.startswith(others)}


def parts(run, workers):
    """The bytes of the newest snapshot, of each worker, but what servers have not acknowledged."""
    folder = run / "snapshots"
    number, found = max(numbers(folder)), []
    for rank in range(workers):
        arrays = load_snapshot(part_folder(folder, rank, workers), number).arrays
        found.append({k: x.tobytes() for k, x in arrays.items() if ".changes" not in k})
    return number, found
