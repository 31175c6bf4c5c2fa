"""Epochs that start with new embeddings: what is new, what stays, and what refuses them."""

import signal
from dataclasses import replace

import numpy as np
import pytest
from run_weights import assert_same_bits, values_of
from tiers import thorough

from cowclip_merlin import compat, workers
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import DeviceData, open_columns
from cowclip_merlin.models import logits
from cowclip_merlin.models.embedding import FusedEmbedding, ShardedEmbedding
from cowclip_merlin.system.signals import Stopped
from cowclip_merlin.training import RunSettings, settings_for, train
from cowclip_merlin.training.build import build_model
from cowclip_merlin.training.starting.warm_start import dense_variables
from cowclip_merlin.training.stopping.early_stopping import kept_scorings
from cowclip_merlin.training.trainer import Trainer
from cowclip_merlin.workflows import PreparedData

STD, SEED, DIM = 0.1, 5, 4
RUN = RunSettings(
    model="deepfm", mlp=(4,), embedding_dim=DIM, batch_size=64, base_batch_size=64, epochs=2,
    seed=SEED, rule="sde", update="exact", reset_embeddings=True,
    overrides={"init_std": STD, "embedding_lr": 1e-2, "dense_lr": 1e-2, "l2": 1e-3},
)  # fmt: skip
SUMS = {"l2": 0.0, "initial_accumulator": 0.25}
ADAGRAD = replace(RUN, optimizer="adagrad", overrides=RUN.overrides | SUMS)


@pytest.fixture(scope="module")
def data(small):
    return small


def drawn(fields, epoch, dim=DIM, std=STD, seed=SEED):
    """The definition: the first rows of a run whose seed is larger by 2**32 for each epoch."""
    tf = compat.tensorflow()
    seeds = [tf.constant([seed + 2**32 * epoch, number], tf.int64) for number in range(len(fields))]
    parts = zip(seeds, fields.values(), strict=True)
    draws = [tf.random.stateless_normal([rows, dim], seed) for seed, rows in parts]
    return np.float32(std) * np.concatenate(draws)


def state_of(trainer):
    """Copies of all weights and of their optimizers' numbers: of the tables, and of the others."""
    model, optimizer = trainer.model, trainer.optimizer
    tables, dense = [layer.table for layer in model.row_sync.layers], dense_variables(model)
    inner = (optimizer.embedding_optimizer, optimizer.dense_optimizer)
    slots = optimizer.row_slots
    counters = [each.iterations for each in (optimizer, *inner)]
    found = {
        "tables": tables,
        "slots": [optimizer.get_slot(x, name) for x in tables for name in slots],
        "others": [*dense, *counters, *(optimizer.get_slot(x, n) for x in dense for n in slots)],
    }
    return {name: [np.array(x) for x in variables] for name, variables in found.items()}


@pytest.fixture
def states(monkeypatch):
    """The states before the first step of each epoch, and after its last one."""
    found, train_epoch, observe = {}, Trainer._train_epoch, Trainer._observe

    def observing(self, batch, epoch, done):
        if done == 0:
            found["before", epoch] = state_of(self)
        observe(self, batch, epoch, done)

    def training(self, epoch, board):
        train_epoch(self, epoch, board)
        found["after", epoch] = state_of(self)

    monkeypatch.setattr(Trainer, "_observe", observing)
    monkeypatch.setattr(Trainer, "_train_epoch", training)
    return found


@pytest.mark.runs
@pytest.mark.parametrize(
    ("settings", "first"),
    [
        (replace(RUN, epochs=3), 0.0),
        (replace(ADAGRAD, optimizer="rowwise_adagrad"), 0.25),
        thorough(ADAGRAD, 0.25),
    ],
    ids=["adam", "rowwise_adagrad", "adagrad"],
)
def test_an_epoch_starts_with_new_tables_and_the_other_weights(
    data, tmp_path, states, settings, first
):
    rows = train(data, settings, out=tmp_path / "run")
    for epoch in range(1, settings.epochs):
        before, after = states["before", epoch], states["after", epoch - 1]
        embeddings, wide = before["tables"]
        fields = PreparedData.load(data).tables
        np.testing.assert_array_equal(embeddings, drawn(fields, epoch))
        assert not wide.any() and after["tables"][1].any()
        assert all(np.all(x == np.float32(first)) for x in before["slots"])
        for a, b in zip(after["others"], before["others"], strict=True):
            np.testing.assert_array_equal(a, b)
    steps = rows[0]["step"]
    assert [row["step"] for row in rows] == [steps * n for n in range(1, settings.epochs + 1)]


def slow(data, settings):
    """Train by a slow loop: Adam of all rows in float64, and plain gradients of the whole loss."""
    tf, prepared = compat.tensorflow(), PreparedData.load(data)
    values, rows = (
        settings.hyperparameters(prepared.kind),
        DeviceData(open_columns(prepared, "train")),
    )
    model = build_model(settings, values, prepared)
    tables = [layer.table for layer in model.row_sync.layers]
    is_table = [any(x is table for table in tables) for x in model.trainable_variables]
    moments = [np.zeros((2, *x.shape)) for x in model.trainable_variables]
    t = 0
    for epoch in range(settings.epochs):
        if epoch:
            tables[0].assign(drawn(prepared.tables, epoch))
            tables[1].assign(tf.zeros_like(tables[1]))
            for of_one, table in zip(moments, is_table, strict=True):
                of_one *= not table
        for batch in rows.batches(settings.batch_size, seed=settings.seed, epoch=epoch):
            taken = rows.unpack(batch)
            with tf.GradientTape() as tape:
                z = logits(model, taken)[:, 0]
                losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=taken.labels, logits=z)
                penalty = values.l2 * sum(tf.reduce_sum(table**2) for table in tables)
                loss = tf.reduce_mean(losses) + penalty
            t += 1
            gradients = tape.gradient(loss, model.trainable_variables)
            for x, g, (m, v), table in zip(
                model.trainable_variables, gradients, moments, is_table, strict=True
            ):
                g = np.asarray(tf.convert_to_tensor(g), np.float64)
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                rate = values.embedding_lr if table else values.dense_lr
                rate *= np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
                x.assign_sub(rate * m / (np.sqrt(v) + 1e-7))
    return [np.array(x) for x in model.trainable_variables]


@pytest.mark.runs
@pytest.mark.parametrize("update", ["exact", thorough("dense")])
def test_a_run_equals_a_slow_loop(data, tmp_path, states, update):
    train(data, replace(RUN, update=update), out=tmp_path / "run")
    expected = slow(data, RUN)
    last = states["after", 1]
    found = [*last["tables"], *last["others"]][: len(expected)]
    left = list(expected)
    for x in found:  # the order of the variables differs
        index = next(i for i, y in enumerate(left) if y.shape == x.shape)
        np.testing.assert_allclose(x, left.pop(index), rtol=1e-3, atol=1e-4)


@pytest.mark.runs
def test_other_kinds_of_tables_give_the_same_run(data, tmp_path):
    runs = {name: replace(RUN, tables=name) for name in ("fused", "per_field", "sharded")}
    losses = {
        name: [row["test_log_loss"] for row in train(data, settings, out=tmp_path / name)]
        for name, settings in runs.items()
    }
    assert losses["per_field"] == pytest.approx(losses["fused"], abs=1e-5)
    assert losses["sharded"] == pytest.approx(losses["fused"], abs=1e-5)
    plain = train(data, replace(RUN, reset_embeddings=False), out=tmp_path / "plain")
    changes = [row["test_log_loss"] - loss for row, loss in zip(plain, losses["fused"])]
    assert changes[0] == 0 and abs(changes[1]) > 1e-4


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_parts_of_tables_draw_the_rows_of_the_whole_table(monkeypatch, epoch):
    fields = {"a": 70_001, "b": 7}
    whole = FusedEmbedding(fields, 3, std=STD, seed=SEED)
    whole.build(None)
    whole.redraw(epoch)
    np.testing.assert_array_equal(whole.table, drawn(fields, epoch, dim=3))
    for rank in range(3):
        group = workers.Workers(rank, ("a:1", "b:1", "c:1"))
        monkeypatch.setattr(workers, "current", lambda group=group: group)
        layer = ShardedEmbedding(fields, 3, std=STD, seed=SEED)
        layer.build(None)
        (table,) = layer.redraw(epoch)
        np.testing.assert_array_equal(table, whole.table.numpy()[rank::3])


@pytest.mark.runs
@pytest.mark.parametrize("tables", ["fused", "per_field"])
def test_frozen_embeddings_stay(prepared, tmp_path, tables):
    lines = [f"{i % 2},{i % 7},{i % 5},0.5" for i in range(300)]
    data = prepared("\n".join(["y,a,b,x", *lines]))
    settings = replace(RUN, tables=tables, freeze_embeddings="b")
    start = build_model(settings, settings.hyperparameters("table"), data)
    train(data.path, settings, out=tmp_path / "run")
    kept = [x for x in start.non_trainable_variables if "embeddings" in x.name]
    (index,) = [i for i, x in enumerate(start.variables) if x is kept[0]]
    name = f"weights.{index}"
    np.testing.assert_array_equal(values_of(tmp_path / "run")[name], kept[0])


@pytest.mark.runs
@pytest.mark.parametrize("stop", [(0, 20), (0, None), (1, 0), (1, 20)])
def test_a_stopped_run_goes_on_to_the_same_bits(data, tmp_path, monkeypatch, stop):
    """Within an epoch, in its last step, and in the first one after a reset."""
    train(data, RUN, out=tmp_path / "straight")
    observe = Trainer._observe

    def stopping(self, batch, epoch, done):
        last = done + 16 >= self.steps
        if epoch == stop[0] and (last if stop[1] is None else done >= stop[1]):
            signal.raise_signal(signal.SIGTERM)
        observe(self, batch, epoch, done)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Trainer, "_observe", stopping)
        train(data, RUN, out=tmp_path / "run")
    train(data, RUN, out=tmp_path / "run", resume=True)
    assert_same_bits(tmp_path / "straight", tmp_path / "run")


@pytest.mark.runs
def test_more_epochs_and_the_best_epoch(data, tmp_path):
    """A longer run has the same first epochs; early stopping keeps the best one's embeddings."""
    settings = replace(RUN, validation_fraction=0.2)
    train(data, settings, out=tmp_path / "run")
    longer = replace(settings, epochs=3)
    rows = train(data, longer, out=tmp_path / "run", resume=True)
    again = replace(longer, early_stopping=3)
    stopping = train(data, again, out=tmp_path / "again")
    assert [row["validation_auc"] for row in rows] == [row["validation_auc"] for row in stopping]
    assert_same_bits(tmp_path / "run", tmp_path / "again")
    best = int(np.argmax([row["validation_auc"] for row in rows])) + 1
    assert kept_scorings(tmp_path / "again")[0] == best
    with pytest.raises(InputError, match=r"`reset_embeddings` would replace .* `from`"):
        train(data, settings, out=tmp_path / "next", warm_start=str(tmp_path / "run"))
    assert settings_for(data, warm_start=tmp_path / "run").reset_embeddings is False
