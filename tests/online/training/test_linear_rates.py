"""Learning rates that fall in online training, also with dropout and moving statistics."""

import csv

import numpy as np
import pytest
from streams import EVENTS, FEATURES, final_state, messages, stream_trainer
from test_stream_trainer import killed_twice
from tiers import thorough

from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.tables.snapshot import load_snapshot

LAYERS = {"activation": "dice", "batch_norm": True, "dropout": 0.3}
LINEAR = {"lr_schedule": "linear", "lr_floor": 0.25}


def batch_of(first, n):
    return encode_messages(messages(range(first, first + n)), FEATURES)[0]


@pytest.mark.parametrize("rule", ["cowclip", thorough("sde")])
def test_linear_rates_are_those_set_by_hand(settings_of, monkeypatch, rule):
    """Batches of odd sizes, also 8 times as large; the rates stay at the floor after 500 events."""
    how = {"batch_size": 32, "rule": rule}
    falling = settings_of(**how, **LINEAR, table={"lr_events": 500})
    falling = OnlineTrainer(falling, FEATURES, catch_up=8)
    by_hand = OnlineTrainer(settings_of(**how), FEATURES, catch_up=8)
    first, seen = 0, []
    for n, factor in [(32, 1), (256, 8), (17, 1), (200, 8), (32, 1), (256, 8), (32, 1)]:
        share = np.float64(0.25 + 0.75 * max(0, 1 - first / 500))
        monkeypatch.setattr(by_hand, "_fallen", lambda share=share: share)
        for trainer in (falling, by_hand):
            batch = batch_of(first, n)
            trainer.step(trainer.table.admit(batch.ids, batch.times), batch, batch_factor=factor)
        usual = by_hand.settings.run.hyperparameters("table")
        if factor == 1:
            rates = falling.optimizer.learning_rates
            np.testing.assert_allclose(
                rates, share * np.array([usual.embedding_lr, usual.dense_lr]), rtol=1e-6
            )
        seen.append(share)
        first += n
    assert seen[0] == 1 and seen[3] > 0.25 and seen[-3:] == [0.25] * 3
    mine, wanted = falling.state(), by_hand.state()
    for name in wanted:
        np.testing.assert_allclose(mine[name], wanted[name], rtol=1e-4, atol=1e-6, err_msg=name)
    constant = OnlineTrainer(settings_of(**how), FEATURES, catch_up=8)
    constant.step(constant.table.admit(batch.ids, batch.times), batch)
    assert constant.learning_rates == (usual.embedding_lr, usual.dense_lr)


@pytest.mark.runs
def test_killed_it_ends_the_same_and_its_files_show_the_rates(
    tmp_path, settings_of, events, monkeypatch
):
    table = {"capacity": 3000, "lr_events": 800}
    settings = settings_of(batch_size=32, table=table, **LAYERS, **LINEAR)
    stream_trainer(tmp_path / "whole", settings, events, FileLog(tmp_path / "to")).run()
    whole = final_state(tmp_path / "whole")
    assert killed_twice(tmp_path, settings, events, 2, monkeypatch) == whole
    arrays = load_snapshot(tmp_path / "whole/snapshots").arrays
    assert arrays["trainer.trained"] == EVENTS
    counts = {name: x for name, x in arrays.items() if name.startswith("trainer.count")}
    assert counts == {"trainer.count0": -(-EVENTS // 32)}  # steps of the only dropout
    (row,) = csv.DictReader((tmp_path / "whole/metrics.csv").open())
    usual = settings.run.hyperparameters("table")
    assert float(row["embedding_lr"]) == pytest.approx(0.25 * usual.embedding_lr)
    assert float(row["dense_lr"]) == pytest.approx(0.25 * usual.dense_lr)
