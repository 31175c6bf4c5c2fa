"""The profile of a step end to end on tiny sizes, and its counted limit."""

import json

import numpy as np
import pytest

from cowclip_merlin.bench.random_data import criteo_fields, random_rows

SMALL = ["--batch-sizes", "64", "--vocabulary", "2000", "--steps", "3", "--rounds", "2",
         "--squares", "32,64", "--copy-mb", "1"]  # fmt: skip


@pytest.fixture(scope="module")
def benchmark(load):
    return load("step_profile")


@pytest.fixture(scope="module")
def limits(load):
    return load("step_profiling.limit")


@pytest.mark.runs
@pytest.mark.thorough
def test_a_small_profile(benchmark, tmp_path, capsys):
    file = tmp_path / "profile.json"
    benchmark.BENCHMARK.main([*SMALL, "--json", str(file)])
    out, result = capsys.readouterr().out, json.loads(file.read_text())
    assert result["command"].startswith("python benchmarks/step_profile.py --batch-sizes 64")
    assert result["hardware"] and result["versions"]["tensorflow"] and result["date"]
    assert min(result["machine"].values()) > 0
    (found,) = result["results"]
    profile, counted = found["profile"], found["limit"]
    groups = {group["name"]: group for group in profile["groups"]}
    for name in ("row kernels: missed steps", "row kernels: sums, clip, Adam"):
        assert groups[name]["ms"] > 0 and groups[name]["calls"] == 1 and name in out
    # Four layers forward; four gradients of weights, four of inputs.
    assert groups["matrix products, forward"]["calls"] == 4
    assert groups["matrix products, backward"]["calls"] == 8
    assert profile["steps"] == 3 and profile["ms"] > 0 and profile["gpus"] == []
    listed = sum(operation["ms"] for operation in profile["operations"])
    assert listed == pytest.approx(sum(group["ms"] for group in groups.values()))
    assert counted["ms"] == counted["arithmetic_ms"] + counted["traffic_ms"] > 0
    assert found["step_to_limit"] == found["step"]["ms"] / counted["ms"]
    assert found["step"]["fastest"] <= found["step"]["ms"] <= found["step"]["slowest"]
    for word in ("counted limit", "bare MLP", "on several threads at once", "longest operations"):
        assert word in out


def test_distinct_rows_are_those_of_the_batches(benchmark, limits):
    fields = criteo_fields(500)
    ids = random_rows(96, fields).ids
    batches = benchmark.batches_of(96, 32)
    assert sorted(np.concatenate(batches)) == list(range(96))
    counts = [len({(f, i) for row in ids[b] for f, i in enumerate(row)}) for b in batches]
    assert limits.mean_distinct(ids, fields, batches) == np.mean(counts)


def parts_of(limits, model):
    return limits.flop_per_row(limits.ModelSizes(model=model, vocabulary=1000))


def test_the_arithmetic_of_the_four_models(limits):
    mlp = 2 * (273 * 400 + 400 * 400 + 400 * 400 + 400)
    backward = mlp + 2 * (400 * 400 + 400 * 400 + 400) + 2 * 273 * 400
    for model in ("deepfm", "wide_and_deep"):
        assert sum(parts_of(limits, model).values()) == mlp + backward
    # The last logit reads the crosses' 260 numbers, too: forward, weights, input.
    for model, layer in (("dcn", 4 * 260), ("dcnv2", 2 * 260 * 260)):
        expected = mlp + backward + 3 * 2 * 260 + 3 * 3 * layer
        assert sum(parts_of(limits, model).values()) == expected


def test_matrix_products_are_those_that_the_weights_ask_for(limits):
    """Forward, 2 FLOP for each dense weight that is no bias."""
    from cowclip_merlin.bench.random_data import random_model

    for model in ("deepfm", "dcnv2"):
        weights = random_model(model, criteo_fields(1000)).trainable_variables
        kernels = [w for w in weights if w.shape.rank == 2 and "embeddings" not in w.name]
        parts = parts_of(limits, model)
        forward = parts["MLP forward"] + parts.get("crosses forward", 0)
        assert forward == 2 * sum(int(np.prod(w.shape)) for w in kernels)


@pytest.mark.parametrize("update, touched", [("dense", 1000), ("exact", 600), ("lazy", 300)])
def test_the_bytes_of_a_step(limits, update, touched):
    for model, numbers in (("deepfm", 11), ("dcn", 10)):
        sizes = limits.ModelSizes(model=model, vocabulary=1000)
        moved = limits.bytes_of_step(sizes, update=update, batch=64, distinct=300)
        batch = 64 * (160 + 26 * numbers * 4 * 2)
        assert sum(moved.values()) == batch + touched * numbers * 4 * 6


def test_a_turn_ends_when_its_time_is_up(benchmark):
    assert len(benchmark.timed(lambda: None, 5, 60.0)) == 5
    assert len(benchmark.timed(lambda: None, 5, 1e-9)) == benchmark.LEAST_STEPS


def test_a_gpu_is_told_by_kernels_and_copies(benchmark):
    text = benchmark.text
    one = [{"name": "k" * 200, "ms": 2.0, "calls": 3.0}]
    profile = {"steps": 1, "ms": 4.0, "groups": one, "operations": one}
    gpu = {"device": "/device:GPU:0", "busy_ms": 1.0, "busy_share": 0.25, "kernels": one}
    times = {"ms": 1.0, "fastest": 1.0, "slowest": 1.0, "steps": 1}
    counted = {"ms": 1.0, "arithmetic_ms": 1.0, "traffic_ms": 0.0, "flop": {}, "bytes": {}}
    found = {"batch": 1, "distinct_rows": 1.0, "step": times, "bare_mlp": times, "limit": counted}
    found |= {"step_to_limit": 1.0, "step_to_mlp": 1.0}
    result = {"device": "gpu", "model": "m", "update": "u", "precision": "p", "vocabulary": 1}
    result["machine"] = {"flop_per_second": 1.0, "bytes_per_second": 1.0}
    copies = [{"name": "HtoD", "ms": 1.5, "calls": 1.0}]
    seen = found | {"profile": profile | {"gpus": [gpu | {"copies": copies}]}}
    out = text(result | {"results": [seen]})
    assert "/device:GPU:0: busy for 1.000 ms of a step, 25%" in out
    assert "HtoD" in out and "k" * 24 in out and "CUPTI" not in out
    unseen = found | {"profile": profile | {"gpus": []}}
    assert "saw no kernel on the GPU" in text(result | {"results": [unseen]})


@pytest.mark.parametrize(
    "bad",
    [["--model", "fm"], ["--update", "eager"], ["--precision", "float8"], ["--batch-sizes", "x"],
     ["--batch-sizes", "0"], ["--vocabulary", "3"], ["--steps", "0"], ["--seconds", "nan"],
     ["--squares", "0"], ["--batch-sizes", "8,8"], ["--copy-mb", "0"],
     ["--json", "no-such-folder/a.json"]],
)  # fmt: skip
def test_wrong_arguments_are_told_in_one_line(benchmark, bad, capsys):
    with pytest.raises(SystemExit) as stopped:
        benchmark.BENCHMARK.main(bad)
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert told.startswith("error: ") and told.count("\n") == 1
