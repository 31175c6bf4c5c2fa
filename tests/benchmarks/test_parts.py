"""What benchmarks make themselves: ids in larger tables, trainings with workers."""

import numpy as np
import pytest

from cowclip_merlin.bench.random_data import criteo_fields, random_rows
from cowclip_merlin.cli import build_parser
from cowclip_merlin.cli.train import settings_from_args
from cowclip_merlin.training import run_logs


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


def test_runs_are_trained_with_the_settings_of_their_case(workers):
    for tables, value in (("mirrored", "fused"), ("sharded", "sharded")):
        words = workers.train_words(workers.Case(64, tables, 3), "DATA", "RUN", 4)
        args = build_parser().parse_args(words)
        assert (args.tables, args.workers, args.epochs) == (value, 3, 4)
        made = settings_from_args(args)
        for name in ("seed", "embedding_dim", "mlp"):
            assert getattr(made, name) == getattr(workers.MODEL, name)
        assert (made.update, made.batch_size, made.validation_fraction) == ("exact", 64, 0)
