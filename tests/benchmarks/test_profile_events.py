"""What is read from a profile: operations in groups, and kernels and copies of GPUs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin import compat

MS = 10**9  # picoseconds


@pytest.fixture(scope="module")
def events(load):
    return load("step_profiling.events")


def add_line(plane, name, recorded, timestamp_ns=0):
    """A thread or stream with events (name, start and duration in picoseconds)."""
    line = plane.lines.add(name=name, timestamp_ns=timestamp_ns)
    known = {metadata.name: key for key, metadata in plane.event_metadata.items()}
    for event, start, duration in recorded:
        key = known.setdefault(event, len(known) + 1)
        plane.event_metadata[key].id, plane.event_metadata[key].name = key, event
        line.events.add(metadata_id=key, offset_ps=start, duration_ps=duration)


@pytest.fixture
def space():
    """Two steps of 10 ms on two threads, and with two streams on a GPU."""
    made = compat.xplane().XSpace()
    host = made.planes.add(name="/host:CPU")
    add_line(host, "python", [("step#id=1#", 0, 10 * MS), ("EagerLocalExecute: step", 0, 9 * MS)])
    add_line(
        host,
        "tf_Compute/1",
        [
            ("ExecutorState::Process", 0, 9 * MS),
            ("StatefulPartitionedCall:StatefulPartitionedCall", 0, 9 * MS),
            ("deep_fm/embedding/PyFunc:PyFunc", 0, 2 * MS),
            ("ReadVariableOp:ReadVariableOp", MS, MS // 2),  # made by the Python call
            ("deep_fm/dense/Relu:_MklNativeFusedMatMul#id=7#", 2 * MS, 3 * MS),
        ],
    )
    add_line(
        host,
        "tf_Compute/2",
        [
            ("gradient_tape/deep_fm/dense/MatMul:_MklMatMul", 4 * MS, 4 * MS),
            ("gradient_tape/deep_fm/dense/MatMul:_MklMatMul", 8 * MS, 2 * MS),
            ("PyFunc:PyFunc", 10 * MS, MS),
        ],
    )
    gpu = made.planes.add(name="/device:GPU:0")
    kernel = "void sgemm_128x64<float>(float*)"
    add_line(gpu, "Stream #13(Kernel)", [(kernel, 0, 4 * MS), (kernel, 6 * MS, MS)])
    # Begins 3 ms after the other: on one clock, its copy overlaps with the first kernel.
    copies = [("MemcpyH2D", 0, 2 * MS), ("MemcpyD2H", 7 * MS, MS), ("replay_rows", 9 * MS, MS)]
    add_line(gpu, "Stream #14(MemcpyH2D)", copies, timestamp_ns=3_000_000)
    add_line(gpu, "TensorFlow Ops", [("MatMul", 0, 100 * MS)])  # the same again, derived
    return made


def test_operations_are_summed_by_group_and_by_name(events, space):
    found = events.summary(space, steps=2, ms=10.0)
    assert {g["name"]: (g["ms"], g["calls"]) for g in found["groups"]} == {
        events.FORWARD: (1.5, 0.5),
        events.BACKWARD: (3.0, 1.0),
        events.CATCH_UP: (1.0, 0.5),
        events.UPDATE: (0.5, 0.5),
    }
    assert [g["name"] for g in found["groups"]] == [
        g for g in events.GROUPS if g in {f["name"] for f in found["groups"]}
    ]
    assert [(o["name"], o["ms"]) for o in found["operations"]][:2] == [
        ("gradient_tape/deep_fm/dense/MatMul:_MklMatMul", 3.0),
        ("deep_fm/dense/Relu:_MklNativeFusedMatMul", 1.5),
    ]


def test_kernels_and_copies_of_a_gpu(events, space):
    (gpu,) = events.summary(space, steps=2, ms=10.0)["gpus"]
    # In milliseconds: kernels 0 to 4, 6 to 7 and 12 to 13, copies 3 to 5 and 10 to 11.
    assert gpu["device"] == "/device:GPU:0"
    assert (gpu["busy_ms"], gpu["busy_share"]) == (pytest.approx(4.0), pytest.approx(0.4))
    assert gpu["kernels"] == [
        {"name": "void sgemm_128x64<float>(float*)", "ms": 2.5, "calls": 1.0},
        {"name": "replay_rows", "ms": 0.5, "calls": 0.5},
    ]
    assert gpu["copies"] == [
        {"name": "HtoD", "ms": 1.0, "calls": 0.5},
        {"name": "DtoH", "ms": 0.5, "calls": 0.5},
    ]


def test_the_file_is_found_and_read(events, space, tmp_path):
    with pytest.raises(FileNotFoundError, match="the profiler wrote no"):
        events.read_space(tmp_path)
    folder = tmp_path / "plugins/profile/today"
    folder.mkdir(parents=True)
    (folder / "vm.xplane.pb").write_bytes(space.SerializeToString())
    assert events.read_space(tmp_path) == space


def test_without_a_gpu_there_are_no_gpus(events):
    empty = compat.xplane().XSpace()
    assert events.summary(empty, steps=1, ms=1.0) == {"groups": [], "operations": [], "gpus": []}


@pytest.mark.parametrize(
    "event, group",
    [
        ("deep_fm/dense_7/BiasAdd:_MklNativeFusedMatMul", "FORWARD"),
        ("deep_fm/dense_7/MatMul:_FusedMatMul", "FORWARD"),
        ("dc_nv2/matrix_cross/MatMul:BatchMatMulV2", "FORWARD"),
        ("gradient_tape/dcn/vector_cross/MatMul_2/MatMul:MatMul", "BACKWARD"),
        ("gradient_tape/deep_fm/dense/ReluGrad:ReluGrad", "ACTIVATION"),
        ("gradient_tape/deep_fm/dense/BiasAdd/BiasAddGrad:BiasAddGrad", "ACTIVATION"),
        ("deep_fm/dense/Relu:Relu", "ACTIVATION"),
        ("deep_fm/fused_embedding/EagerPyFunc:EagerPyFunc", "CATCH_UP"),
        ("EagerPyFunc:EagerPyFunc", "UPDATE"),
        ("deep_fm/fused_embedding/CowClipCatchUp:CowClipCatchUp", "CATCH_UP"),
        ("CowClipStep:CowClipStep", "UPDATE"),
        ("deep_fm/Square_1:Square", "ELEMENTWISE"),
        ("gradient_tape/deep_fm/BroadcastTo_3:BroadcastTo", "ELEMENTWISE"),
        ("AddN_1:AddN", "ELEMENTWISE"),
        ("mul_5:Mul", "ROWS"),
        ("ReadVariableOp_1:ReadVariableOp", "ROWS"),
        ("ArithmeticOptimizer/ReplaceMulWithSquare_mul_12:Square", "ROWS"),
        ("gradient_tape/Sum:Sum", "REST"),
        ("Adam_1/add:AddV2", "REST"),
        ("logistic_loss/mul:Mul", "REST"),
        ("gradient_tape/logistic_loss/Neg:Neg", "REST"),
        ("deep_fm/fused_embedding/Gather:ResourceGather", "GATHER"),
        ("gradient_tape/deep_fm/Slice:Slice", "GATHER"),
        ("deep_fm/concat:ConcatV2", "GATHER"),
        ("UniqueWithCounts:UniqueWithCounts", "ROWS"),
        ("ResourceScatterUpdate_1:ResourceScatterUpdate", "ROWS"),
        ("Adam/Adam/update_4/ResourceApplyAdam:ResourceApplyAdam", "ADAM"),
        ("dc_nv2/matrix_cross/Cast:Cast", "CAST"),
        ("deep_fm/dense/MatMul/ReadVariableOp:ReadVariableOp", "REST"),
    ],
)
def test_an_operation_has_its_group(events, event, group):
    assert events.is_operation(events.Event(event, 0, 1))
    assert events.group_of(event) == getattr(events, group)


@pytest.mark.parametrize(
    "event",
    ["ExecutorState::Process", "EagerExecute", "EagerLocalExecute: Identity", "ParallelFor",
     "PartitionedCall:PartitionedCall", "while:StatelessWhile", "KernelAndDeviceFunc::Run"],
)  # fmt: skip
def test_what_encloses_operations_is_none(events, event):
    assert not events.is_operation(events.Event(event, 0, 1))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_the_union_is_what_is_covered(events, pairs):
    covered = np.zeros(80, bool)
    for start, duration in pairs:
        covered[start : start + duration] = True
    made = [events.Event("x", start, duration) for start, duration in pairs]
    assert events.union(made) == covered.sum()


@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=12))
def test_of_nested_events_the_outermost_remain(events, tree):
    found = []

    def lay(children, start):
        """Children one after the other from `start`; where they end."""
        for child in children:
            end = lay(child, start) + 1
            found.append(events.Event("x", start, end - start))
            start = end
        return start

    lay(tree, 0)
    kept = events.outermost(found)
    assert len(kept) == len(tree)
    assert sum(event.duration for event in kept) == events.union(found)
