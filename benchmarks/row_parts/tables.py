"""Speed of growing tables on one thread, beside TensorFlow's DenseHashTable; memory of a stream.

    python benchmarks/rows.py tables [--sizes 1048576 4194304 16777216] [--lookups 1000000]
        [--batch 4096] [--stream 5000000] [--snapshot-rows 1000000] [--tfra-python PYTHON]
        [--json FILE] [--overwrite]

Ids are random 64-bit numbers of 26 fields. These speeds are of ids and row numbers only, without
embedding rows; "snapshot" says how fast rows are created. They are named by what is done with ids:

- insert: new ids, into an index that grows from 16 cells; without first values
- reserved: new ids, into an index that has its cells from the start (`max_rows`)
- lookup, zipf, absent: rows of known ids at random, of known ids by a Zipf law of 1.2, of others
- admit: `GrowingTable.admit` of known ids
- refuse: `GrowingTable.admit` of new ids whose counters refuse them
- dense insert, dense lookup: the same ids in `tf.lookup.experimental.DenseHashTable`,
  which one thread runs, too

- tfra insert, tfra lookup, tfra zipf: the same ids in the CuckooHashTable of TensorFlow
  Recommenders-Addons, on one thread. `--tfra-python` is the bin/python of an environment of its
  own, made with `pip install tensorflow-recommenders-addons==0.8.1 tensorflow==2.16.2`

"slice" is a call of `expire` in which all of 100,000 rows go. "stream" sends new ids only, of which
a tenth live at a time; its memory is that of the process, and its pauses are those of a batch of
`--batch` events of one field and of a slice. CPU seconds are those of the process.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cowclip_merlin.checks import check_at_least_one
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import option
from cowclip_merlin.system.machine import resident_megabytes
from cowclip_merlin.tables.growing_table import SLICE, GrowingTable
from cowclip_merlin.tables.id_map import zeros
from cowclip_merlin.tables.initial_rows import RowMemory
from cowclip_merlin.tables.layout import FieldRules
from cowclip_merlin.tables.snapshot import SnapshotWriter, load_snapshot, save_snapshot
from harness.benchmark import Benchmark
from harness.tables import markdown
from row_parts.id_timing import Result, in_batches, speed, timed
from row_parts.other_tables import dense_speeds, tfra_speeds

FIELDS, D = 26, 10


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """What is measured.

    Attributes:
        sizes: ids in the table.
        lookups: ids that are looked up.
        batch: events of a batch.
        stream: new ids of the stream.
        snapshot_rows: rows of the snapshot.
        tfra_python: interpreter that has TensorFlow Recommenders-Addons; None to leave it out.

    Raises:
        InputError: a number is below 1, or there is no such interpreter.
    """

    sizes: tuple[int, ...] = option((1 << 20, 1 << 22, 1 << 24), "ids in the table", nargs="+")
    lookups: int = option(1_000_000, "ids that are looked up")
    batch: int = option(4096, "events of a batch")
    stream: int = option(5_000_000, "new ids of the stream")
    snapshot_rows: int = option(1_000_000, "rows of the snapshot")
    tfra_python: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        if self.tfra_python is not None and shutil.which(self.tfra_python) is None:
            raise InputError(f"--tfra-python {self.tfra_python}: no such program")
        names = ("lookups", "batch", "stream", "snapshot_rows")
        check_at_least_one({"--sizes": self.sizes} | {f"--{n}": getattr(self, n) for n in names})


def random_ids(rng: np.random.Generator, n: int) -> np.ndarray:
    """Ids of about n / 26 events, int64 [b, 26]."""
    return rng.integers(0, 1 << 62, (max(n // FIELDS, 1), FIELDS))


def picked(ids: np.ndarray, events: np.ndarray) -> np.ndarray:
    """Known ids: of each field those of other events."""
    return np.take_along_axis(ids, events % len(ids), axis=0)


def compile_loops() -> None:
    """Run every loop once, outside the clock."""
    table = GrowingTable([FieldRules(admit=2, ttl=1)], memory=row_memory(9), capacity=9, max_rows=2)
    for now in range(9):
        table.admit(np.array([[now], [now]]), now)
        table.lookup(np.array([[now]]))
        table.expire()


def row_memory(capacity: int) -> list[RowMemory]:
    """Memory for weights and moments, as TensorFlow's variables would have it."""
    w, m, v = (zeros((capacity, D), np.float32) for _ in range(3))
    return [RowMemory(w=w, slots={"m": m, "v": v}, std=0.01, seed=1)]


def speeds(size: int, settings: TableSettings) -> list[Result]:
    """All measurements of tables with this many ids, without embedding rows."""
    rng = np.random.default_rng(1)
    ids = random_ids(rng, size)
    shape = (max(settings.lookups // FIELDS, 1), FIELDS)
    known = picked(ids, rng.integers(0, len(ids), shape))
    zipf = picked(ids, rng.zipf(1.2, shape))
    other = random_ids(rng, settings.lookups)
    capacity = size + FIELDS

    def rates(cases: dict[str, tuple[Callable[[np.ndarray], object], np.ndarray]]) -> list[Result]:
        return [
            speed(what, size, x.size, lambda c=call, x=x: in_batches(c, x, settings.batch))
            for what, (call, x) in cases.items()
        ]

    def admit(table: GrowingTable, now: int = 0) -> Callable[[np.ndarray], object]:
        return lambda x: table.admit(x, now)

    made = GrowingTable([FieldRules()] * FIELDS, memory=[], capacity=capacity, max_rows=size)
    results = rates({"reserved": (admit(made), ids)})
    del made
    rules = [FieldRules(ttl=1)] * FIELDS
    table = GrowingTable(rules, memory=[], capacity=capacity)
    cases = {
        "insert": (admit(table), ids),
        "lookup": (table.lookup, known),
        "zipf": (table.lookup, zipf),
        "absent": (table.lookup, other),
        "admit": (admit(table), known),
    }
    results += rates(cases)
    strict = GrowingTable([FieldRules(admit=255)] * FIELDS, memory=[], capacity=1 << 10)
    results += rates({"refuse": (admit(strict), other)})
    others = dense_speeds(size, ids, known, settings.batch)
    if settings.tfra_python is not None:
        others += tfra_speeds(
            settings.tfra_python, size, batch=settings.batch, ids=ids, known=known, zipf=zipf
        )
    return [*results, *others, slices(table, size, ids)]


def slices(table: GrowingTable, size: int, ids: np.ndarray) -> Result:
    """Seconds of the calls of `expire` that drop all ids but one event's."""
    table.admit(ids[:1], 1)
    times = [timed(table.expire) for _ in range(-(-size // SLICE))]
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


def stream(settings: TableSettings) -> Result:
    """New ids without an end: memory and pauses."""
    n, alive = settings.stream, max(settings.stream // 10, 1)
    bound = alive + alive // 5 + 10 * settings.batch
    before, memory = resident_megabytes(), row_memory(bound + 1)
    table = GrowingTable([FieldRules(ttl=alive)], memory=memory, capacity=bound + 1, max_rows=bound)
    admits, expires, sizes, most = [], [], [], 0
    for first in range(0, n, settings.batch):
        ids = np.arange(first, min(first + settings.batch, n))
        admits.append(timed(lambda ids=ids: table.admit(ids[:, None], ids)))
        expires.append(timed(table.expire))
        most = max(most, table.num_rows)
        sizes.append(resident_megabytes() - before)
    settled = sizes[2 * len(sizes) // 10 :]  # from twice the time to live on
    return {
        "what": "stream",
        "ids": n,
        "alive": alive,
        "bound": bound,
        "most_rows": most,
        "mb_after_two_ttl": round(settled[0], 1),
        "most_mb": round(max(settled), 1),
        "slowest_admit_ms": round(1e3 * max(t[0] for t in admits), 2),
        "slowest_admit_cpu_ms": round(1e3 * max(t[1] for t in admits), 2),
        "slowest_expire_ms": round(1e3 * max(t[0] for t in expires), 2),
        "slowest_expire_cpu_ms": round(1e3 * max(t[1] for t in expires), 2),
        "ids_per_second": round(n / sum(t[0] for t in admits + expires)),
    }


def snapshot(rows: int) -> Result:
    """Seconds to save and to load rows, moments and ids, flushed to the disk and checked.

    A training on a stream pauses for a copy only, and writes it in the background.
    """
    memory = row_memory(rows + 1)
    table = GrowingTable([FieldRules()], memory=memory, capacity=rows + 1, max_rows=rows)
    first = speed("create", rows, rows, lambda: table.admit(np.arange(rows)[:, None], 0))
    state = table.state()
    with TemporaryDirectory(dir=".") as folder:
        save = timed(lambda: save_snapshot(Path(folder), 1, state, None))
        load = timed(lambda: load_snapshot(Path(folder)))
        writer = SnapshotWriter(Path(folder))
        pause = timed(lambda: writer.begin(2, state, None))
        behind = timed(lambda: writer.finished(wait=True))
        writer.close()
    sizes = {"rows": rows, "mb": round(sum(x.nbytes for x in state.values()) / 1e6)}
    created = {"rows_created_per_cpu_second": first["ids_per_cpu_second"]}
    seconds = {"save": save, "load": load, "pause": pause, "background": behind}
    seconds = {f"{name}_seconds": round(each[0], 2) for name, each in seconds.items()}
    return {"what": "snapshot"} | sizes | created | seconds


def measure(settings: TableSettings) -> Result:
    """All of it."""
    compile_loops()
    streamed, saved = stream(settings), snapshot(settings.snapshot_rows)
    results = [each for size in settings.sizes for each in speeds(size, settings)]
    return {"what": "growing tables", "results": [*results, streamed, saved]}


def text(result: Result) -> str:
    """The results as text: a table of speeds, then a line for each other."""
    rates = [r for r in result["results"] if "ids_per_cpu_second" in r]
    rows = [
        (
            r["what"],
            f"{r['ids']:,}",
            f"{r['ids_per_second'] / 1e6:.1f}",
            f"{r['ids_per_cpu_second'] / 1e6:.1f}",
        )
        for r in rates
    ]
    head = ("what", "ids in the table", "M ids/s", "M ids per CPU second")
    others = [
        ", ".join(f"{key} {value}" for key, value in r.items())
        for r in result["results"]
        if r not in rates
    ]
    return "\n".join([markdown(head, "lrrr", rows), "", *others])


def _add_python(parser: argparse.ArgumentParser) -> None:
    what = "bin/python of an environment with TensorFlow Recommenders-Addons"
    parser.add_argument("--tfra-python", metavar="PYTHON", help=what)


BENCHMARK = Benchmark(
    script="rows.py tables",
    about=__doc__,
    settings=TableSettings,
    measure=measure,
    text=text,
    device=False,
    add_options=_add_python,
    read_options=lambda args: {"tfra_python": args.tfra_python},
)
