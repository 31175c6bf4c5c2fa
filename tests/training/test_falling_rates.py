"""Learning rates that fall, and scorings within an epoch."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_weights import stopped_at, values_of

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import RunSettings, evaluation, settings_for, train
from cowclip_merlin.training.stopping.early_stopping import (
    kept_scorings,
    lowered,
    plateau_falls,
    served_epoch,
)
from cowclip_merlin.training.stopping.falling_rates import FallingRates
from cowclip_merlin.training.trainer import Trainer

PLAIN = RunSettings(
    model="deepfm", mlp=(4,), embedding_dim=4, batch_size=64, base_batch_size=64, epochs=2, seed=5,
    rule="sde", validation_fraction=0.2,
)  # fmt: skip


@pytest.fixture(scope="module")
def data(small):
    return small


def runs(**changes):
    return replace(PLAIN, **changes)


def rows_of(run):
    """The metrics of a run, by column."""
    table = np.genfromtxt(run / "metrics.csv", delimiter=",", names=True)
    return {name: np.atleast_1d(table[name]) for name in table.dtype.names}


def assert_same_weights(a, b, **tolerance):
    ours, theirs = values_of(a), values_of(b)
    for name in (name for name in ours if name.startswith("weights/")):
        np.testing.assert_allclose(ours[name], theirs[name], **({"rtol": 0, "atol": 0} | tolerance))


@given(
    aucs=st.lists(st.sampled_from([0.5, 0.6, 0.7, 0.8]), min_size=1, max_size=30),
    patience=st.integers(1, 4),
    factor=st.sampled_from([0.1, 0.5]),
    floor=st.sampled_from([0.0, 0.01, 0.2]),
)
def test_a_plateau_is_that_of_keras(aucs, patience, factor, floor):
    tf = compat.tensorflow()
    optimizer = SimpleNamespace(lr=tf.Variable(1.0, dtype=tf.float64))
    optimizer.learning_rate = optimizer.lr
    keras = tf.keras.callbacks.ReduceLROnPlateau(
        monitor="auc", mode="max", factor=factor, patience=patience, min_delta=0, min_lr=floor
    )
    keras.set_model(SimpleNamespace(optimizer=optimizer))
    keras.on_train_begin()
    how = {"lr_factor": factor, "lr_patience": patience, "lr_floor": floor}
    settings = runs(**{"lr_schedule": "plateau"} | how)
    for epoch, auc in enumerate(aucs):
        keras.on_epoch_end(epoch, {"auc": auc})
        rows = [{"validation_auc": x} for x in aucs[: epoch + 1]]
        ours = lowered(settings, len(plateau_falls(rows, settings)))
        assert ours == pytest.approx(float(optimizer.lr.numpy()))


def factors(schedule, epochs, steps, *, every=1.0, by=0.1, floor=0.0):
    """The definitions, step by step."""
    for step in range(epochs * steps + 2):
        share = min(step / (epochs * steps), 1)
        if schedule == "linear":
            yield floor + (1 - floor) * (1 - share)
        elif schedule == "cosine":
            yield floor + (1 - floor) * (1 + np.cos(np.pi * share)) / 2
        else:
            yield max(by ** int(step / steps / every), floor)


@pytest.mark.parametrize(
    "how",
    [
        {"lr_schedule": "linear"},
        {"lr_schedule": "cosine", "lr_floor": 0.1},
        {"lr_schedule": "step", "lr_every": 0.5, "lr_floor": 0.0},
        {"lr_schedule": "step", "lr_factor": 0.5, "lr_floor": 0.3},
    ],
)
@pytest.mark.parametrize("first", [0, 1000])
def test_rates_fall_by_their_definition(how, first):
    falling = FallingRates(runs(epochs=3, **how), steps=8)
    falling.start(first)
    names = {"lr_every": "every", "lr_factor": "by", "lr_floor": "floor"}
    given = {names[k]: v for k, v in how.items() if k in names}
    expected = list(factors(how["lr_schedule"], 3, 8, **given))
    rate = falling.of(0.25)
    found = [float(rate(first + step)) for step in range(len(expected))]
    np.testing.assert_allclose(found, 0.25 * np.array(expected), rtol=1e-5, atol=1e-8)


def test_constant_rates_are_numbers():
    assert FallingRates(PLAIN, steps=8).of(0.25) == 0.25


@pytest.mark.runs
def test_a_run_records_the_rates_that_held(data, tmp_path):
    """And `exact` replays with them, so its weights are those of `dense`."""
    settings = runs(lr_schedule="cosine", epochs=2)
    for update in ("dense", "exact"):
        train(data, replace(settings, update=update), out=tmp_path / update)
    assert_same_weights(tmp_path / "dense", tmp_path / "exact", rtol=2e-4, atol=2e-6)
    rows = rows_of(tmp_path / "exact")
    assert not rows["clipped_share"].any() and (rows["mean_clip_factor"] == 1).all()  # no clip
    steps = int(rows["step"][0])
    expected = np.array(list(factors("cosine", 2, steps, floor=settings.rate_floor)))
    first = PLAIN.hyperparameters("table")
    for name in ("embedding_lr", "dense_lr"):
        right = getattr(first, name) * expected[rows["step"].astype(int)]
        np.testing.assert_allclose(rows[name], right, rtol=1e-5, atol=1e-9)


@pytest.mark.runs
@pytest.mark.parametrize("update", ["dense", "exact"])
def test_scoring_within_an_epoch_changes_no_weight(data, tmp_path, update):
    train(data, runs(update=update), out=tmp_path / "plain")
    train(data, runs(update=update, evaluate_every=200), out=tmp_path / "often")
    bits = {} if update == "dense" else {"rtol": 1e-5, "atol": 1e-7}  # other parts of a replay
    assert_same_weights(tmp_path / "plain", tmp_path / "often", **bits)
    plain, often = rows_of(tmp_path / "plain"), rows_of(tmp_path / "often")
    steps = int(plain["step"][0])
    assert steps % 3 == 1  # so that a step before the epoch's end there is no scoring
    within = [n for n in range(1, 2 * steps + 1) if n % steps % 3 == 0 and n % steps < steps - 1]
    assert often["step"].tolist() == within
    np.testing.assert_allclose(often["epoch"], np.array(within) / steps)
    ends = often["epoch"] % 1 == 0
    for name in ("epoch", "train_loss", "validation_auc", "validation_log_loss"):
        np.testing.assert_allclose(often[name][ends], plain[name], rtol=1e-4)


@pytest.fixture
def scripted(monkeypatch):
    """Gives the scorings of each run these AUCs, one after the other."""

    def script(*aucs):
        score, real = Trainer._score, evaluation.evaluate

        def scored(self, *rest):
            def evaluate(*given, **options):
                return replace(real(*given, **options), auc=(aucs + aucs[-1:] * 99)[len(self.rows)])

            with monkeypatch.context() as patch:
                patch.setattr(evaluation, "evaluate", evaluate)
                score(self, *rest)

        monkeypatch.setattr(Trainer, "_score", scored)

    return script


@pytest.mark.runs
def test_a_plateau_lowers_the_rates_before_the_run_stops(data, tmp_path, scripted, capsys):
    scripted(0.6, 0.7, 0.7, 0.65, 0.64, 0.63, 0.9)
    settings = runs(lr_schedule="plateau", early_stopping=1, evaluate_every=200, epochs=9)
    rows = train(data, settings, out=tmp_path / "run")
    # Falls after the third and the fourth scoring, then no more; the fifth is the last.
    assert [row["validation_auc"] for row in rows] == [0.6, 0.7, 0.7, 0.65, 0.64]
    first = PLAIN.hyperparameters("table").embedding_lr
    found = [row["embedding_lr"] / first for row in rows]
    assert found == pytest.approx([1, 1, 1, 0.1, 0.01])  # a row has the rate that it was made with
    assert kept_scorings(tmp_path / "run")[0] == 2
    words = f"epoch {rows[1]['epoch']:.6g} of {rows[-1]['epoch']:.6g} (best on validation rows)"
    assert served_epoch(tmp_path / "run") == words
    assert "validation AUC no higher: the rates fall to embedding lr" in capsys.readouterr().out
    assert len(train(data, settings, out=tmp_path / "run", resume=True)) == 5  # trains no more
    assert settings_for(data, warm_start=tmp_path / "run").lr_schedule == "constant"


@pytest.mark.runs
def test_a_stopped_run_goes_on_at_the_same_rate(data, tmp_path, scripted):
    scripted(0.6, 0.7, 0.7, 0.65, 0.9, 0.8)
    settings = runs(lr_schedule="plateau", lr_factor=0.5, evaluate_every=200, update="exact")
    straight = train(data, settings, out=tmp_path / "straight")
    with stopped_at("_score", lambda trainer, *_: len(trainer.rows) == 3):
        train(data, settings, out=tmp_path / "run")
    resumed = train(data, settings, out=tmp_path / "run", resume=True)
    assert_same_weights(tmp_path / "straight", tmp_path / "run")
    for name in ("epoch", "step", "embedding_lr", "dense_lr", "train_loss", "validation_log_loss"):
        assert [row[name] for row in resumed] == [row[name] for row in straight], name
    assert min(row["embedding_lr"] for row in resumed) < max(row["embedding_lr"] for row in resumed)


@pytest.mark.runs
def test_a_run_stopped_in_the_last_step_and_killed_while_it_scores(data, tmp_path, monkeypatch):
    settings = runs(evaluate_every=200, early_stopping=9, epochs=1)
    straight = train(data, settings, out=tmp_path / "straight")
    with stopped_at("_observe", lambda trainer, _, __, done: done == trainer.steps - 1):
        train(data, settings, out=tmp_path / "run")

    def killed(self, step, then=None):  # the metrics are written, but not the checkpoint
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "_save", killed)
        train(data, settings, out=tmp_path / "run", resume=True)
    rows = train(data, settings, out=tmp_path / "run", resume=True)
    assert [row["epoch"] for row in rows] == [row["epoch"] for row in straight]


@pytest.mark.runs
def test_a_run_from_another_one_begins_with_its_whole_rate(data, tmp_path):
    train(data, runs(epochs=1), out=tmp_path / "before")
    settings = runs(lr_schedule="linear", epochs=1, evaluate_every=200)
    rows = train(data, settings, out=tmp_path / "run", warm_start=str(tmp_path / "before"))
    first, steps = PLAIN.hyperparameters("table").embedding_lr, rows[-1]["step"] // 2
    with pytest.raises(InputError, match=r"fall over 1 epochs \(linear\).* resume with epochs 2"):
        train(data, replace(settings, epochs=2), out=tmp_path / "run", resume=True)
    found = [row["embedding_lr"] / first for row in rows]
    assert found == pytest.approx([1 - (row["step"] - steps) / steps for row in rows], abs=1e-6)


@pytest.mark.runs
def test_a_run_goes_on_from_one_whose_rates_fell(data, tmp_path):
    """Its checkpoint has no rates, unlike that of constant ones."""
    train(data, runs(epochs=1, lr_schedule="plateau"), out=tmp_path / "before")
    settings = settings_for(data, warm_start=tmp_path / "before")
    rows = train(data, settings, out=tmp_path / "run", warm_start=str(tmp_path / "before"))
    first = PLAIN.hyperparameters("table").embedding_lr
    assert [row["embedding_lr"] for row in rows] == pytest.approx([first])


@pytest.mark.runs
def test_the_log_loss_can_choose_the_best_weights(data, tmp_path, scripted):
    scripted(0.6, 0.5, 0.4, 0.3)
    settings = runs(monitor="log_loss", early_stopping=1, epochs=3, overrides={"dense_lr": 1e-4})
    rows = train(data, settings, out=tmp_path / "run")
    losses = [row["validation_log_loss"] for row in rows]
    assert kept_scorings(tmp_path / "run")[0] == losses.index(min(losses)) + 1 > 1
