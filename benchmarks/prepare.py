"""Compare `prepare` with plain pandas on the same file: time and peak memory.

    python benchmarks/prepare.py [--rows 1000000] [--runs 5] [--work DIR]
    python benchmarks/prepare.py --memory 1000000 2000000 4000000 [--work DIR]

Both read a generated Criteo-format log and split it by the same hash. They learn ids by descending
frequency and min-max on the training rows, and write parquet. Every run is a separate process, and
the two alternate.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from cowclip_merlin.checks import check_at_least_one, check_unique
from cowclip_merlin.errors import InputError
from cowclip_merlin.synthetic.criteo_log import generate
from cowclip_merlin.system.versions import versions
from harness.errors import one_line_errors
from harness.options import add_options, make_parser, option, settings_from
from harness.rounds import in_turn, ratios

OURS = "import sys; from cowclip_merlin.cli import main; sys.exit(main(sys.argv[1:]))"


@dataclass(frozen=True, kw_only=True)
class PrepareBenchmarkSettings:
    """Settings of the measurement.

    Attributes:
        rows: rows of the generated log.
        runs: runs of each program.
        memory: sizes of logs to measure peak memory with, instead of time.
        work: folder of the logs and outputs.

    Raises:
        InputError: if a number is out of range or given twice.
    """

    rows: int = option(1_000_000, "of the generated log", kind=int)
    runs: int = option(5, "of each side", kind=int)
    memory: Sequence[int] = ()
    work: Path = option(Path("work/prepare"), "folder of the logs and outputs")

    def __post_init__(self) -> None:
        """Reject values that cannot be measured."""
        check_at_least_one({"--rows": self.rows, "--runs": self.runs, "--memory": self.memory})
        check_unique({"--memory": self.memory})


def with_pandas(log: Path, out: Path) -> None:
    """Prepare with pandas, with the whole file in memory."""
    import numpy as np
    import pandas as pd

    from cowclip_merlin.workflows.raw.log_format import CRITEO
    from cowclip_merlin.workflows.raw.train_test_split import Split, is_test

    types = dict.fromkeys(CRITEO.categorical, str) | dict.fromkeys(CRITEO.continuous, float)
    frame = pd.read_csv(log, sep="\t", header=None, names=list(CRITEO.file_columns), dtype=types)
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


def measure(log: Path, out: Path, who: str) -> tuple[float, float]:
    """Measure one run of "ours" or "pandas" into a new folder."""
    shutil.rmtree(out, ignore_errors=True)
    if who == "pandas":
        command = [sys.executable, __file__, "--pandas", str(log), str(out)]
    else:
        command = [sys.executable, "-c", OURS, "prepare", "criteo", str(log), "--out", str(out)]
    return timed(command, out.with_suffix(".log"))


def made(work: Path, rows: int) -> Path:
    """Return the generated log of this size; create it if it is missing."""
    log = work / f"log-{rows}.txt"
    if not log.exists():
        generate(log, rows=rows, seed=11)
    return log


def compare(settings: PrepareBenchmarkSettings) -> None:
    """Print the medians of both, and of the ratio of each run."""
    log = made(settings.work, settings.rows)
    with TemporaryDirectory(dir=settings.work) as folder:
        outs = {who: Path(folder) / who for who in ("ours", "pandas")}
        runs = {who: partial(measure, log, out, who) for who, out in outs.items()}
        found = in_turn(runs, settings.runs)
        print(f"same output: {same(outs['ours'], outs['pandas'])}")
    seconds = {who: [run[0] for run in runs] for who, runs in found.items()}
    for who, times in seconds.items():
        print(
            f"{who:>8}: median {statistics.median(times):.1f} s, "
            f"{min(times):.1f} to {max(times):.1f}"
        )
    shares = ratios(seconds["ours"], seconds["pandas"])
    print(
        f"ours / pandas: median {statistics.median(shares):.2f}, "
        f"{min(shares):.2f} to {max(shares):.2f}"
    )


def memory(work: Path, sizes: Sequence[int]) -> None:
    """Print the peak memory of both for each size."""
    print("| rows | MB of text | peak MB, prepare | peak MB, pandas |\n|---:|---:|---:|---:|")
    for rows in sizes:
        log = made(work, rows)
        with TemporaryDirectory(dir=work) as folder:
            peak = {who: measure(log, Path(folder) / who, who)[1] for who in ("ours", "pandas")}
        size = log.stat().st_size / 1e6
        print(
            f"| {rows:,} | {size:,.0f} | {peak['ours']:,.0f} | {peak['pandas']:,.0f} |", flush=True
        )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    made = make_parser(__doc__, device=False, json=False)
    add_options(made, PrepareBenchmarkSettings)
    what = "measure peak memory on logs of these sizes, instead of time"
    made.add_argument("--memory", type=int, nargs="+", metavar="ROWS", help=what)
    made.add_argument("--pandas", type=Path, nargs=2, help=argparse.SUPPRESS)
    return made


def read_settings(args: argparse.Namespace) -> PrepareBenchmarkSettings:
    """Read the settings from the command line."""
    if args.memory and (args.rows, args.runs) != (None, None):
        raise InputError("--rows and --runs are for the time; omit them with --memory")
    return settings_from(args, PrepareBenchmarkSettings, memory=tuple(args.memory or ()))


@one_line_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """Compare time or memory."""
    args = parser().parse_args(arguments)
    if args.pandas:
        with_pandas(*args.pandas)
        return
    settings = read_settings(args)
    settings.work.mkdir(parents=True, exist_ok=True)
    if settings.memory:
        memory(settings.work, settings.memory)
    else:
        compare(settings)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; {versions()}")


if __name__ == "__main__":
    main()
