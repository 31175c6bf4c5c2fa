"""Collisions of ids: equal training without them, and as many as a random hash makes."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from small_experiment import run_on_log

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import CollisionLine
from cowclip_merlin.experiments.on_logs.collisions import (
    CollisionEpoch,
    best_epoch,
    draw_collisions,
    epoch_batches,
    hash_columns,
    run_collisions,
    split_rows,
)
from cowclip_merlin.experiments.tables import read_table
from cowclip_merlin.metrics import log_loss, roc_auc
from cowclip_merlin.online import OnlineSettings
from cowclip_merlin.online.events.columns import ListRules
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.events.values import MISSING
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.tables import FieldRules
from cowclip_merlin.training.run_settings import RunSettings

ROWS = 3000
RATES = {"embedding_lr": 0.01, "dense_lr": 0.01, "init_std": 0.1}


@pytest.fixture(scope="module")
def features(drifting_log):
    return load_features(drifting_log / "log.csv.yaml")


@pytest.fixture(scope="module")
def events(drifting_log, features):
    return Events.concatenate(list(EventLog([drifting_log / "log.csv"], features)))


@pytest.fixture(scope="module")
def settings():
    run = RunSettings(
        model="deepfm", batch_size=256, mlp=(8,), embedding_dim=4, update="lazy", overrides=RATES,
        seed=7,
    )  # fmt: skip
    return OnlineSettings(run=run)


def line_of(load, *columns, epochs=1):
    return CollisionLine(label="", load=load, columns=columns, epochs=epochs)


def usual_training(events, features, settings, epochs):
    """Train on the ids as they are, without any code of the experiment but its row order."""
    settings = replace(settings, capacity=9000)
    trainer = OnlineTrainer(settings, features)
    train, test = split_rows(len(events))
    scored = events.filter(test)
    for epoch in range(1, epochs + 1):
        for rows in epoch_batches(train, settings.run.batch_size, settings.run.seed, epoch):
            trainer.train(events.filter(rows))
        rows = trainer.table.lookup(scored.ids)
        inputs = {"categorical": rows.values, "continuous": scored.numbers}
        yield trainer, scored.labels, trainer.model.predict_on_batch(inputs)[:, 0]


@pytest.mark.thorough
def test_load_0_is_training_without_hashing(events, features, settings):
    rules = FieldRules(ttl=1, admit=2)  # must not apply
    columns = tuple(replace(column, rules=rules) for column in features.categorical)
    strict = replace(features, categorical=columns)
    found = list(run_collisions(events, strict, settings, line_of(0.0, epochs=2)))
    plain = replace(features, categorical=tuple(type(c)(name=c.name) for c in features.categorical))
    usual = usual_training(events, plain, settings, 2)
    for each, (trainer, labels, scores) in zip(found, usual, strict=True):
        assert each.auc == roc_auc(labels, scores)
        assert each.log_loss == log_loss(labels, scores)
        assert each.ids == each.hashed_ids == trainer.table.num_rows
        assert 0 <= each.clipped_share < 1 and each.mean_clip_factor <= 1


@pytest.mark.thorough
def test_the_weights_of_events_count(events, features, settings):
    """In training and in the metrics; a row of weight 0 only makes ids."""
    weights = (np.arange(ROWS) % 3).astype("f4")
    weighted = replace(events, weights=weights), replace(features, weight="w")
    (plain,) = run_collisions(events, features, settings, line_of(0.0))
    (found,) = run_collisions(*weighted, settings, line_of(0.0))
    ((_, labels, scores),) = usual_training(*weighted, settings, 1)
    given = {"sample_weight": weights[split_rows(ROWS)[1]]}
    assert found.auc == pytest.approx(roc_auc(labels, scores, **given), abs=1e-6)
    assert found.log_loss == pytest.approx(log_loss(labels, scores, **given), rel=1e-5)
    assert found.auc != plain.auc
    nothing = replace(weighted[0], weights=np.zeros_like(weights)), weighted[1]
    with pytest.raises(InputError, match="all test rows have one label"):
        list(run_collisions(*nothing, settings, line_of(0.0)))


def test_ids_fall_and_counts_rise_as_of_a_random_hash(events, features, settings):
    train, _ = split_rows(ROWS)
    names = [column.name for column in features.categorical]
    chosen = ("user", "item")
    mine = [names.index(name) for name in chosen]
    found = {}
    for load in (0.0, 1.0, 4.0):
        (found[load],) = run_collisions(events, features, settings, line_of(load, *chosen))
    every = [len(np.unique(events.ids.values[:, c])) for c in mine]
    trained = [len(np.unique(events.ids.values[train, c])) for c in mine]
    assert found[0.0].hashed_ids == sum(trained)
    for load in (1.0, 4.0):
        buckets = [round(n / load) for n in every]
        expected = sum(m * -np.expm1(-n / m) for n, m in zip(trained, buckets, strict=True))
        assert found[load].hashed_ids == pytest.approx(expected, rel=0.05)
        assert found[0.0].ids - found[load].ids == found[0.0].hashed_ids - found[load].hashed_ids
    assert found[0.0].count < found[1.0].count < found[4.0].count


def test_hashed_ids_with_missing_values():
    ids = np.arange(40_000).reshape(-1, 2)
    ids[:100, 1] = MISSING
    for load in (0.0, 0.059, 0.163, 1.0, 4.0):
        hashed = hash_columns(ids, [1], load, seed=3)
        np.testing.assert_array_equal(hashed[:, 0], ids[:, 0])
        np.testing.assert_array_equal(hashed[:, 1] == MISSING, ids[:, 1] == MISSING)
        n = 19_900
        buckets = round(n / load) if load else 0
        expected = buckets * -np.expm1(-n / buckets) if load else n
        assert len(np.unique(hashed[100:, 1])) == pytest.approx(expected, rel=0.01)
        other = hash_columns(ids, [1], load, seed=4)
        assert np.array_equal(hashed, other) == (not load)


def test_splits():
    train, test = split_rows(100)
    assert len(test) == 20 and sorted([*train, *test]) == list(range(100))
    assert test.tolist() != list(range(80, 100))
    batches = epoch_batches(np.arange(10), 4, 1, 1)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(np.concatenate(batches)) == list(range(10))
    assert not np.array_equal(batches[0], epoch_batches(np.arange(10), 4, 1, 2)[0])


def test_columns_and_logs_that_do_not_fit(events, features, settings):
    with pytest.raises(InputError, match="movie"):
        next(run_collisions(events, features, settings, line_of(0.0, "movie")))
    first, *others = features.categorical
    first = replace(first, lists=ListRules(separator="|"))
    lists = replace(features, categorical=(first, *others))
    with pytest.raises(InputError, match="several values per row, which this experiment"):
        next(run_collisions(events, lists, settings, line_of(0.0)))
    with pytest.raises(InputError, match="the log has 2 rows"):
        split_rows(2)
    one = replace(events, labels=np.zeros_like(events.labels))
    with pytest.raises(InputError, match="have one label"):
        next(run_collisions(one, features, settings, line_of(0.0)))


def made_results(load):
    return [
        CollisionEpoch(
            load=load, seed=seed, epoch=epoch, auc=0.8 - load / 100 + seed / 1000 + epoch / 500,
            log_loss=0.5, ids=1000, hashed_ids=500, count=2.0, clipped_share=0.01,
            mean_clip_factor=0.9,
        )
        for seed in (1, 2) for epoch in (1, 2, 3)
    ]  # fmt: skip


def test_the_best_epoch():
    assert best_epoch(made_results(0.0)) == 3


def test_the_figure_has_a_curve_for_each_line():
    """Also of two lines with one load, which may hash other columns."""
    lines = {"none": made_results(0.0), "users": made_results(4.0), "items": made_results(4.0)}
    figure = draw_collisions(lines)
    (axes,), (legend,) = figure.axes, figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*lines]
    assert axes.get_lines()[0].get_xdata().tolist() == [1, 2, 3]
    np.testing.assert_allclose(axes.get_lines()[1].get_ydata(), [76.35, 76.55, 76.75])
    assert len(axes.collections) == 3


DEFINITION = """
kind: collisions
title: "Small collisions: two loads"
claim: Nothing.
corner: ids per bucket
reference: none
lines:
  - {label: none, load: 0, epochs: 2, columns: [user]}
  - {label: "4", load: 4, epochs: 2, columns: [user]}
"""


@pytest.mark.thorough
def test_loads_are_compared_seed_by_seed(tmp_path, drifting_log, capsys):
    (tmp_path / "small.yaml").write_text(DEFINITION)
    out = tmp_path / "results"

    def run(*more):
        assert run_on_log(drifting_log, tmp_path, out, "small", more=more) == 0
        return capsys.readouterr().out

    assert "4 runs, the first one tells the time" in run("--dry-run")
    said = run()
    assert said.count("[4/4] seed 2, 4: AUC") == 1
    frame = pd.read_csv(out / "collisions.csv")
    assert len(frame) == 8 and frame.config_hash.nunique() == 4
    plain, hashed = (frame[frame.load == load].hashed_ids.max() for load in (0, 4))
    assert plain > 3 * hashed
    table = read_table(out / "tables/small.json")
    best = frame[frame.load == 0].groupby("epoch").auc.mean().idxmax()
    at_best = frame[frame.epoch == best].pivot(index="seed", columns="load", values="auc") * 100
    rows = dict(table.rows)
    assert rows["none"][0].mean == pytest.approx(at_best[0].mean())
    assert rows["4"][1].mean == pytest.approx((at_best[4] - at_best[0]).mean())
    assert table.notes[-1].startswith(f"After epoch {best}, ")
    assert (out / "figures/small.svg").exists()
    assert "no run is missing" in run("--dry-run")
    assert "[1/" not in run() and len(pd.read_csv(out / "collisions.csv")) == 8
