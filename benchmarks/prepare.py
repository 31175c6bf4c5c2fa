"""Compare `prepare` with plain pandas on the same files, and with itself on Dask workers.

    python benchmarks/prepare.py [--rows 1000000] [--runs 5] [--workers 1,2] [--work DIR]
        [--json FILE] [--overwrite]

prepare and pandas read a generated Criteo-format log and split it by the same hash. They learn ids
by descending frequency and min-max on the training rows, and write parquet. Every run is a separate
process, and the two alternate. With several sizes, such as --rows 1000000,4000000, each is measured
in turn.

With --workers, `prepare` also runs on Dask clusters on this machine, whose workers are processes
with one thread. They load this package before the run. 0 workers: threads of the process itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from cowclip_merlin.checks import check_at_least_one, check_unique
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import option, parse_integers
from cowclip_merlin.synthetic.criteo_log import generate
from cowclip_merlin.types import Json, JsonObject
from harness.benchmark import Benchmark
from harness.rounds import in_turn, ratios
from harness.tables import markdown

OURS = "import sys; from cowclip_merlin.cli import main; sys.exit(main(sys.argv[1:]))"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(parse_integers("--workers", text, like="1,2")) if text else ()


@dataclass(frozen=True, kw_only=True)
class PrepareBenchmarkSettings:
    """Settings of the measurement.

    Attributes:
        rows: rows of the generated logs.
        runs: runs of each program.
        workers: numbers of Dask workers to compare, on the first log.
        work: folder of the logs and outputs.

    Raises:
        InputError: if a number is out of range or given twice.
    """

    rows: tuple[int, ...] = option((1_000_000,), "of the generated logs")
    runs: int = option(5, "of each side")
    workers: tuple[int, ...] = option((), "also run on this many Dask workers", convert=_numbers)
    work: Path = option(Path("work/prepare"), "folder of the logs and outputs")

    def __post_init__(self) -> None:
        """Reject values that cannot be measured."""
        numbers = {"--rows": self.rows, "--workers": self.workers}
        check_at_least_one(numbers | {"--runs": self.runs})
        check_unique(numbers)


def with_pandas(log: Path, out: Path) -> None:
    """Prepare with pandas, with the whole file in memory."""
    import csv

    import numpy as np
    import pandas as pd

    from cowclip_merlin.workflows.raw.log_format import CRITEO
    from cowclip_merlin.workflows.train_test_split import Split, is_test

    types = dict.fromkeys(CRITEO.categorical, str) | dict.fromkeys(CRITEO.continuous, float)
    names = list(CRITEO.file_columns)
    frame = pd.read_csv(
        log,
        sep="\t",
        header=None,
        names=names,
        dtype=types,
        # As `prepare`: only an empty cell is missing, and quotes belong to the value.
        keep_default_na=False,
        na_values=[""],
        quoting=csv.QUOTE_NONE,
    )
    test = is_test(np.arange(len(frame), dtype=np.uint64), Split(test_fraction=0.1))
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


def same(ours: Path, theirs: Path) -> bool:
    """Return whether both wrote the same ids, labels and numbers."""
    import pandas as pd

    for name in ("train", "test"):
        a, b = (pd.read_parquet(folder / name) for folder in (ours, theirs))
        if not all(abs(a[column] - b[column]).max() < 1e-6 for column in b):
            return False
    return True


def same_apart(ours: Path, theirs: Path) -> bool:
    """Call `same` in a process of its own, because children start with the peak of their parent."""
    command = [sys.executable, __file__, "--same", str(ours), str(theirs)]
    return subprocess.run(command, check=False).returncode == 0


def timed(command: list[str], log: Path) -> tuple[float, float]:
    """Measure the seconds and the peak memory in MB of one process.

    Args:
        command: command of the process.
        log: file for its output.

    Raises:
        InputError: if the process failed; the message has its last line.
    """
    started = time.perf_counter()
    with log.open("w", encoding="utf-8") as words:
        # In a separate process group, so that only this process receives Ctrl-C.
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=words, start_new_session=True
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    if status:
        last = (log.read_text(encoding="utf-8").strip().splitlines() or ["it printed no error"])[-1]
        raise InputError(f"{log.stem}: a run failed: {last}")
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def measure(log: Path, out: Path, who: str, *more: str) -> tuple[float, float]:
    """Measure one run of "ours", with more options, or of "pandas" into a new folder."""
    shutil.rmtree(out, ignore_errors=True)
    if who == "pandas":
        command = [sys.executable, __file__, "--pandas", str(log), str(out)]
    else:
        command = [sys.executable, "-c", OURS, "prepare", "criteo", str(log), "--out", str(out)]
    return timed([*command, *more], out.with_suffix(".log"))


def measure_workers(log: Path, out: Path, workers: int) -> tuple[float, float]:
    """Measure the seconds and the largest peak memory in MB of a Dask worker.

    With 0 workers, the memory is that of the process.
    """
    if not workers:
        return measure(log, out, "ours")
    from distributed import Client, LocalCluster

    start = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    with (
        LocalCluster(**start, env={"TF_USE_LEGACY_KERAS": "1"}) as cluster,
        Client(cluster) as client,
    ):
        client.run(import_module, "cowclip_merlin.workflows.categorify")
        seconds, _ = measure(log, out, "ours", "--scheduler", cluster.scheduler_address)
        peaks = client.run(_peak_mb)
    return seconds, max(peaks.values())


def _peak_mb() -> float:
    """Return the peak memory of this process; `getrusage` would include the one that started it."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def same_files(one: Path, other: Path) -> bool:
    """Return whether all parquet files of two prepared folders have the same bytes."""
    found = [{f.relative_to(x): f.read_bytes() for f in x.rglob("*.parquet")} for x in (one, other)]
    return found[0] == found[1]


def made(work: Path, rows: int) -> Path:
    """Return the generated log of this size; create it if it is missing."""
    log = work / f"log-{rows}.txt"
    if not log.exists():
        generate(log, rows=rows, seed=11)
    return log


def compare(settings: PrepareBenchmarkSettings, rows: int) -> JsonObject:
    """Measure prepare and pandas on a log of this size."""
    log = made(settings.work, rows)
    with TemporaryDirectory(dir=settings.work) as folder:
        outs = {who: Path(folder) / who for who in ("ours", "pandas")}
        runs = {who: partial(measure, log, out, who) for who, out in outs.items()}
        found = in_turn(runs, settings.runs, progress=True)
        equal = same_apart(outs["ours"], outs["pandas"])
    about = {"rows": rows, "text_mb": round(log.stat().st_size / 1e6, 1), "same_output": equal}
    return about | {"prepare": _recorded(found["ours"]), "pandas": _recorded(found["pandas"])}


def compare_workers(settings: PrepareBenchmarkSettings) -> JsonObject:
    """Measure prepare on each number of Dask workers."""
    log = made(settings.work, settings.rows[0])
    with TemporaryDirectory(dir=settings.work) as folder:
        outs = {workers: Path(folder) / f"{workers}" for workers in (0, *settings.workers)}
        runs = {n: partial(measure_workers, log, out, n) for n, out in outs.items()}
        found = in_turn(runs, settings.runs, progress=True)
        equal = all(same_files(outs[0], out) for out in outs.values())
    each = [{"workers": n} | _recorded(results) for n, results in found.items()]
    return {"rows": settings.rows[0], "same_bytes": equal, "runs": each}


def _recorded(results: Sequence[tuple[float, float]]) -> dict[str, list[float]]:
    seconds, peaks = zip(*results, strict=True)
    return {"seconds": [round(s, 2) for s in seconds], "peak_mb": [round(p) for p in peaks]}


def run(settings: PrepareBenchmarkSettings) -> Mapping[str, Json]:
    """Measure all that the settings ask for."""
    settings.work.mkdir(parents=True, exist_ok=True)
    result: JsonObject = {"sizes": [compare(settings, rows) for rows in settings.rows]}
    if settings.workers:
        result["workers"] = compare_workers(settings)
    return result


def _spread(numbers: Sequence[float], digits: int = 1) -> str:
    low, high = min(numbers), max(numbers)
    return f"{statistics.median(numbers):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def text(result: JsonObject) -> str:
    """Return the result as Markdown tables: medians with the range, and the largest memory."""
    head = ("rows", "MB of text", "prepare s", "pandas s", "prepare / pandas")
    rows = []
    for size in result["sizes"]:
        ours, pandas = size["prepare"], size["pandas"]
        shares = ratios(ours["seconds"], pandas["seconds"])
        times = [_spread(ours["seconds"]), _spread(pandas["seconds"]), _spread(shares, 2)]
        peaks = [f"{max(who['peak_mb']):,}" for who in (ours, pandas)]
        equal = "yes" if size["same_output"] else "NO"
        rows.append([f"{size['rows']:,}", f"{size['text_mb']:,.0f}", *times, *peaks, equal])
    found = markdown((*head, "peak MB, prepare", "peak MB, pandas", "same output"), "r" * 8, rows)
    if "workers" not in result:
        return found
    workers = result["workers"]
    head = ("Dask workers", "s", "peak MB of one")
    rows = [
        [str(each["workers"]), _spread(each["seconds"]), f"{max(each['peak_mb']):,}"]
        for each in workers["runs"]
    ]
    equal = f"{workers['rows']:,} rows; same bytes in all parquet files: {workers['same_bytes']}"
    return "\n".join([found, "", equal, "", markdown(head, "rrr", rows)])


BENCHMARK = Benchmark(
    script=__file__,
    about=__doc__,
    settings=PrepareBenchmarkSettings,
    measure=run,
    text=text,
    device=False,
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--pandas"]:  # a run of `measure`
        with_pandas(*map(Path, sys.argv[2:]))
    elif sys.argv[1:2] == ["--same"]:  # of `same_apart`
        sys.exit(not same(*map(Path, sys.argv[2:])))
    else:
        BENCHMARK.main()
