"""Speed of growing tables on one thread, beside TensorFlow's DenseHashTable.

Ids are random 64-bit numbers of 26 fields. These speeds are of ids and row numbers only, without
embedding rows; "snapshot" says how fast rows are created. They are named by what is done with ids:

- insert: new ids, into an index that grows from 16 cells; without first values
- reserved: new ids, into an index that has its cells from the start (`max_rows`)
- lookup, zipf, absent: rows of known ids at random, of known ids by a Zipf law of 1.2, of others
- admit: `GrowingTable.admit` of known ids
- refuse: `GrowingTable.admit` of new ids whose counters refuse them
- dense insert, dense lookup: the same ids in `tf.lookup.experimental.DenseHashTable`,
  which one thread runs, too

"slice" is a call of `expire` in which all of 100,000 rows go. CPU seconds are those of the process.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.tables.growing_table import SLICE, GrowingTable
from cowclip_merlin.tables.id_map import zeros
from cowclip_merlin.tables.initial_rows import RowMemory
from cowclip_merlin.tables.layout import FieldRules
from cowclip_merlin.tables.snapshot import load_snapshot, save_snapshot
from cowclip_merlin.tables.snapshot_writer import SnapshotWriter
from cowclip_merlin.types import JsonObject
from harness import Benchmark, markdown

FIELDS, D = 26, 10


@dataclass(frozen=True, kw_only=True)
class TableSettings(Settings):
    """What is measured."""

    sizes: tuple[int, ...] = option(
        (1 << 20, 1 << 22, 1 << 24), "ids in the table", nargs="+", at_least=1
    )
    lookups: int = option(1_000_000, "ids that are looked up", at_least=1)
    batch: int = option(4096, "events of a batch", at_least=1)
    snapshot_rows: int = option(1_000_000, "rows of the snapshot", at_least=1)


def seconds_of(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and CPU seconds."""
    clock, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - clock, time.process_time() - cpu


def speed(
    what: str, size: int, call: Callable[[np.ndarray], object], ids: np.ndarray, batch: int
) -> JsonObject:
    """Ids per second of calls with a batch of events at a time."""

    def run() -> None:
        for first in range(0, len(ids), batch):
            call(ids[first : first + batch])

    seconds, cpu = seconds_of(run)
    rates = {"ids_per_second": ids.size / seconds, "ids_per_cpu_second": ids.size / cpu}
    rounded = {name: round(rate) for name, rate in rates.items()}
    return {"what": what, "ids": size, "n": ids.size} | rounded


def random_ids(rng: np.random.Generator, n: int) -> np.ndarray:
    """Ids of about n / 26 events, int64 [b, 26]."""
    return rng.integers(0, 1 << 62, (max(n // FIELDS, 1), FIELDS))


def row_memory(capacity: int) -> list[RowMemory]:
    """Memory for weights and moments, as TensorFlow's variables would have it."""
    w, m, v = (zeros((capacity, D), np.float32) for _ in range(3))
    return [RowMemory(w=w, slots={"m": m, "v": v}, std=0.01, seed=1)]


def compile_loops() -> None:
    """Run every loop once, outside the clock."""
    table = GrowingTable([FieldRules(admit=2, ttl=1)], memory=row_memory(9), capacity=9, max_rows=2)
    for now in range(9):
        table.admit(np.array([[now], [now]]), now)
        table.lookup(np.array([[now]]))
        table.expire()


def speeds(size: int, settings: TableSettings) -> list[JsonObject]:
    """All measurements of tables with this many ids, without embedding rows."""
    rng = np.random.default_rng(1)
    ids = random_ids(rng, size)
    shape = (max(settings.lookups // FIELDS, 1), FIELDS)
    known, zipf = (  # of each field the ids of other events
        np.take_along_axis(ids, events % len(ids), axis=0)
        for events in (rng.integers(0, len(ids), shape), rng.zipf(1.2, shape))
    )
    other = random_ids(rng, settings.lookups)

    def rate(what: str, call: Callable[[np.ndarray], object], x: np.ndarray) -> JsonObject:
        return speed(what, size, call, x, settings.batch)

    def empty(capacity: int = size + FIELDS, **rules: int) -> GrowingTable:
        return GrowingTable([FieldRules(**rules)] * FIELDS, memory=[], capacity=capacity)

    made = GrowingTable([FieldRules()] * FIELDS, memory=[], capacity=size + FIELDS, max_rows=size)
    results = [rate("reserved", partial(made.admit, now=0), ids)]
    del made
    table, strict = empty(ttl=1), empty(1 << 10, admit=255)
    for what, call, x in (
        ("insert", partial(table.admit, now=0), ids),
        ("lookup", table.lookup, known),
        ("zipf", table.lookup, zipf),
        ("absent", table.lookup, other),
        ("admit", partial(table.admit, now=0), known),
        ("refuse", partial(strict.admit, now=0), other),
    ):
        results.append(rate(what, call, x))
    tf = compat.tensorflow()
    dense = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.int64, default_value=-1, empty_key=-1, deleted_key=-2
    )
    dense.insert(tf.constant([5], tf.int64), tf.constant([5], tf.int64))
    results += [
        rate("dense insert", lambda x: dense.insert(*[tf.constant(x.ravel())] * 2), ids),
        rate("dense lookup", lambda x: dense.lookup(tf.constant(x.ravel())), known),
    ]
    return [*results, slices(table, size, ids)]


def slices(table: GrowingTable, size: int, ids: np.ndarray) -> JsonObject:
    """Seconds of the calls of `expire` that drop all ids but one event's."""
    table.admit(ids[:1], 1)
    times = [seconds_of(table.expire) for _ in range(-(-size // SLICE))]
    times = times[: max(size // SLICE, 1)]  # the last one may be short
    clock, cpu = ([1e3 * t[i] for t in times] for i in (0, 1))
    return {
        "what": "slice",
        "ids": size,
        "slices": len(times),
        "ms": round(statistics.median(clock), 2),
        "slowest_ms": round(max(clock), 2),
        "cpu_ms": round(statistics.median(cpu), 2),
        "slowest_cpu_ms": round(max(cpu), 2),
    }


def snapshot(rows: int) -> JsonObject:
    """Seconds to save and to load rows, moments and ids, flushed to the disk and checked.

    A training on a stream pauses for a copy only, and writes it in the background.
    """
    memory = row_memory(rows + 1)
    table = GrowingTable([FieldRules()], memory=memory, capacity=rows + 1, max_rows=rows)
    _, cpu = seconds_of(lambda: table.admit(np.arange(rows)[:, None], 0))
    state = table.state()
    with TemporaryDirectory(dir=".") as folder:
        save = seconds_of(lambda: save_snapshot(Path(folder), 1, state, {}))
        load = seconds_of(lambda: load_snapshot(Path(folder)))
        writer = SnapshotWriter(Path(folder))
        pause = seconds_of(lambda: writer.begin(2, state, {}))
        behind = seconds_of(lambda: writer.finished(wait=True))
        writer.close()
    seconds = {"save": save, "load": load, "pause": pause, "background": behind}
    return {
        "what": "snapshot",
        "rows": rows,
        "mb": round(sum(x.nbytes for x in state.values()) / 1e6),
        "rows_created_per_cpu_second": round(rows / cpu),
    } | {f"{name}_seconds": round(each[0], 2) for name, each in seconds.items()}


def measure(settings: TableSettings) -> JsonObject:
    """All of it."""
    compile_loops()
    saved = snapshot(settings.snapshot_rows)
    results = [each for size in settings.sizes for each in speeds(size, settings)]
    return {"what": "growing tables", "results": [*results, saved]}


def text(result: JsonObject) -> str:
    """The results as text: a table of speeds, then a line for each other."""
    rates = [r for r in result["results"] if "ids_per_cpu_second" in r]
    keys = ("ids_per_second", "ids_per_cpu_second")
    rows = [(r["what"], f"{r['ids']:,}", *(f"{r[key] / 1e6:.1f}" for key in keys)) for r in rates]
    head = ("what", "ids in the table", "M ids/s", "M ids per CPU second")
    others = [
        ", ".join(f"{key} {value}" for key, value in r.items())
        for r in result["results"]
        if r not in rates
    ]
    return "\n".join([markdown(head, "lrrr", rows), "", *others])


TABLES = Benchmark(about=__doc__, settings=TableSettings, measure=measure, text=text)
