"""Several workers: the formulas of what they send, the computed scaling, and runs that are read."""

import json
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.bench.random_data import criteo_fields, random_model
from cowclip_merlin.cli import build_parser
from cowclip_merlin.cli.train import settings_from_args
from cowclip_merlin.training import run_logs
from cowclip_merlin.training.several_workers.worker_state import logging_traffic
from cowclip_merlin.workers import Workers
from cowclip_merlin.workers.collectives import padded_size

DIM = 3
COMPUTED = ["--part", "computed", "--global-batch", "8192", "--machines", "1,2,8", "--gpus", "1,4",
            "--vocabularies", "1000000"]  # fmt: skip


@pytest.fixture(scope="module")
def traffic(load):
    return load("worker_scaling.traffic")


@pytest.fixture(scope="module")
def model(load):
    return load("worker_scaling.model")


@pytest.fixture(scope="module")
def settings(load):
    return load("worker_scaling.settings").WorkerSettings


@pytest.fixture(scope="module")
def computed(model, settings):
    """Computed steps of two vocabularies, as the command computes them, at a smaller batch."""
    return model.compute(settings(global_batch=16384, machines=(1, 2, 4, 16), gpus=(1, 2, 8)))


def parts_of(ids, workers):
    """The ids of every worker, row by row."""
    edges = [len(ids) * rank // workers for rank in range(workers + 1)]
    return [{int(i) for row in ids[a:b] for i in row} for a, b in pairwise(edges)]


def messages(tables, parts, dim):
    """Bytes that each worker sends, counted message by message, without padding."""
    sent, workers = [0] * len(parts), range(len(parts))
    for here in workers:
        for there in workers:
            if here == there:
                continue
            if tables == "mirrored":
                sent[here] += sum(4 + 4 + 4 * (dim + 1) for _ in parts[here])
                continue
            for i in parts[here]:
                if i % len(parts) == there:
                    sent[here] += 4 + 4  # id and count to the worker that has the row
                    sent[there] += 4 * (dim + 1)  # the row back
                    sent[here] += 4 * (dim + 1)  # its gradient
    return sent


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 5), st.integers(1, 60))
def test_distinct_ids_are_those_of_the_largest_part(traffic, seed, rows, workers, vocabulary):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocabulary, (rows, 2))
    cuts = np.sort(rng.integers(0, rows, 2))
    batches = np.split(rng.permutation(rows), cuts)
    slow = [max(map(len, parts_of(ids[batch], workers))) for batch in batches]
    assert traffic.largest_distinct(ids, batches, workers) == pytest.approx(np.mean(slow))


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 5))
def test_mirrored_bytes_are_the_messages_of_the_largest_worker(traffic, seed, rows, workers):
    ids = np.random.default_rng(seed).integers(0, 50, (rows, 4))
    sent = messages("mirrored", parts_of(ids, workers), DIM)
    distinct = traffic.largest_distinct(ids, [np.arange(rows)], workers)
    assert traffic.row_bytes("mirrored", distinct, workers, DIM) == max(sent)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_sharded_bytes_are_the_messages(traffic, workers):
    every = np.arange(10 * workers)
    parts = [set(every.tolist())] * workers  # every worker reads all rows: the formula is exact
    assert (
        messages("sharded", parts, DIM)
        == [pytest.approx(traffic.row_bytes("sharded", len(every), workers, DIM))] * workers
    )
    ids = np.random.default_rng(workers).integers(0, 5000, (3000, 3))
    distinct = traffic.largest_distinct(ids, [np.arange(3000)], workers)
    sent = messages("sharded", parts_of(ids, workers), DIM)
    assert max(sent) == pytest.approx(
        traffic.row_bytes("sharded", distinct, workers, DIM), rel=0.05
    )


def test_padding_adds_at_most_what_the_page_says():
    counts = np.random.default_rng(0).integers(16, 10**6, 50)
    sizes = np.array([int(padded_size(int(n))[0]) for n in counts])
    assert (sizes >= counts).all() and (sizes / counts).max() <= 1.0625


@pytest.mark.parametrize("dim, mlp", [(10, (400, 400, 400)), (3, (8,))])
def test_dense_weights_are_those_of_the_model(traffic, dim, mlp):
    model = random_model("deepfm", criteo_fields(1000), embedding_dim=dim, mlp=mlp)
    dense = [x for x in model.trainable_variables if "embeddings" not in x.name]
    assert len(dense) == len(model.trainable_variables) - 2  # the embeddings, the wide part
    counted = traffic.count_dense_weights(dim, mlp)
    assert counted == sum(int(np.prod(x.shape)) for x in dense)
    assert traffic.dense_bytes(counted, 1) == 0


def test_one_worker_is_the_measured_step(computed):
    for kind in ("machines", "gpus"):
        for r in computed[kind]["results"]:
            if r["workers"] == 1:
                assert r["speed_up"] == r["speed_up_without_exchange"] == 1
                assert r["ms"] == r["step_ms"] > 0 == r["sent_bytes"]


def test_exchange_costs_time_and_grows_with_workers(computed):
    for kind in ("machines", "gpus"):
        for name in ("mirrored", "sharded"):
            for vocabulary in (1_000_000, 33_800_000):
                steps = [
                    r
                    for r in computed[kind]["results"]
                    if (r["tables"], r["vocabulary"]) == (name, vocabulary)
                ]
                workers = [r["workers"] for r in steps]
                assert workers == sorted(set(workers)) and len(workers) == len(steps) > 2
                for fewer, more in pairwise(steps):
                    assert more["step_ms"] < fewer["step_ms"]
                    assert more["distinct"] < fewer["distinct"]
                    assert more["exchanges_ms"] >= fewer["exchanges_ms"]
                    if name == "mirrored":
                        assert more["sent_bytes"] > fewer["sent_bytes"]
                for r in steps[1:]:
                    assert r["speed_up"] < r["speed_up_without_exchange"] <= r["workers"]
                    parts = ("step_ms", "update_ms", "transfer_ms", "exchanges_ms")
                    assert r["ms"] == pytest.approx(sum(r[part] for part in parts))
                    assert all(r[part] > 0 for part in parts)


def test_sharded_workers_send_and_update_less(computed):
    for kind in ("machines", "gpus"):
        found = {(r["vocabulary"], r["workers"], r["tables"]): r for r in computed[kind]["results"]}
        for (vocabulary, workers, tables), r in found.items():
            if tables == "sharded" and workers > 2:
                mirrored = found[vocabulary, workers, "mirrored"]
                assert r["sent_bytes"] < mirrored["sent_bytes"]
                assert r["update_ms"] <= mirrored["update_ms"]


def test_a_slower_network_makes_slower_steps(model, settings):
    small = {"global_batch": 4096, "machines": (4,), "gpus": (4,), "vocabularies": (1_000_000,)}

    def milliseconds(**network):
        made = model.compute(settings(**small, **network))
        return [[r["ms"] for r in made[kind]["results"]] for kind in ("machines", "gpus")]

    machines, gpus = milliseconds()
    for worse in ({"bandwidth": 0.5}, {"latency": 2.0}, {"hop": 1.0}):
        slower, same = milliseconds(**worse)
        assert same == gpus and all(a > b for a, b in zip(slower, machines, strict=True))
        same, slower = milliseconds(**{f"gpu_{name}": x / 7 for name, x in worse.items()})
        assert same == machines and all(a > b for a, b in zip(slower, gpus, strict=True))


def test_exchanges_of_a_ring_take_its_hops(model):
    network = model.Network(bandwidth=1, latency=10, hop=1)
    # Two gathers with 2 hops, a sum with 4; each exchange's first hop is in its latency.
    assert network.exchanges_ms("mirrored", 3) == 30 + 1 + 1 + 3
    assert network.exchanges_ms("sharded", 3) == 50 + 1 + 3
    assert network.transfer_ms(2_000_000) == 2


def test_curves_pass_through_the_recorded_times(load, tmp_path):
    times = load("worker_scaling.measured_times")
    step = {"model": "deepfm", "update": "exact", "clip": "cowclip", "precision": "float32"}
    rows = [{**step, "batch": b, "rows_per_second": 1000.0} for b in (64, 8, 16)]
    others = [{**rows[0], name: "other"} for name in (*step, "jit_compile")]
    file = tmp_path / "step.json"
    file.write_text(json.dumps({"vocabulary": 9, "results": others + rows}))
    curve = times.step_curve([str(file)], 9)
    assert (curve.x, curve.ms) == ((8, 16, 64), (8.0, 16.0, 64.0))
    assert [curve.at(x) for x in (1, 8, 40, 128)] == [8, 8, 40, 128]
    with pytest.raises(times.InputError, match="with 7 ids at 0 batch"):
        times.step_curve([str(file)], 7)
    kernels = [{"kernel": "group", "bytes": 5, "ms": 1.0}]
    file.write_text(json.dumps({"results": kernels}))
    with pytest.raises(times.InputError, match="kernel group at 1 batch"):
        times.kernel_curves(str(file))


def test_the_computed_part_is_printed_and_drawn(load, tmp_path, capsys):
    workers, file, figure = load("workers"), tmp_path / "w.json", tmp_path / "w.svg"
    workers.BENCHMARK.main([*COMPUTED, "--json", str(file), "--figure", str(figure)])
    out, result = capsys.readouterr().out, json.loads(file.read_text())
    assert result["measured"] is None and out.count("Computed, not measured") == 2
    assert "| ids | machines |" in out and "| ids | GPUs |" in out
    for name, counts in (("machines", (1, 2, 8)), ("gpus", (1, 4))):
        found = [(r["tables"], r["workers"]) for r in result["computed"][name]["results"]]
        assert found == [(t, n) for t in ("mirrored", "sharded") for n in counts]
    assert out.count("\n| 1,000,000 |") == 5
    assert result["computed"]["from"]["machine_kernels"].endswith("kernels.json")
    drawn = figure.read_bytes()
    workers.draw_figure(result["computed"], figure)
    assert drawn == figure.read_bytes() and b"Computed, not measured" in drawn


def metrics_row(epoch, rows_per_second):
    """A row of `metrics.csv`; the benchmark reads these two columns."""
    unread = {n: 0.5 for n in run_logs.METRICS if not n.startswith("validation_")}
    return unread | {"epoch": epoch, "step": 20 * epoch, "rows_per_second": rows_per_second}


@pytest.mark.runs
@pytest.mark.thorough
def test_runs_are_read_without_their_first_epoch(load, tmp_path, monkeypatch, capsys):
    """Runs of `cowclip train`, replaced by the files that they write."""
    workers, runs, file = load("workers"), load("worker_scaling.runs"), tmp_path / "w.json"
    sent = {2: 2_000_000, 3: 3_000_000}

    def train(case, data, out, epochs):
        out.mkdir()
        seconds = [9.0, 1.0, 3.0, 2.0] if case.workers == 1 else [9.0, 2.0, 4.0, 4.0]
        rows = runs.PreparedData.load(data).rows["train"]
        run_logs.write_metrics(
            out / "metrics.csv",
            [metrics_row(i + 1, rows / s) for i, s in enumerate(seconds)],
        )
        counter = SimpleNamespace(sent=0)
        group = Workers(0, ("",) * case.workers, counter) if case.workers > 1 else None
        with run_logs.run_logger(out / "train.log", console=False) as log:
            for _ in seconds:
                with logging_traffic(group, log, 10):
                    counter.sent += 10 * sent.get(case.workers, 0)

    monkeypatch.setattr(runs, "train", train)
    small = ["--part", "measured", "--rows", "2000", "--batch-sizes", "100,64"]
    workers.BENCHMARK.main([*small, "--work", str(tmp_path / "w"), "--json", str(file)])
    out, result = capsys.readouterr().out, json.loads(file.read_text())
    assert result["computed"] is None
    measured = result["measured"]
    keys = [(r["batch"], r["tables"], r["workers"]) for r in measured["results"]]
    assert keys == [
        (b, t, n) for b in (100, 64) for t in ("mirrored", "sharded") for n in (1, 2, 3)
    ]
    for r in measured["results"]:
        steps = -(-measured["rows"] // r["batch"])
        alone = r["workers"] == 1
        assert r["ms_per_step"] == pytest.approx(1000 * (2 if alone else 4) / steps)
        assert r["speed_up"] == pytest.approx(1 if alone else 0.5)
        assert r["sent_bytes"] == sent.get(r["workers"], 0)
        assert (r["ratio"] is None) == alone
        if not alone:
            assert r["ratio"] == pytest.approx(r["sent_bytes"] / r["formula_bytes"])
    assert "| 100 | mirrored | 1 |" in out and "| 64 | sharded | 3 |" in out
    assert {each.name for each in (tmp_path / "w").iterdir()} == {"data-2000"}


def test_a_log_without_the_line_is_refused(load, tmp_path):
    runs = load("worker_scaling.runs")
    run_logs.write_metrics(tmp_path / "metrics.csv", [metrics_row(epoch, 5.0) for epoch in (1, 2)])
    (tmp_path / "train.log").write_text("nothing of interest\n")
    assert runs.read_numbers(tmp_path, runs.Case(4, "mirrored", 1), 20, 2).step_ms == [800]
    with pytest.raises(runs.InputError, match="do not show 2 epochs"):
        runs.read_numbers(tmp_path, runs.Case(4, "mirrored", 2), 20, 2)


@pytest.mark.system
def test_a_run_that_fails_is_told_by_its_last_line(load, tmp_path, monkeypatch):
    runs, program = load("worker_scaling.runs"), tmp_path / "python"
    program.write_text('#!/bin/sh\necho "first words\n$*" >&2\nexit 3\n')
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    with pytest.raises(runs.InputError, match=r"exit code 3: -m cowclip_merlin train DATA .* 5$"):
        runs.train(runs.Case(4, "mirrored", 5), "DATA", tmp_path / "run", 2)


def test_runs_are_trained_as_the_page_says(load):
    runs = load("worker_scaling.runs")
    for tables, value in (("mirrored", "fused"), ("sharded", "sharded")):
        args = build_parser().parse_args(
            runs.train_words(runs.Case(64, tables, 3), "DATA", "RUN", 4)
        )
        assert (args.tables, args.workers, args.epochs) == (value, 3, 4)
        made = settings_from_args(args)
        # `distinct_in_runs` and the formulas rely on these.
        assert (made.seed, made.embedding_dim, made.mlp) == (
            runs.MODEL.seed,
            runs.MODEL.embedding_dim,
            runs.MODEL.mlp,
        )
        assert (made.update, made.batch_size, made.validation_fraction) == ("exact", 64, 0)


@pytest.mark.parametrize(
    "bad, named",
    [
        (["--workers", "2,3"], "add 1"),
        (["--workers", "1,1"], "--workers 1,1"),
        (["--epochs", "1"], "--epochs is 1"),
        (["--tables", "growing"], "'growing'"),
        (["--bandwidth", "0"], "--bandwidth is 0"),
        (["--gpu-hop", "-1"], "--gpu-hop is -1"),
        (["--vocabularies", "5"], "--vocabularies is 5"),
        (["--part", "measured", "--figure", "a.svg"], "--figure a.svg"),
        (["--part", "computed", "--vocabularies", "1234"], "with 1234 ids"),
        (["--part", "computed", "--gpu-kernels", "none.json"], "none.json"),
        ([*COMPUTED, "--machines", "512"], "512 workers have 16 rows each"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(load, bad, named, capsys):
    with pytest.raises(SystemExit) as stopped:
        load("workers").BENCHMARK.main(bad)
    told = capsys.readouterr().err
    assert stopped.value.code == 2 and told.startswith("error: ")
    assert named in told and told.count("\n") == 1
