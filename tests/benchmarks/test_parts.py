"""What benchmarks compute themselves: ids in larger tables, formulas."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.bench.random_data import criteo_fields, random_rows
from cowclip_merlin.cli import build_parser
from cowclip_merlin.cli.train import settings_from_args
from cowclip_merlin.training import run_logs

DIM = 3


@pytest.fixture(scope="module")
def workers(load):
    return load("workers")


def test_a_vocabulary_that_does_not_fit_is_left_out(load, monkeypatch, capsys):
    vocabulary = load("step_ids")
    settings = vocabulary.VocabularySettings(vocabularies=(2000, 4000))
    monkeypatch.setattr(vocabulary, "bytes_left", lambda: 4000 * vocabulary.BYTES_NEEDED - 1)
    assert vocabulary.fitting(settings) == [2000]
    assert "omitted: 4,000 ids" in capsys.readouterr().out


def test_ids_are_spread_one_to_one_within_their_fields(load):
    fields, rows = criteo_fields(123_457), random_rows(2048, criteo_fields(2000))
    moved = load("step_ids").spread_ids(rows, fields).ids
    assert (moved >= 0).all() and (moved.max(axis=0) < np.array(list(fields.values()))).all()
    for before, after in zip(rows.ids.T, moved.T, strict=True):
        pairs = {*zip(before.tolist(), after.tolist(), strict=True)}
        assert len(pairs) == len({*before.tolist()}) == len({*after.tolist()})


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


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 5))
def test_bytes_are_the_messages_of_the_largest_worker(workers, seed, rows, count):
    ids = np.random.default_rng(seed).integers(0, 50, (rows, 4))
    parts = parts_of(ids, count)
    distinct = workers.largest_distinct(ids, [np.arange(rows)], count)
    assert distinct == max(map(len, parts))
    assert workers.row_bytes("mirrored", distinct, count, DIM) == max(
        messages("mirrored", parts, DIM)
    )
    every = np.arange(10 * count)  # every worker reads all rows: this formula is exact, too
    sent = messages("sharded", [set(every.tolist())] * count, DIM)
    assert sent == [pytest.approx(workers.row_bytes("sharded", len(every), count, DIM))] * count


def test_runs_are_read_without_their_first_epoch(workers, tmp_path):
    unread = {n: 0.5 for n in run_logs.METRICS if not n.startswith("validation_")}
    rows = [
        unread | {"epoch": i + 1, "step": 20, "rows_per_second": 1000 / s}
        for i, s in enumerate((9, 1, 3))
    ]
    run_logs.write_metrics(tmp_path / "metrics.csv", rows)
    line = "sent 2.5 MB a step to 1 other workers\n"
    (tmp_path / "train.log").write_text(line.replace("2.5", "9") + line * 2)
    found = workers.read_logs(tmp_path, workers.Case(100, "mirrored", 2), 1000, 3)
    assert found.step_ms == pytest.approx([100, 300]) and found.sent == [2.5e6] * 2


def test_runs_are_trained_as_the_formulas_assume(workers):
    for tables, value in (("mirrored", "fused"), ("sharded", "sharded")):
        words = workers.train_words(workers.Case(64, tables, 3), "DATA", "RUN", 4)
        args = build_parser().parse_args(words)
        assert (args.tables, args.workers, args.epochs) == (value, 3, 4)
        made = settings_from_args(args)
        for name in ("seed", "embedding_dim", "mlp"):
            assert getattr(made, name) == getattr(workers.MODEL, name)
        assert (made.update, made.batch_size, made.validation_fraction) == ("exact", 64, 0)
