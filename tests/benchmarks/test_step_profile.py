"""The profile of a step: tiny, and what is read from the profiler."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin import compat
from cowclip_merlin.bench.random_data import criteo_fields, random_rows

MS = 10**9  # picoseconds


@pytest.mark.runs
@pytest.mark.thorough
def test_a_small_profile(measured):
    small = "--batch-sizes 64 --vocabulary 2000 --steps 3 --rounds 2"
    result, out = measured("step profile", small)
    (found,) = result["results"]
    profile = found["profile"]
    groups = {group["name"]: group for group in profile["groups"]}
    for name in ("row kernels: missed steps", "row kernels: sums, clip, Adam"):
        assert groups[name]["ms"] > 0 and groups[name]["calls"] == 1 and name in out
    # Four layers forward; four gradients of weights, four of inputs.
    assert groups["matrix products, forward"]["calls"] == 4
    assert groups["matrix products, backward"]["calls"] == 8
    assert profile["steps"] == 3 and profile["ms"] > 0 and profile["gpus"] == []
    listed = sum(operation["ms"] for operation in profile["operations"])
    assert listed == pytest.approx(sum(group["ms"] for group in groups.values()))
    assert found["step"]["fastest"] <= found["step"]["ms"] <= found["step"]["slowest"]
    for word in ("bare MLP", "on several threads at once", "longest operations"):
        assert word in out


def test_distinct_rows_are_those_of_the_batches(load):
    fields, module = criteo_fields(500), load("step_parts.profile")
    ids = random_rows(96, fields).ids
    batches = module.batches_of(96, 32)
    assert sorted(np.concatenate(batches)) == list(range(96))
    counts = [len({(f, i) for row in ids[b] for f, i in enumerate(row)}) for b in batches]
    assert module.mean_distinct(ids, fields, batches) == np.mean(counts)


@pytest.fixture(scope="module")
def events(load):
    return load("step_parts.profiler_events")


def add_line(plane, name, recorded, timestamp_ns=0):
    """A thread or stream with events (name, start and duration in picoseconds)."""
    line = plane.lines.add(name=name, timestamp_ns=timestamp_ns)
    known = {metadata.name: key for key, metadata in plane.event_metadata.items()}
    for event, start, duration in recorded:
        key = known.setdefault(event, len(known) + 1)
        plane.event_metadata[key].id, plane.event_metadata[key].name = key, event
        line.events.add(metadata_id=key, offset_ps=start, duration_ps=duration)


def test_kernels_and_copies_of_a_gpu(events):
    """Two steps of 10 ms with two streams."""
    made = compat.xplane().XSpace()
    gpu = made.planes.add(name="/device:GPU:0")
    kernel = "void sgemm_128x64<float>(float*)"
    add_line(gpu, "Stream #13(Kernel)", [(kernel, 0, 4 * MS), (kernel, 6 * MS, MS)])
    # Begins 3 ms after the other: on one clock, its copy overlaps with the first kernel.
    copies = [("MemcpyH2D", 0, 2 * MS), ("MemcpyD2H", 7 * MS, MS), ("replay_rows", 9 * MS, MS)]
    add_line(gpu, "Stream #14(MemcpyH2D)", copies, timestamp_ns=3_000_000)
    add_line(gpu, "TensorFlow Ops", [("MatMul", 0, 100 * MS)])  # the same again, derived
    (gpu,) = events.summary(made, steps=2, ms=10.0)["gpus"]
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


def test_an_operation_has_its_group_and_what_encloses_operations_is_none(events):
    for event, group in {
        "deep_fm/dense_7/BiasAdd:_MklNativeFusedMatMul": "FORWARD",
        "gradient_tape/dcn/vector_cross/MatMul_2/MatMul:MatMul": "BACKWARD",
        "gradient_tape/deep_fm/dense/BiasAdd/BiasAddGrad:BiasAddGrad": "ACTIVATION",
        "deep_fm/fused_embedding/CowClipCatchUp:CowClipCatchUp": "CATCH_UP",
        "CowClipStep:CowClipStep": "UPDATE",
        "gradient_tape/deep_fm/BroadcastTo_3:BroadcastTo": "ELEMENTWISE",
        "AddN_1:AddN": "ELEMENTWISE",
        "deep_fm/fused_embedding/Gather:ResourceGather": "GATHER",
        "ArithmeticOptimizer/ReplaceMulWithSquare_mul_12:Square": "ROWS",
        "ResourceScatterUpdate_1:ResourceScatterUpdate": "ROWS",
        "mul_5:Mul": "ROWS",
        "Adam/Adam/update_4/ResourceApplyAdam:ResourceApplyAdam": "ADAM",
        "dc_nv2/matrix_cross/Cast:Cast": "CAST",
        "gradient_tape/Sum:Sum": "REST",
        "Adam_1/add:AddV2": "REST",
        "logistic_loss/mul:Mul": "REST",
    }.items():
        assert events.is_operation(events.Event(event, 0, 1)), event
        assert events.group_of(event) == getattr(events, group), event
    for event in ("EagerLocalExecute: Identity", "PartitionedCall:PartitionedCall"):
        assert not events.is_operation(events.Event(event, 0, 1)), event


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_the_union_is_what_is_covered(events, pairs):
    covered = np.zeros(80, bool)
    for start, duration in pairs:
        covered[start : start + duration] = True
    made = [events.Event("x", start, duration) for start, duration in pairs]
    assert events.union(made) == covered.sum()
