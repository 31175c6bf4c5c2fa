"""Compare `prepare` with plain pandas and polars.

All read a generated Criteo-format log and split it by the same hash. They learn ids by descending
frequency and min-max on the training rows, and write parquet. Every run is a separate process, and
they alternate. With several sizes, such as --rows 1000000,4000000, each is measured in turn. polars
takes part if it is installed (`pip install polars`). --without pandas leaves it out, as its memory
may not suffice.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cowclip_merlin.settings import Settings, option, parse_names
from cowclip_merlin.synthetic.criteo_log import generate
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows.ingest import Split, is_test
from cowclip_merlin.workflows.raw.log_format import CRITEO
from harness import COWCLIP, Benchmark, in_turn, markdown, ratios, run_timed, spread

OTHERS = ("pandas", "polars")


@dataclass(frozen=True, kw_only=True)
class PrepareBenchmarkSettings(Settings):
    """What is measured."""

    rows: tuple[int, ...] = option((1_000_000,), "of the generated logs", at_least=1, unique=True)
    runs: int = option(5, "of each side", at_least=1)
    work: Path = option(Path("work/prepare"), "folder of the logs and outputs")
    without: tuple[str, ...] = option(
        (), "leave out pandas or polars", convert=parse_names, choices=OTHERS, metavar="A,B"
    )

    @property
    def others(self) -> list[str]:
        """The other programs that take part."""
        return [who for who in OTHERS if who not in self.without and find_spec(who)]


def _test_rows(count: int) -> np.ndarray:
    return is_test(np.arange(count, dtype=np.uint64), Split(test_fraction=0.1))


def with_pandas(log: Path, out: Path) -> None:
    """Prepare with pandas, with the whole file in memory."""
    import csv

    import pandas as pd

    types = dict.fromkeys(CRITEO.categorical, str) | dict.fromkeys(CRITEO.continuous, float)
    # As `prepare`: only an empty cell is missing, and quotes belong to the value.
    cells = {"keep_default_na": False, "na_values": [""], "quoting": csv.QUOTE_NONE}
    names = list(CRITEO.file_columns)
    frame = pd.read_csv(log, sep="\t", header=None, names=names, dtype=types, **cells)
    test = _test_rows(len(frame))
    parts = {"train": frame[~test].copy(), "test": frame[test].copy()}
    for column in CRITEO.categorical:
        counts = parts["train"][column].value_counts()
        order = counts.rename_axis("value").reset_index(name="n")
        order = order.sort_values(["n", "value"], ascending=[False, True])
        ids = pd.Series(np.arange(3, 3 + len(order)), index=order["value"])
        for part in parts.values():
            missing = part[column].isna()
            part[column] = part[column].map(ids).fillna(2).astype(np.int32).mask(missing, 1)
    for column in CRITEO.continuous:
        filled = {name: part[column].fillna(0) for name, part in parts.items()}
        low, high = filled["train"].min(), filled["train"].max()
        for name, part in parts.items():
            part[column] = ((filled[name] - low) / (high - low)).astype(np.float32)
    for name, part in parts.items():
        (out / name).mkdir(parents=True)
        part.to_parquet(out / name / "part-00000.parquet", index=False)


def with_polars(log: Path, out: Path) -> None:
    """Prepare with polars, with the whole file in memory and on all cores."""
    import polars as pl

    types = dict.fromkeys(CRITEO.categorical, pl.String)
    types |= dict.fromkeys(CRITEO.continuous, pl.Float64) | {CRITEO.label: pl.Int8}
    schema = {name: types[name] for name in CRITEO.file_columns}
    options = {"separator": "\t", "has_header": False, "null_values": [""], "quote_char": None}
    frame = pl.read_csv(log, schema=schema, **options)
    test = pl.Series(_test_rows(len(frame)))
    parts = {"train": frame.filter(~test), "test": frame.filter(test)}
    del frame
    for column in CRITEO.categorical:
        counts = parts["train"][column].drop_nulls().value_counts(name="n")
        order = counts.sort(["n", column], descending=[True, False])[column]
        ids = pl.Series(np.arange(3, 3 + len(order), dtype=np.int32))
        known = pl.col(column).replace_strict(order, ids, default=2, return_dtype=pl.Int32)
        ids_or_missing = pl.when(pl.col(column).is_null()).then(1).otherwise(known)
        new = ids_or_missing.cast(pl.Int32).alias(column)
        parts = {name: part.with_columns(new) for name, part in parts.items()}
    numbers = pl.col(CRITEO.continuous).fill_null(0)
    low, high = (
        parts["train"].select(each).row(0, named=True) for each in (numbers.min(), numbers.max())
    )
    scaled = [
        ((pl.col(c).fill_null(0) - low[c]) / (high[c] - low[c])).cast(pl.Float32)
        for c in CRITEO.continuous
    ]
    for name, part in parts.items():
        (out / name).mkdir(parents=True)
        file = out / name / "part-00000.parquet"
        part.with_columns(scaled).write_parquet(file, compression="snappy")  # as pandas


def same(ours: Path, theirs: Path) -> bool:
    """Return whether both wrote the same ids, labels and numbers."""
    import pandas as pd

    for name in ("train", "test"):
        a, b = (pd.read_parquet(folder / name) for folder in (ours, theirs))
        # As arrays: pandas would leave out rows that only one of them has, and missing numbers.
        if len(a) != len(b) or not all(np.abs(a[c].values - b[c].values).max() < 1e-6 for c in b):
            return False
    return True


def same_apart(ours: Path, theirs: Path) -> bool:
    """Call `same` in a process of its own, because children start with the peak of their parent."""
    command = [sys.executable, __file__, "--same", str(ours), str(theirs)]
    return subprocess.run(command, check=False).returncode == 0


def run_once(log: Path, out: Path, who: str) -> tuple[float, float, float]:
    """Measure one run of "prepare", or of another program, into a new folder."""
    shutil.rmtree(out, ignore_errors=True)
    if who in OTHERS:
        command = [sys.executable, __file__, f"--{who}", str(log), str(out)]
    else:
        command = [sys.executable, "-c", COWCLIP, "prepare", "criteo", str(log), "--out", str(out)]
    return run_timed(command, out.with_suffix(".log"))


def made(work: Path, rows: int) -> Path:
    """Return the generated log of this size; create it if it is missing."""
    log = work / f"log-{rows}.txt"
    if not log.exists():
        generate(log, rows=rows, seed=11)
    return log


def compare(settings: PrepareBenchmarkSettings, rows: int) -> JsonObject:
    """Measure all programs on a log of this size."""
    log = made(settings.work, rows)
    with TemporaryDirectory(dir=settings.work) as folder:
        outs = {who: Path(folder) / who for who in ("prepare", *settings.others)}
        runs = {who: partial(run_once, log, out, who) for who, out in outs.items()}
        found = in_turn(runs, settings.runs)
        ours = outs.pop("prepare")
        equal = all(same_apart(ours, out) for out in outs.values())
    about = {"rows": rows, "text_mb": round(log.stat().st_size / 1e6, 1), "same_output": equal}
    return about | {who: _recorded(results) for who, results in found.items()}


def _recorded(results: Sequence[tuple[float, float, float]]) -> dict[str, list[float]]:
    seconds, peaks, cpu = zip(*results, strict=True)
    each = {"seconds": seconds, "cpu_seconds": cpu}
    rounded = {name: [round(s, 2) for s in numbers] for name, numbers in each.items()}
    return rounded | {"peak_mb": [round(p) for p in peaks]}


def measure(settings: PrepareBenchmarkSettings) -> JsonObject:
    """Measure all sizes."""
    settings.work.mkdir(parents=True, exist_ok=True)
    return {
        "sizes": [compare(settings, rows) for rows in settings.rows],
        "other_versions": {who: version(who) for who in settings.others},
    }


def text(result: JsonObject) -> str:
    """Return the result as a Markdown table: medians with the range, and the largest memory."""
    head = ("rows", "program", "s", "prepare / program", "CPU s", "peak MB", "same output")
    rows = []
    for size in result["sizes"]:
        for who in ("prepare", *OTHERS):
            if each := size.get(who):
                share = spread(ratios(size["prepare"]["seconds"], each["seconds"]), 2)
                peak, equal = f"{max(each['peak_mb']):,}", "yes" if size["same_output"] else "NO"
                times = spread(each["seconds"]), share, spread(each["cpu_seconds"])
                rows.append([f"{size['rows']:,}", who, *times, peak, equal])
    return markdown(head, "rlrrrrr", rows)


BENCHMARK = Benchmark(about=__doc__, settings=PrepareBenchmarkSettings, measure=measure, text=text)

if __name__ == "__main__":
    if sys.argv[1:2] in (["--pandas"], ["--polars"]):  # of `run_once`
        run_other = with_pandas if sys.argv[1] == "--pandas" else with_polars
        run_other(*map(Path, sys.argv[2:]))
    elif sys.argv[1:2] == ["--same"]:  # of `same_apart`
        sys.exit(not same(*map(Path, sys.argv[2:])))
    else:
        BENCHMARK.main()
