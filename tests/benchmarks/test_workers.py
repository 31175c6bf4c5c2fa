"""Several workers: the formulas of what they send, and runs that are read."""

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
from cowclip_merlin.training.worker_state import logging_traffic
from cowclip_merlin.workers import Workers

DIM = 3


@pytest.fixture(scope="module")
def traffic(load):
    return load("worker_scaling.traffic")


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
def test_bytes_are_the_messages_of_the_largest_worker(traffic, seed, rows, workers):
    ids = np.random.default_rng(seed).integers(0, 50, (rows, 4))
    sent = messages("mirrored", parts_of(ids, workers), DIM)
    distinct = traffic.largest_distinct(ids, [np.arange(rows)], workers)
    assert traffic.row_bytes("mirrored", distinct, workers, DIM) == max(sent)
    every = np.arange(10 * workers)  # every worker reads all rows: this formula is exact, too
    sent = messages("sharded", [set(every.tolist())] * workers, DIM)
    assert sent == [pytest.approx(traffic.row_bytes("sharded", len(every), workers, DIM))] * workers


def test_dense_weights_are_those_of_the_model(traffic):
    model = random_model("deepfm", criteo_fields(1000), embedding_dim=3, mlp=(8,))
    dense = [x for x in model.trainable_variables if "embeddings" not in x.name]
    assert len(dense) == len(model.trainable_variables) - 2  # the embeddings, the wide part
    counted = traffic.count_dense_weights(3, (8,))
    assert counted == sum(int(np.prod(x.shape)) for x in dense)


def metrics_row(epoch, rows_per_second):
    """A row of `metrics.csv`; the benchmark reads these two columns."""
    unread = {n: 0.5 for n in run_logs.METRICS if not n.startswith("validation_")}
    return unread | {"epoch": epoch, "step": 20 * epoch, "rows_per_second": rows_per_second}


@pytest.mark.runs
@pytest.mark.thorough
def test_runs_are_read_without_their_first_epoch(load, measured, tmp_path, monkeypatch):
    """Runs of `cowclip train`, replaced by the files that they write."""
    runs = load("worker_scaling.runs")
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
    small = "--rows 2000 --batch-sizes 100,64"
    result, out = measured("workers", small, "--work", tmp_path / "w")
    rows, results = result["rows"], result["results"]
    keys = [(r["batch"], r["tables"], r["workers"]) for r in results]
    assert keys == [
        (b, t, n) for b in (100, 64) for t in ("mirrored", "sharded") for n in (1, 2, 3)
    ]
    for r in results:
        steps = -(-rows // r["batch"])
        alone = r["workers"] == 1
        assert r["ms_per_step"] == pytest.approx(1000 * (2 if alone else 4) / steps)
        assert r["speed_up"] == pytest.approx(1 if alone else 0.5)
        assert r["sent_bytes"] == sent.get(r["workers"], 0)
        assert (r["ratio"] is None) == alone
        if not alone:
            assert r["ratio"] == pytest.approx(r["sent_bytes"] / r["formula_bytes"])
    assert "| 100 | mirrored | 1 |" in out and "| 64 | sharded | 3 |" in out
    assert {each.name for each in (tmp_path / "w").iterdir()} == {"data-2000"}


def test_runs_are_trained_as_the_page_says(load):
    """`distinct_in_runs` and the formulas rely on these settings."""
    runs = load("worker_scaling.runs")
    for tables, value in (("mirrored", "fused"), ("sharded", "sharded")):
        words = runs.train_words(runs.Case(64, tables, 3), "DATA", "RUN", 4)
        args = build_parser().parse_args(words)
        assert (args.tables, args.workers, args.epochs) == (value, 3, 4)
        made = settings_from_args(args)
        for name in ("seed", "embedding_dim", "mlp"):
            assert getattr(made, name) == getattr(runs.MODEL, name)
        assert (made.update, made.batch_size, made.validation_fraction) == ("exact", 64, 0)
