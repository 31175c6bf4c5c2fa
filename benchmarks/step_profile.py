"""Profile a training step by operation.

The step is that of `cowclip bench`, but with one step per call: random rows with power-law ids,
CowClip, Adam. For each batch size, --steps warm-up steps come first, so that rows miss some steps.
Then TensorFlow's profiler records --steps more.

The profile lists operations on the host, and on a GPU also kernels, with those of CuPy. Operations
run on several threads, so their times overlap, and their sum can exceed the step. With a GPU, the
host's operations only launch kernels. Profiled steps are a little slower than others.

The profiler writes an `XSpace`: planes (the host, each GPU) of lines (threads, streams) of events.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cowclip_merlin import choices, compat
from cowclip_merlin.bench.random_data import criteo_fields, random_rows
from cowclip_merlin.loading import DeviceData
from cowclip_merlin.settings import device_option, option
from cowclip_merlin.types import JsonObject
from harness import Benchmark, batch_sizes
from steps import Trained, VocabulariesChecked

if TYPE_CHECKING:
    from tensorflow.core.profiler.protobuf.xplane_pb2 import XLine, XPlane, XSpace

POOL = 8  # batches of the largest size before rows repeat
TOP, WIDTH = 20, 74  # operations and kernels shown, and characters of their names

# "name:OpType"; names with a space or "::" are events of the runtime. Functions are none: their
# operations have separate events, maybe on other threads.
_OPERATION = re.compile(
    r"[^:\s]+:(?!(Stateful)?PartitionedCall$|(Stateless)?(While|If|Case)$)[A-Za-z_]\w*"
)
_COPY = re.compile(r"\[?(?:CUDA )?memcpy ?([HDP])(?:to|2)([HDP])\]?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ProfileSettings(VocabulariesChecked):
    """What is profiled."""

    batches: tuple[int, ...] = batch_sizes(1024, 65536)
    update: str = option("exact", "update of the tables", choices=choices.UPDATES)
    precision: str = option("float32", "of the hidden layers", choices=choices.PRECISIONS)
    vocabulary: int = option(1_000_000, "ids of all fields together")
    steps: int = option(30, "number of warm-up and of profiled steps", at_least=1)
    device: str = device_option()


class Event(NamedTuple):
    """An event of the profiler: name, start and duration in picoseconds."""

    name: str
    start: int
    duration: int


def kind_of(event: str) -> str:
    """Return the type of an operation, and whether it is part of the gradients.

    >>> kind_of("gradient_tape/deep_fm/dense/MatMul:_MklMatMul"), kind_of("deep_fm/Concat:ConcatV2")
    ('MatMul, backward', 'ConcatV2')
    """
    scope, _, kind = event.rpartition(":")
    return kind.removeprefix("_Mkl") + ", backward" * scope.startswith("gradient_tape/")


def is_operation(event: Event) -> bool:
    """Whether an event of the host is an operation of the graph, not a call of a function.

    >>> [is_operation(Event(n, 0, 1)) for n in ("Sum_1:Sum", "ExecutorState::Process", "step")]
    [True, False, False]
    """
    return _OPERATION.fullmatch(event.name) is not None


def outermost(events: Iterable[Event]) -> list[Event]:
    """Return the events that do not begin within another one.

    >>> outermost([Event("b", 2, 3), Event("a", 0, 9), Event("c", 9, 1)])
    [Event(name='a', start=0, duration=9), Event(name='c', start=9, duration=1)]
    """
    kept: list[Event] = []
    for event in sorted(events, key=lambda e: (e.start, -e.duration)):
        if not kept or event.start >= kept[-1].start + kept[-1].duration:
            kept.append(event)
    return kept


def union(events: Iterable[Event]) -> int:
    """Return the picoseconds in which at least one event was running.

    >>> union([Event("a", 0, 4), Event("b", 2, 4), Event("c", 10, 1)])
    7
    """
    total = end = 0
    for event in sorted(events, key=lambda e: e.start):
        until = event.start + event.duration
        total += max(0, until - max(end, event.start))
        end = max(end, until)
    return total


def copy_kind(name: str) -> str | None:
    """Return the direction of a CUDA copy; None for kernels.

    >>> copy_kind("MemcpyH2D"), copy_kind("[CUDA memcpy DtoH]"), copy_kind("sgemm_128x64")
    ('HtoD', 'DtoH', None)
    """
    found = _COPY.fullmatch(name)
    return f"{found[1]}to{found[2]}" if found else None


def _events(plane: XPlane, line: XLine) -> Iterator[Event]:
    for event in line.events:
        # Details such as the number of the step follow after a "#".
        name = plane.event_metadata[event.metadata_id].name.partition("#")[0]
        yield Event(name, 1000 * line.timestamp_ns + event.offset_ps, event.duration_ps)


def totals(events: Iterable[Event], name: Callable[[str], str], steps: int) -> list[JsonObject]:
    """Return milliseconds and calls per step for each result of `name`, longest first.

    >>> totals([Event("a", 0, 10**9), Event("a", 9, 10**9)], str, 2)
    [{'name': 'a', 'ms': 1.0, 'calls': 1.0}]
    """
    durations: dict[str, list[int]] = defaultdict(list)
    for event in events:
        durations[name(event.name)].append(event.duration)
    found = [
        {"name": n, "ms": sum(d) / 1e9 / steps, "calls": len(d) / steps}
        for n, d in durations.items()
    ]
    return sorted(found, key=lambda total: (-total["ms"], total["name"]))


def times_of(space: XSpace, steps: int, ms: float) -> JsonObject:
    """Return the times per step by type, by name and by GPU, for JSON.

    An operation within another one on the same thread, as in a Python call, is a part of that one.
    """
    host = [
        event
        for plane in space.planes
        if plane.name.startswith("/host:CPU")
        for line in plane.lines
        for event in outermost(filter(is_operation, _events(plane, line)))
    ]
    gpus = [plane for plane in space.planes if plane.name.startswith("/device:GPU:")]
    return {
        "kinds": totals(host, kind_of, steps),
        "operations": totals(host, str, steps),
        "gpus": [_gpu(plane, steps, ms) for plane in gpus],
    }


def _gpu(plane: XPlane, steps: int, ms: float) -> JsonObject:
    """Sum kernels and copies on the streams; other lines repeat them by operation or module."""
    streams = [line for line in plane.lines if line.name.startswith("Stream")]
    events = [event for line in streams for event in _events(plane, line)]
    busy = union(events) / 1e9 / steps
    return {
        "device": plane.name,
        "busy_ms": busy,
        "busy_share": busy / ms,
        "kernels": totals((e for e in events if not copy_kind(e.name)), str, steps),
        "copies": totals(
            (e for e in events if copy_kind(e.name)), lambda n: str(copy_kind(n)), steps
        ),
    }


def measure(settings: ProfileSettings) -> JsonObject:
    """Profile the step at every batch size; return a result for JSON."""
    fields = criteo_fields(settings.vocabulary)
    rows = random_rows(POOL * max(settings.batches), fields)
    run = Trained(DeviceData(rows), fields, settings.update, precision=settings.precision)
    results = [{"batch": b, "profile": _profile(settings, run, b)} for b in settings.batches]
    return {"what": "training step: time by operation", **asdict(settings), "results": results}


def _profile(settings: ProfileSettings, run: Trained, batch: int) -> JsonObject:
    """Profile some steps after a warm-up; return the values per step."""
    order = np.random.default_rng(batch).permutation(run.data.rows)
    batches = cycle(order[: len(order) // batch * batch].reshape(-1, batch))

    def train() -> float:
        started = time.perf_counter()
        for _ in range(settings.steps):
            run.step(next(batches))
            run.wait()
        return 1000 * (time.perf_counter() - started) / settings.steps

    train()
    with TemporaryDirectory() as folder:
        with compat.tensorflow().profiler.experimental.Profile(folder):
            ms = train()
        (file, *_) = sorted(Path(folder).rglob("*.xplane.pb"))
        space = compat.xplane().XSpace.FromString(file.read_bytes())
    return {"steps": settings.steps, "ms": ms} | times_of(space, settings.steps, ms)


def text(result: JsonObject) -> str:
    """Format the whole result, batch by batch."""
    parts = []
    for found in result["results"]:
        profile = found["profile"]
        parts += [
            f"{result['update']}, {result['precision']}, {result['vocabulary']:,} ids, batch "
            f"{found['batch']:,}: {profile['steps']} profiled steps of {profile['ms']:.2f} ms",
            _table("types of operations", [*profile["kinds"], _sum("all", profile["kinds"])]),
            _table("longest operations", profile["operations"][:TOP]),
        ]
        for gpu in profile["gpus"]:
            share = f"{gpu['busy_ms']:.3f} ms of a step, {gpu['busy_share']:.0%}"
            parts += [f"{gpu['device']}: busy for {share}", _table("copies", gpu["copies"])]
            kernels = [*gpu["kernels"][:TOP], _sum("all kernels", gpu["kernels"])]
            parts.append(_table("kernels", kernels))
        if result["device"] == "gpu" and not any(gpu["kernels"] for gpu in profile["gpus"]):
            parts.append("The profiler saw no kernel: CUPTI is missing or not permitted.")
    return "\n\n".join(parts)


def _table(head: str, rows: Sequence[JsonObject]) -> str:
    lines = [f"{head:<{WIDTH}}{'ms per step':>12}{'calls per step':>14}"]
    for row in rows:
        name = row["name"]  # layer and operation are at the end of a long one
        name = name if len(name) < WIDTH else f"{name[:24]}...{name[29 - WIDTH :]}"
        lines.append(f"{name:<{WIDTH}}{row['ms']:>12.3f}{row['calls']:>14.1f}")
    return "\n".join(lines)


def _sum(name: str, rows: Sequence[JsonObject]) -> JsonObject:
    return {"name": name} | {key: sum(row[key] for row in rows) for key in ("ms", "calls")}


PROFILE = Benchmark(about=__doc__, settings=ProfileSettings, measure=measure, text=text)
