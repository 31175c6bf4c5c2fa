"""Measure the row kernels, and the machine's copy bandwidth in the same run.

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
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numba import njit, prange

from cowclip_merlin import choices
from cowclip_merlin.bench.random_data import (
    NUM_FIELDS,
    check_vocabulary_size,
    criteo_fields,
    random_rows,
)
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels import RowSettings, load
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.system.machine import processor
from cowclip_merlin.types import Array, JsonObject
from harness import Benchmark, in_turn, markdown

SETTINGS, D = RowSettings(l2=1e-4), 10
LEAST_SECONDS, MOST_CALLS = 0.02, 20  # in one round


@dataclass(frozen=True, kw_only=True)
class KernelSettings(Settings):
    """What is measured."""

    backend: str = option("auto", "auto: cupy on a GPU", choices=("auto", *choices.KERNEL_BACKENDS))
    batches: tuple[int, ...] = option(
        (1024, 8192, 65536), "rows", nargs="+", at_least=1, unique=True
    )
    gaps: tuple[int, ...] = option(
        (1, 10, 100, 1000), "steps to replay", nargs="+", at_least=1, unique=True
    )
    vocabulary: int = option(1_000_000, "ids of all fields together")
    rounds: int = option(5, "turns of every kernel", at_least=1)
    copy_mb: int = option(256, "megabytes of the array that is copied", at_least=1)

    def __post_init__(self) -> None:
        """Check each value, and that the fields can share the ids."""
        super().__post_init__()
        check_vocabulary_size("--vocabulary", self.vocabulary)


@njit(parallel=True)
def parallel_copy(source: Array, target: Array) -> None:
    """Copy with all threads."""
    for i in prange(len(source)):
        target[i] = source[i]


def seconds_of(run: Callable[[], object]) -> float:
    """Measure the time of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


class Backend(NamedTuple):
    """What runs the kernels, here the CPU.

    Attributes:
        name: of the kernels.
        to_device: makes an array there.
        copy: copies an array to another.
        seconds: measures the time of one call.
        hardware: describes it.
    """

    name: str = "numba"
    to_device: Callable[[Array], Array] = np.array
    copy: Callable[[Array, Array], None] = parallel_copy
    seconds: Callable[[Callable[[], object]], float] = seconds_of
    hardware: Callable[[], JsonObject] = processor


def gpu_backend(cupy: ModuleType) -> Backend:
    """Return the GPU; its own clock measures a call, including its waits for the host."""
    cuda = cupy.cuda

    def seconds(run: Callable[[], object]) -> float:
        start, end = cuda.Event(), cuda.Event()
        start.record()
        run()
        end.record()
        end.synchronize()
        return cuda.get_elapsed_time(start, end) / 1000

    def hardware() -> JsonObject:
        gpu = cuda.runtime.getDeviceProperties(cuda.Device().id)
        return processor() | {
            "gpu": gpu["name"].decode(),
            "gpu_memory_gb": round(gpu["totalGlobalMem"] / 1e9, 1),
            "cuda_driver": cuda.runtime.driverGetVersion(),
            "cuda_runtime": cuda.runtime.runtimeGetVersion(),
        }

    def copy(source: Array, target: Array) -> None:
        cupy.copyto(target, source)

    return Backend("cupy", cupy.asarray, copy, seconds, hardware)


def choose_backend(name: str) -> Backend:
    """Return the backend of a name; "auto" is cupy if it finds a GPU."""
    if name != "numba":
        with suppress(ImportError):
            cupy = import_module("cupy")
            if cupy.cuda.is_available():
                return gpu_backend(cupy)
    if name == "cupy":
        raise InputError(
            "--backend cupy: CuPy is not installed or finds no GPU: use --backend numba"
        )
    return Backend()


class KernelCase(NamedTuple):
    """A kernel with its input.

    Attributes:
        what: kernel, batch, n, u, and the gap of a replay.
        bytes: bytes that the kernel must read and write.
        run: the call.
        prepare: prepares a call, outside the timed part.
        steps: number of steps of single numbers in a replay.
    """

    what: JsonObject
    bytes: int
    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None
    steps: int = 0


def cases_of(backend: Backend, batch: int, settings: KernelSettings) -> list[KernelCase]:
    """Return all kernels on one batch."""
    fields, rng, d = criteo_fields(settings.vocabulary), np.random.default_rng(1), D
    kernels, to_device = load(backend.name), backend.to_device
    offsets = np.cumsum([0, *fields.values()])[:NUM_FIELDS].astype(np.int32)
    ids = to_device((random_rows(batch, fields).ids + offsets).ravel())
    n = len(ids)
    values = to_device(rng.normal(0, 1e-3, (n, d)).astype(np.float32))
    groups, rows = kernels.group_rows(ids), kernels.unique_rows(ids, values)
    u = len(groups.ids)
    w, m = (to_device(rng.normal(0, 1e-2, (u, d)).astype(np.float32)) for _ in range(2))
    v, last = to_device(np.full((u, d), 1e-4, np.float32)), to_device(np.zeros(u, np.int32))
    whole, row_wise = v.copy(), to_device(np.full((u, 1), 1e-4, np.float32))
    where = to_device(np.arange(u, dtype=np.int32))
    inputs = where, rows.g, groups.starts, 1e-4, SETTINGS
    sizes: dict[str, tuple[int, Callable[[], object]]] = {
        "group": (8 * n + 8 * u, lambda: kernels.group_rows(ids)),
        "unique": (
            4 * n + 4 * n * d + 8 * u + 4 * u * d,
            lambda: kernels.unique_rows(ids, values),
        ),
        "clip": (12 * u * d + 8 * u, lambda: kernels.clip_rows(rows.g, w, rows.cnt, SETTINGS)),
        "update": (
            4 * n + 4 * n * d + 24 * u * d + 8 * u,
            lambda: kernels.update_rows(w, m, v, groups, values, 1e-4, SETTINGS),
        ),
        "adam": (28 * u * d + 12 * u, lambda: kernels.step_rows(w, m, v, *inputs)),
        "adagrad": (20 * u * d + 12 * u, lambda: kernels.adagrad_rows(w, whole, *inputs)),
        "rowwise": (12 * u * d + 20 * u, lambda: kernels.adagrad_rows(w, row_wise, *inputs)),
    }
    what = {"batch": batch, "n": n, "u": u}
    cases = [KernelCase({"kernel": name} | what, *each) for name, each in sizes.items()]
    for gap in settings.gaps:
        alphas = to_device(np.full(gap, 1e-4, np.float32))
        replay = partial(kernels.replay_rows, w, m, v, last, alphas, gap, SETTINGS)
        about = {"kernel": "replay"} | what | {"gap": gap}
        size, numbers = 24 * u * d + 8 * u, u * d * gap
        cases.append(KernelCase(about, size, replay, lambda: last.fill(0), numbers))
    return cases


def time_case(backend: Backend, case: KernelCase) -> float:
    """Return the median seconds of a few calls."""
    times: list[float] = []
    while len(times) < MOST_CALLS and sum(times) < LEAST_SECONDS:
        case.prepare()
        times.append(backend.seconds(case.run))
    return statistics.median(times)


def measure(settings: KernelSettings) -> JsonObject:
    """Measure the copy, and every kernel at every batch; return a result for JSON."""
    backend = choose_backend(settings.backend)
    source = backend.to_device(np.ones(settings.copy_mb * 250_000, np.float32))
    copy = partial(backend.copy, source, source.copy())
    cases = [KernelCase({"kernel": "copy"}, 2 * source.nbytes, copy)]
    for batch in settings.batches:
        cases += cases_of(backend, batch, settings)
    calls = {i: partial(time_case, backend, case) for i, case in enumerate(cases)}
    times = in_turn(calls, settings.rounds, warm_up=1)  # the first round compiles
    speed = cases[0].bytes / statistics.median(times[0])
    return {
        "what": "row kernels",
        "backend": backend.name,
        "d": D,
        "vocabulary": settings.vocabulary,
        "rounds": settings.rounds,
        "results": [_result(case, times[i], speed) for i, case in enumerate(cases)],
        "hardware": backend.hardware(),
        "versions": {"numba": metadata.version("numba")},
    }


def _result(case: KernelCase, times: list[float], copy: float) -> JsonObject:
    seconds = statistics.median(times)
    result = case.what | {
        "ms": round(seconds * 1e3, 4),
        "fastest_ms": round(min(times) * 1e3, 4),
        "slowest_ms": round(max(times) * 1e3, 4),
        "bytes": case.bytes,
        "gb_per_second": round(case.bytes / seconds / 1e9, 3),
        "share_of_copy": round(case.bytes / seconds / copy, 4),
    }
    if case.steps:
        result["element_steps_per_second"] = round(case.steps / seconds)
    return result


def text(result: JsonObject) -> str:
    """Format the result as a table."""
    rows = [
        [
            *(str(r.get(name, "")) for name in ("kernel", "batch", "u", "gap")),
            f"{r['ms']:.3f}",
            f"{r['bytes'] / 1e6:.2f}",
            f"{r['gb_per_second']:.2f}",
            f"{r['share_of_copy']:.1%}",
            f"{r['element_steps_per_second'] / 1e9:.2f}" if "gap" in r else "",
        ]
        for r in result["results"]
    ]
    head = ("kernel", "batch", "distinct", "gap", "ms", "MB", "GB/s", "of copy", "Gsteps/s")
    kernels = f"{result['backend']} kernels, d = {result['d']}"
    return f"{markdown(head, 'lrrrrrrrr', rows)}\n{kernels}"


KERNELS = Benchmark(about=__doc__, settings=KernelSettings, measure=measure, text=text)
