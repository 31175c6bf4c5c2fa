"""Measure the row kernels, and the machine's copy bandwidth in the same run.

    python benchmarks/rows.py kernels [--backend auto|numba|cupy] [--batches 1024 8192 65536]
        [--gaps 1 10 100 1000] [--d 10] [--vocabulary 1000000] [--rounds 5] [--copy-mb 256]
        [--json FILE] [--overwrite]

Ids are Criteo-like: 26 fields, a power law, n = 26 * batch ids, u distinct. Bytes are the minimum
traffic of a kernel: each input read once, each output written once, indexes of 4 bytes.

- group: 8 n + 8 u (ids in; order, distinct ids and where they start out)
- unique: 4 n + 4 n d + 8 u + 4 u d (ids and gradients in; distinct ids, counts and sums out)
- clip: 12 u d + 8 u (g, w and counts in; g and factors out)
- update: 4 n + 4 n d + 24 u d + 8 u (order and gradients in; w, m and v in and out; starts in,
  factors out)
- adam, adagrad, rowwise: L2, clip and step on sums; 28 u d + 12 u, 20 u d + 12 u, 12 u d + 20 u
  (g, w and the optimizer's state in; w and the state out; rows and starts in, factors out)
- replay: 24 u d + 8 u (w, m, v and last in and out), for any number of replayed steps. Here all
  rows have missed the same number of steps.

Milliseconds are medians over rounds, in which every case has one turn. The time of a turn is the
median of its calls. On a GPU, CUDA's events measure the time. This benchmark does not import
TensorFlow.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata

import numpy as np

from cowclip_merlin import choices
from cowclip_merlin.bench.random_data import (
    NUM_FIELDS,
    check_vocabulary_size,
    criteo_fields,
    random_rows,
)
from cowclip_merlin.checks import check_at_least_one, check_unique
from cowclip_merlin.kernels import RowSettings, load
from cowclip_merlin.settings import option
from cowclip_merlin.types import JsonObject
from harness.benchmark import Benchmark
from harness.rounds import in_turn
from row_parts.kernel_timing import Backend, KernelCase, choose_backend, copy_case, time_case

SETTINGS = RowSettings(l2=1e-4)


@dataclass(frozen=True, kw_only=True)
class KernelSettings:
    """Settings of the measurement.

    Attributes:
        backend: "auto", "numba" or "cupy".
        batches: rows per batch.
        gaps: numbers of steps to replay.
        d: length of a row of the table.
        vocabulary: ids of all fields together.
        rounds: turns of every kernel.
        copy_mb: megabytes of the array that is copied to measure the bandwidth.

    Raises:
        InputError: if a value is out of range or given twice.
    """

    backend: str = option("auto", "auto: cupy on a GPU", choices=("auto", *choices.KERNEL_BACKENDS))
    batches: Sequence[int] = option((1024, 8192, 65536), "rows", nargs="+")
    gaps: Sequence[int] = option(
        (1, 10, 100, 1000), "numbers of steps to replay; without values: no replay", nargs="*"
    )
    d: int = option(10, "length of a row of the table")
    vocabulary: int = option(1_000_000, "ids of all fields together")
    rounds: int = option(5, "turns of every kernel")
    copy_mb: int = option(256, "megabytes of the array that is copied")

    def __post_init__(self) -> None:
        """Reject values that cannot be measured."""
        lists = {"--batches": self.batches, "--gaps": self.gaps}
        check_unique(lists)
        check_at_least_one(
            lists | {"--d": self.d, "--rounds": self.rounds, "--copy-mb": self.copy_mb}
        )
        check_vocabulary_size("--vocabulary", self.vocabulary)


def cases_of(backend: Backend, batch: int, settings: KernelSettings) -> list[KernelCase]:
    """Return all kernels on one batch."""
    fields, rng, d = criteo_fields(settings.vocabulary), np.random.default_rng(1), settings.d
    kernels, to_device = load(backend.name), backend.to_device
    offsets = np.cumsum([0, *fields.values()])[:NUM_FIELDS].astype(np.int32)
    ids = to_device((random_rows(batch, fields).ids + offsets).ravel())
    n = len(ids)
    values = to_device(rng.normal(0, 1e-3, (n, d)).astype(np.float32))
    groups = kernels.group_rows(ids)
    u = len(groups.ids)
    w, m = (to_device(rng.normal(0, 1e-2, (u, d)).astype(np.float32)) for _ in range(2))
    v, last = to_device(np.full((u, d), 1e-4, np.float32)), to_device(np.zeros(u, np.int32))
    rows = kernels.unique_rows(ids, values)
    sums = {"adagrad": v.copy(), "rowwise": to_device(np.full((u, 1), 1e-4, np.float32))}
    where = to_device(np.arange(u, dtype=np.int32))
    adagrad = kernels.adagrad_rows
    inputs = where, rows.g, groups.starts, 1e-4, SETTINGS
    what = {"batch": batch, "n": n, "u": u}

    def case(kernel: str, size: int, run: Callable[[], object]) -> KernelCase:
        return KernelCase({"kernel": kernel, **what}, size, 0, lambda: None, run)

    def replay(gap: int) -> KernelCase:
        alphas = to_device(np.full(gap, 1e-4, np.float32))
        return KernelCase(
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
        case("adam", 28 * u * d + 12 * u, lambda: kernels.step_rows(w, m, v, *inputs)),
        *(
            case(name, 4 * u * (3 * d + 2 * x.shape[1] + 3), partial(adagrad, w, x, *inputs))
            for name, x in sums.items()
        ),
        *(replay(gap) for gap in settings.gaps),
    ]


def measure(settings: KernelSettings) -> JsonObject:
    """Measure the copy, and every kernel at every batch; return a result for JSON."""
    backend = choose_backend(settings.backend)
    cases = [copy_case(backend, settings.copy_mb)]
    for batch in settings.batches:
        cases += cases_of(backend, batch, settings)
    return {
        "what": "row kernels",
        "backend": backend.name,
        **{name: getattr(settings, name) for name in ("d", "vocabulary", "rounds")},
        "results": results_of(backend, cases, settings.rounds),
        "hardware": backend.hardware(),
        "versions": {"numba": metadata.version("numba")},
    }


def results_of(backend: Backend, cases: list[KernelCase], rounds: int) -> list[JsonObject]:
    """Measure the median of every case; the first case is the copy."""
    calls = {i: partial(time_case, backend, case) for i, case in enumerate(cases)}
    times = in_turn(calls, rounds, warm_up=1)  # the first round compiles
    copy = cases[0].bytes / statistics.median(times[0]) / 1e9
    return [_result(case, times[i], copy) for i, case in enumerate(cases)]


def _result(case: KernelCase, times: list[float], copy: float) -> JsonObject:
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


def table(results: list[JsonObject]) -> str:
    """Format the results as a table."""
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


def text(result: JsonObject) -> str:
    """Format the result as text."""
    return f"{table(result['results'])}\n{result['backend']} kernels, d = {result['d']}"


BENCHMARK = Benchmark(
    script="rows.py kernels",
    about=__doc__,
    settings=KernelSettings,
    measure=measure,
    text=text,
    device=False,
)
