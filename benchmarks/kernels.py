"""Speed of the row kernels, beside the copy bandwidth that the machine shows in the same run.

    python benchmarks/kernels.py [--backend auto|numba|cupy] [--batches 1024 8192 65536]
        [--gaps 1 10 100 1000] [--d 10] [--vocabulary 1000000] [--rounds 5] [--copy-mb 256]
        [--json FILE] [--overwrite]

Ids are Criteo-like: 26 fields, power law, n = 26 * batch of them, u distinct. Bytes are those that
a kernel cannot avoid: each input read once, each output written once, indexes of 4 bytes.

- group: 8 n + 8 u (ids in; order, distinct ids and where they start out)
- unique: 4 n + 4 n d + 8 u + 4 u d (ids and gradients in; distinct ids, counts and sums out)
- clip: 12 u d + 8 u (g, w and counts in; g and factors out)
- update: 4 n + 4 n d + 24 u d + 8 u (order and gradients in; w, m and v in and out; starts in,
  factors out)
- replay: 24 u d + 8 u (w, m, v and last in and out), however many steps are replayed; all rows
  have missed the same number here

Milliseconds are medians over rounds in which every case has its turn; a turn's time is the median
of its calls. On a GPU the clock is CUDA's events. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np
from circumstances import circumstances, finish, load_now
from kernel_sides import Cupy, Numba, choose
from prompt import option, orderly, parser, refuse_no_files

from cowclip_merlin.bench.random_data import FIELDS, enough_ids, field_sizes, random_rows
from cowclip_merlin.checks import at_least_one, once
from cowclip_merlin.kernels import RowSettings, load

SETTINGS = RowSettings(l2=1e-4)
LEAST_SECONDS, MOST_CALLS = 0.02, 20  # of a turn


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        what: kernel, batch, and for replay the gap; with n and u.
        bytes: that the kernel must move; see above.
        steps: steps of single numbers, for replay.
        before: what makes a call ready, outside the clock.
        run: the call.
    """

    what: dict[str, Any]
    bytes: int
    steps: int
    before: Callable[[], Any]
    run: Callable[[], Any]


def cases_of(
    side: Numba | Cupy, batch: int, d: int, vocabulary: int, gaps: list[int]
) -> list[Case]:
    """All kernels on one batch."""
    kernels, sizes, rng = load(side.name), field_sizes(vocabulary), np.random.default_rng(1)
    offsets = np.cumsum([0, *sizes.values()])[:FIELDS].astype(np.int32)
    ids = side.put((random_rows(batch, sizes).ids + offsets).ravel())
    n = len(ids)
    values = side.put(rng.normal(0, 1e-3, (n, d)).astype(np.float32))
    groups = kernels.group_rows(ids)
    u = len(groups.ids)
    w, m = (side.put(rng.normal(0, 1e-2, (u, d)).astype(np.float32)) for _ in range(2))
    v, last = side.put(np.full((u, d), 1e-4, np.float32)), side.put(np.zeros(u, np.int32))
    rows = kernels.unique_rows(ids, values)
    what = {"batch": batch, "n": n, "u": u}

    def case(kernel: str, size: int, run: Callable[[], Any]) -> Case:
        return Case({"kernel": kernel, **what}, size, 0, lambda: None, run)

    def replay(gap: int) -> Case:
        alphas = side.put(np.full(gap, 1e-4, np.float32))
        return Case(
            {"kernel": "replay", **what, "gap": gap},
            24 * u * d + 8 * u,
            u * d * gap,
            lambda: last.fill(0),
            lambda: kernels.replay_rows(w, m, v, last, alphas, gap, SETTINGS),
        )

    return [
        case("group", 8 * n + 8 * u, lambda: kernels.group_rows(ids)),
        case(
            "unique",
            4 * n + 4 * n * d + 8 * u + 4 * u * d,
            lambda: kernels.unique_rows(ids, values),
        ),
        case("clip", 12 * u * d + 8 * u, lambda: kernels.clip_rows(rows.g, w, rows.cnt, SETTINGS)),
        case(
            "update",
            4 * n + 4 * n * d + 24 * u * d + 8 * u,
            lambda: kernels.update_rows(w, m, v, groups, values, 1e-4, SETTINGS),
        ),
        *(replay(gap) for gap in gaps),
    ]


def copy_case(side: Numba | Cupy, megabytes: int) -> Case:
    """A copy, to measure the bandwidth that is to be had."""
    source = side.put(np.ones(megabytes * 250_000, np.float32))
    target = source.copy()
    size = 2 * source.nbytes
    return Case({"kernel": "copy"}, size, 0, lambda: None, lambda: side.copy(source, target))


def turn(side: Numba | Cupy, case: Case) -> float:
    """Median seconds of a few calls."""
    times: list[float] = []
    while len(times) < MOST_CALLS and sum(times) < LEAST_SECONDS:
        case.before()
        times.append(side.seconds(case.run))
    return statistics.median(times)


def measure(side: Numba | Cupy, cases: list[Case], rounds: int) -> list[dict[str, Any]]:
    """Medians of every case; the first case is the copy."""
    times: list[list[float]] = [[] for _ in cases]
    for k in range(rounds + 1):
        for case, mine in zip(cases, times, strict=True):
            seconds = turn(side, case)
            if k:  # the first round compiles
                mine.append(seconds)
    copy = cases[0].bytes / statistics.median(times[0]) / 1e9
    return [_result(case, mine, copy) for case, mine in zip(cases, times, strict=True)]


def _result(case: Case, times: list[float], copy: float) -> dict[str, Any]:
    seconds = statistics.median(times)
    speed = case.bytes / seconds / 1e9
    result = case.what | {
        "ms": round(seconds * 1e3, 4),
        "fastest_ms": round(min(times) * 1e3, 4),
        "slowest_ms": round(max(times) * 1e3, 4),
        "bytes": case.bytes,
        "gb_per_second": round(speed, 3),
        "share_of_copy": round(speed / copy, 4),
    }
    if case.steps:
        result["element_steps_per_second"] = round(case.steps / seconds)
    return result


def table(results: list[dict[str, Any]]) -> str:
    """The results as text."""
    lines = [
        f"{'kernel':<8}{'batch':>8}{'distinct':>10}{'gap':>6}{'ms':>11}{'MB':>9}{'GB/s':>9}"
        f"{'of copy':>9}{'Gsteps/s':>10}"
    ]
    for r in results:
        steps = r.get("element_steps_per_second")
        lines.append(
            f"{r['kernel']:<8}{r.get('batch', ''):>8}{r.get('u', ''):>10}{r.get('gap', ''):>6}"
            f"{r['ms']:>11.3f}{r['bytes'] / 1e6:>9.2f}{r['gb_per_second']:>9.2f}"
            f"{r['share_of_copy']:>9.1%}" + (f"{steps / 1e9:>10.2f}" if steps else "")
        )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    made = parser(__doc__, device=False)
    backends, add = ("auto", "numba", "cupy"), partial(option, made)
    made.add_argument("--backend", default="auto", choices=backends, help="auto: cupy on a GPU")
    batches, gaps = [1024, 8192, 65536], [1, 10, 100, 1000]
    made.add_argument("--batches", type=int, nargs="+", default=batches, metavar="N", help="rows")
    what = "steps that a replay makes up; none: no replay"
    made.add_argument("--gaps", type=int, nargs="*", default=gaps, metavar="N", help=what)
    add("--d", 10, "length of a row of the table")
    add("--vocabulary", 1_000_000, "ids of all fields together")
    add("--rounds", 5, "turns of every kernel")
    add("--copy-mb", 256, "megabytes of the array that is copied")
    return made


def _check(args: argparse.Namespace) -> None:
    lists = {"--batches": args.batches, "--gaps": args.gaps}
    once(lists)
    at_least_one(lists | {"--d": args.d, "--rounds": args.rounds, "--copy-mb": args.copy_mb})
    enough_ids("--vocabulary", args.vocabulary)
    refuse_no_files(args.json, overwrite=args.overwrite)


@orderly()
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write."""
    args = _parser().parse_args(arguments)
    _check(args)
    busy, side = load_now(), choose(args.backend)
    cases = [copy_case(side, args.copy_mb)]
    for batch in args.batches:
        cases += cases_of(side, batch, args.d, args.vocabulary, args.gaps)
    result = {"what": "row kernels", "backend": side.name}
    result |= {"d": args.d, "vocabulary": args.vocabulary, "rounds": args.rounds}
    result |= {"results": measure(side, cases, args.rounds)}
    result |= circumstances(__file__, arguments, busy, machine=side.hardware())
    result["versions"]["numba"] = metadata.version("numba")
    finish(result, f"{table(result['results'])}\n{side.name} kernels, d = {args.d}", args.json)


if __name__ == "__main__":
    main()
