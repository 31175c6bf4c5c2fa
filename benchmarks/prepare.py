"""`prepare` against plain pandas doing the same job on the same file; and its memory.

    python benchmarks/prepare.py [--rows 1000000] [--runs 5]
    python benchmarks/prepare.py --memory 1000000 2000000 4000000

Both sides read a generated Criteo-format log, split it by the same hash, learn ids by falling
frequency and min-max on the training rows, and write parquet. Every run is a process of its own,
the two in turn.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from cowclip_merlin.generate import generate
from cowclip_merlin.training.records import versions

OURS = "import sys; from cowclip_merlin.cli import main; sys.exit(main(sys.argv[1:]))"


def with_pandas(log: Path, out: Path) -> None:
    """The same job, whole file in memory."""
    import numpy as np
    import pandas as pd

    from cowclip_merlin.workflows.layout import CRITEO
    from cowclip_merlin.workflows.split import Split, is_test

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
    """Whether both wrote the same ids, labels and numbers."""
    import pandas as pd

    for name in ("train", "test"):
        a, b = (pd.read_parquet(folder / name) for folder in (ours, theirs))
        if not all(abs(a[column] - b[column]).max() < 1e-6 for column in b):
            return False
    return True


def timed(command: list[str]) -> tuple[float, float]:
    """Seconds, and peak memory in MB, of one process."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} ended with {status}")
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def measure(log: Path, out: Path, who: str) -> tuple[float, float]:
    """One run of "ours" or "pandas" into a fresh folder."""
    shutil.rmtree(out, ignore_errors=True)
    if who == "pandas":
        return timed([sys.executable, __file__, "--pandas", str(log), str(out)])
    arguments = ["prepare", "criteo", str(log), "--out", str(out)]
    return timed([sys.executable, "-c", OURS, *arguments])


def made(work: Path, rows: int) -> Path:
    """The generated log of this size."""
    log = work / f"log-{rows}.txt"
    if not log.exists():
        generate(log, rows=rows, seed=11)
    return log


def compare(work: Path, rows: int, runs: int) -> None:
    """Print medians of both, and of the ratio run by run."""
    log, seconds = made(work, rows), {"ours": [], "pandas": []}
    for _ in range(runs):
        for who, times in seconds.items():
            times.append(measure(log, work / who, who)[0])
    print(f"same output: {same(work / 'ours', work / 'pandas')}")
    for who, times in seconds.items():
        print(
            f"{who:>8}: median {statistics.median(times):.1f} s, "
            f"{min(times):.1f} to {max(times):.1f}"
        )
    ratios = [a / b for a, b in zip(seconds["ours"], seconds["pandas"], strict=True)]
    print(
        f"ours / pandas: median {statistics.median(ratios):.2f}, "
        f"{min(ratios):.2f} to {max(ratios):.2f}"
    )


def memory(work: Path, sizes: list[int]) -> None:
    """Print peak memory of both for each size."""
    print("| rows | MB of text | peak MB, prepare | peak MB, pandas |\n|---:|---:|---:|---:|")
    for rows in sizes:
        log = made(work, rows)
        peak = {who: measure(log, work / who, who)[1] for who in ("ours", "pandas")}
        size = log.stat().st_size / 1e6
        print(
            f"| {rows:,} | {size:,.0f} | {peak['ours']:,.0f} | {peak['pandas']:,.0f} |", flush=True
        )


def main() -> None:
    """Compare times, or memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--memory", type=int, nargs="+", metavar="ROWS")
    parser.add_argument("--work", type=Path, default=Path("work/prepare"))
    parser.add_argument("--pandas", type=Path, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.pandas:
        with_pandas(*args.pandas)
        return
    args.work.mkdir(parents=True, exist_ok=True)
    if args.memory:
        memory(args.work, args.memory)
    else:
        compare(args.work, args.rows, args.runs)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; {versions()}")


if __name__ == "__main__":
    main()
