"""Measurements of `step.py`, each on tiny tables, and what is read from the profiler."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin import compat
from cowclip_merlin.bench.random_data import criteo_fields, random_rows

MS = 10**9  # picoseconds
VOCABULARY = "--vocabularies 2000,4000 --batch-sizes 32,64 --mlp 8 --rounds 1 --steps 2 --warm-up 3"


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


@pytest.mark.runs
@pytest.mark.thorough
def test_diagnostics(measured):
    small = "--batch-sizes 32,64 --mlp 8 --vocabulary 2000 --every 3 --rounds 2 --seconds 0"
    result, out = measured("step diagnostics", small)
    assert "| 32 |" in out and "| 64 |" in out and result["every"] == 3
    for r in result["results"]:
        assert len(r["rounds"]) == 2 and all(x["watched"] > x["probe"] > 0 for x in r["rounds"])
        assert r["least"] <= r["cost"] <= r["most"]
        assert r["cost_of_probes"] == pytest.approx(r["ms_per_probe"] / r["ms_per_step"] / 3)


@pytest.mark.runs
@pytest.mark.thorough
def test_loading(load, measured, refused, tmp_path):
    little, work = "--rows 2000 --rounds 1 --seconds 0.01", ["--work", tmp_path / "w"]
    result, out = measured("step loading", f"{little} --batch-sizes 64", *work)
    assert [r["what"] for r in result["results"]] == list(load("step_parts.loading").LOADERS)
    assert result["results"][-1]["ratio_to_step"] == 1 and "| 64 | merlin |" in out
    assert [folder.name for folder in (tmp_path / "w").iterdir()] == ["data-2000"]
    code, told = refused("step loading", *little.split(), *work, "--batch-sizes", "1999")
    assert code == 2 and "--batch-sizes 1999" in told and "training rows" in told


@pytest.mark.runs
def test_an_epoch_has_the_time_of_its_flush_and_an_auc(measured):
    small = "--vocabularies 2000 --batch-sizes 512 --updates exact --rows 40000 --held-out 5000"
    result, out = measured("step epoch", small)
    (row,) = result["results"]
    assert (row["steps"], row["of_steps"], len(row["tenths"])) == (79, 79, 10)
    flush = 1000 * row["flush_seconds"] / 79
    assert row["ms_per_step_with_flush"] == pytest.approx(row["ms_per_step"] + flush)
    assert 0.55 < row["auc"] < row["auc_of_truth"] < 0.8 and "| exact | 79 |" in out


def test_lists_are_timed_per_looked_up_id(measured, load, monkeypatch):
    part = load("step_parts.lists")
    seen, rows_of = [], part.random_rows

    def random_rows(*args, **options):
        seen.append(rows_of(*args, **options))
        return seen[-1]

    monkeypatch.setattr(part, "random_rows", random_rows)
    small = "--batches 16 --values 5 --updates lazy --vocabulary 2000 --rounds 2 --steps 2"
    result, out = measured("step lists", small)
    (row,) = result["results"]
    one, lists = seen
    assert one.lengths is None and lists.lengths.shape == (32, 26)
    assert one.ids.size == 160 * 26 and lists.lengths.mean() == pytest.approx(5, rel=0.1)
    assert (lists.lengths.min(), lists.lengths.max()) == (1, 9)
    found = [b / a for a, b in zip(row["times"]["one"], row["times"]["lists"], strict=True)]
    assert row["ratio"] == pytest.approx(np.median(found)) and "| lazy | 16 |" in out


@pytest.fixture
def vocabulary(load):
    return load("step_parts.vocabulary")


@pytest.mark.runs
@pytest.mark.thorough
def test_every_line_is_in_the_table_and_in_json(measured, tmp_path):
    figure = tmp_path / "vocabulary.svg"
    result, out = measured("step vocabulary", f"{VOCABULARY} --missed 12", "--figure", figure)
    for batch in (32, 64):
        for update in ("dense", "exact", "lazy"):
            for ids in ("2,000", "4,000"):
                assert f"| {batch} | {update} | {ids} |" in out
    rows = result["results"]
    assert len(rows) == 2 * 2 * 3 and all(len(r["rounds"]) == 1 for r in rows)
    assert all(0 < r["fastest"] <= r["ms_per_step"] <= r["slowest"] for r in rows)
    assert all(r["ratio_to_smallest"] == 1 for r in rows if r["vocabulary"] == 2000)
    assert [(f["vocabulary"], f["missed_steps"]) for f in result["flushes"]] == [
        (2000, 12), (4000, 12)
    ]  # fmt: skip
    assert all(f["seconds"] > 0 for f in result["flushes"])
    assert "| 2,000 | 12 |" in out and "| 4,000 | 12 |" in out
    distinct = {(d["vocabulary"], d["batch"]): d["rows"] for d in result["distinct_rows"]}
    assert all(distinct[2000, b] == distinct[4000, b] > b for b in (32, 64))
    assert b"exact and its flush" in figure.read_bytes()


def test_what_does_not_fit_is_left_out(vocabulary, monkeypatch, capsys):
    settings = vocabulary.BENCHMARK.settings_from(
        vocabulary.BENCHMARK.parser().parse_args([*VOCABULARY.split(), "--memory-factor", "4"])
    )
    monkeypatch.setattr(vocabulary, "bytes_left", lambda: 4 * settings.table_bytes(4000) - 1)
    assert vocabulary.fitting(settings) == [2000]
    assert "omitted: 4,000 ids" in capsys.readouterr().out


def test_ids_are_spread_one_to_one_within_their_fields(vocabulary):
    settings = vocabulary.VocabularySettings(vocabularies=(2000,), batches=(64,))
    fields, rows = criteo_fields(123_457), vocabulary.draw(settings)
    moved = vocabulary.spread(rows, fields).ids
    assert (moved >= 0).all() and (moved.max(axis=0) < np.array(list(fields.values()))).all()
    for before, after in zip(rows.ids.T, moved.T, strict=True):
        pairs = {*zip(before.tolist(), after.tolist(), strict=True)}
        assert len(pairs) == len({*before.tolist()}) == len({*after.tolist()})
