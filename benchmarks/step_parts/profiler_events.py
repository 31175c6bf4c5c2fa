"""Read the events of TensorFlow's profiler: operations on the host, kernels and copies on GPUs.

The profiler writes an `XSpace`: planes (the host, each GPU) of lines (threads, streams) of events.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cowclip_merlin import compat
from cowclip_merlin.types import JsonObject

if TYPE_CHECKING:
    from tensorflow.core.profiler.protobuf.xplane_pb2 import XLine, XPlane, XSpace

# "name:OpType"; names with a space or "::" are events of the runtime, not operations.
_OPERATION = re.compile(r"([^:\s]+):([A-Za-z_]\w*)")
# Calls of functions: their operations have separate events, maybe on other threads.
_ENCLOSING = {"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", "If"}
_ENCLOSING |= {"StatelessIf", "Case", "StatelessCase"}
_COPY = re.compile(r"\[?(?:CUDA )?memcpy ?([HDP])(?:to|2)([HDP])\]?", re.IGNORECASE)

FORWARD, BACKWARD = "matrix products, forward", "matrix products, backward"
ACTIVATION = "bias, ReLU (where not in a product), gradients"
CATCH_UP, UPDATE = "row kernels: missed steps", "row kernels: sums, clip, Adam"
ELEMENTWISE = "elementwise and sums: FM, first order, crosses"
GATHER = "gathers, concatenation, slices"
ROWS = "tables, without Python: unique, scatter, arithmetic"
ADAM = "Adam of dense weights (update dense: tables too)"
CAST, REST = "casts", "rest"
GROUPS = (
    FORWARD, BACKWARD, ACTIVATION, CATCH_UP, UPDATE, ELEMENTWISE, GATHER, ROWS, ADAM, CAST, REST,
)  # fmt: skip
_OPERATIONS = {"CowClipCatchUp": CATCH_UP, "CowClipStep": UPDATE}
_KINDS = (
    (ACTIVATION, r"BiasAdd|BiasAddGrad|Relu|ReluGrad"),
    (GATHER, r"ResourceGather|GatherV2|ConcatV2|Slice|StridedSlice"),
    (ROWS, r"Unique\w*|UnsortedSegment\w*|SegmentSum\w*|(Resource|Tensor)?Scatter\w*"),
    (ADAM, r"(Resource)?ApplyAdam"),
    (CAST, r"Cast"),
)
_ARITHMETIC = re.compile(
    r"Sum|Square|Mul|Sub|Neg|Add|AddV2|AddN|BroadcastTo|Tanh(Grad)?|Softmax|SelectV2|ReadVariableOp"
)


class Event(NamedTuple):
    """An event of the profiler, with its time.

    Attributes:
        name: name from the profiler.
        start: start in picoseconds; all events of a plane have the same origin.
        duration: duration in picoseconds.
    """

    name: str
    start: int
    duration: int


class Total(NamedTuple):
    """Total of the events of one name: milliseconds and calls per step."""

    name: str
    ms: float
    calls: float


def group_of(event: str) -> str:
    """Return the group of an operation's event, one of `GROUPS`.

    >>> group_of("gradient_tape/deep_fm/dense/MatMul:_MklMatMul")
    'matrix products, backward'
    >>> group_of("deep_fm/fused_embedding/PyFunc:PyFunc")
    'row kernels: missed steps'
    """
    name, _, kind = event.rpartition(":")
    kind = kind.removeprefix("_Mkl")
    if "MatMul" in kind or kind == "Einsum":
        return BACKWARD if name.startswith("gradient_tape/") else FORWARD
    if kind in _OPERATIONS:
        return _OPERATIONS[kind]
    if "PyFunc" in kind:  # the embedding layer makes the calls that replay missed steps
        return CATCH_UP if "embedding" in name else UPDATE
    for group, pattern in _KINDS:
        if re.fullmatch(pattern, kind):
            return group
    return _group_by_scope(name, kind) if _ARITHMETIC.fullmatch(kind) else REST


def _group_by_scope(name: str, kind: str) -> str:
    """Return the group of arithmetic: layers have scopes, CowClip's table updates have none."""
    backward = name.startswith("gradient_tape/")
    scope, slash, _ = name.removeprefix("gradient_tape/").partition("/")
    if kind == "AddN":  # sums of the gradients that several layers return for the same tensor
        return ELEMENTWISE
    if not slash:
        return REST if backward else ROWS
    if scope == "ArithmeticOptimizer":
        return ROWS
    outside = scope == "logistic_loss" or scope.startswith("Adam") or kind == "ReadVariableOp"
    return REST if outside else ELEMENTWISE


def read_space(folder: Path) -> XSpace:
    """Read the `XSpace` that the profiler wrote below a folder.

    Raises:
        FileNotFoundError: if the profiler wrote no file.
    """
    files = sorted(folder.rglob("*.xplane.pb"))
    if not files:
        raise FileNotFoundError(f"the profiler wrote no xplane.pb into {folder}")
    return compat.xplane().XSpace.FromString(files[0].read_bytes())


def operations(space: XSpace) -> list[Event]:
    """Return the operations on all threads of the host.

    An operation within another one on the same thread, as in a Python call, is a part of that one.
    """
    hosts = [plane for plane in space.planes if plane.name.startswith("/host:CPU")]
    lines = (_events(plane, line) for plane in hosts for line in plane.lines)
    return [event for line in lines for event in outermost(filter(is_operation, line))]


def is_operation(event: Event) -> bool:
    """Whether an event of the host is an operation of the graph, not a call of a function.

    >>> [is_operation(Event(n, 0, 1)) for n in ("Sum_1:Sum", "ExecutorState::Process", "step")]
    [True, False, False]
    """
    found = _OPERATION.fullmatch(event.name)
    return found is not None and found[2] not in _ENCLOSING


def outermost(events: Iterable[Event]) -> list[Event]:
    """Return the events that do not begin within another one.

    >>> outermost([Event("b", 2, 3), Event("a", 0, 9), Event("c", 9, 1)])
    [Event(name='a', start=0, duration=9), Event(name='c', start=9, duration=1)]
    """
    kept: list[Event] = []
    end = None
    for event in sorted(events, key=lambda e: (e.start, -e.duration)):
        if end is None or event.start >= end:
            kept.append(event)
            end = event.start + event.duration
    return kept


def gpu_events(space: XSpace) -> dict[str, list[Event]]:
    """Return device -> kernels, copies and memsets on its streams; empty without a GPU.

    Other lines repeat these events by operation or by module.
    """
    return {
        plane.name: [
            event
            for line in plane.lines
            if line.name.startswith("Stream")
            for event in _events(plane, line)
        ]
        for plane in space.planes
        if plane.name.startswith("/device:GPU:")
    }


def copy_kind(name: str) -> str | None:
    """Return the direction of a CUDA copy; None for kernels.

    >>> copy_kind("MemcpyH2D"), copy_kind("[CUDA memcpy DtoH]"), copy_kind("sgemm_128x64")
    ('HtoD', 'DtoH', None)
    """
    found = _COPY.fullmatch(name)
    return f"{found[1]}to{found[2]}" if found else None


def _events(plane: XPlane, line: XLine) -> list[Event]:
    names = plane.event_metadata
    return [
        # Details such as the number of the step follow after a "#".
        Event(
            names[event.metadata_id].name.partition("#")[0],
            1000 * line.timestamp_ns + event.offset_ps,
            event.duration_ps,
        )
        for event in line.events
    ]


def union(events: Iterable[Event]) -> int:
    """Return the picoseconds in which at least one event was running.

    >>> union([Event("a", 0, 4), Event("b", 2, 4), Event("c", 10, 1)])
    7
    """
    total, end = 0, None
    for event in sorted(events, key=lambda e: e.start):
        until = event.start + event.duration
        if end is None or event.start > end:
            total += event.duration
        else:
            total += max(0, until - end)
        end = until if end is None else max(end, until)
    return total


def totals(events: Iterable[Event], name: Callable[[str], str], steps: int) -> list[Total]:
    """Return milliseconds and calls per step for each result of `name`, longest first.

    >>> totals([Event("a", 0, 10**9), Event("b", 5, 2 * 10**9), Event("a", 9, 10**9)], str, 2)
    [Total(name='a', ms=1.0, calls=1.0), Total(name='b', ms=1.0, calls=0.5)]
    """
    durations: dict[str, list[int]] = defaultdict(list)
    for event in events:
        durations[name(event.name)].append(event.duration)
    found = [Total(n, sum(d) / 1e9 / steps, len(d) / steps) for n, d in durations.items()]
    return sorted(found, key=lambda total: (-total.ms, total.name))


def summary(space: XSpace, steps: int, ms: float) -> JsonObject:
    """Return the times per step by group, by name and by GPU, for JSON.

    Args:
        space: `XSpace`.
        steps: number of profiled steps.
        ms: wall-clock time of one step in milliseconds.
    """
    host = operations(space)
    groups = {total.name: total for total in totals(host, group_of, steps)}
    return {
        "groups": [groups[g]._asdict() for g in GROUPS if g in groups],
        "operations": [total._asdict() for total in totals(host, str, steps)],
        "gpus": [_gpu(name, found, steps, ms) for name, found in gpu_events(space).items()],
    }


def _gpu(device: str, events: list[Event], steps: int, ms: float) -> JsonObject:
    kernels = [event for event in events if copy_kind(event.name) is None]
    copies = [event for event in events if copy_kind(event.name)]
    busy = union(events) / 1e9 / steps
    return {
        "device": device,
        "busy_ms": busy,
        "busy_share": busy / ms,
        "kernels": [total._asdict() for total in totals(kernels, str, steps)],
        "copies": [total._asdict() for total in totals(copies, lambda n: str(copy_kind(n)), steps)],
    }
