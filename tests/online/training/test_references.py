"""Training on lists and on sampled negatives, against slow references."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin import compat
from cowclip_merlin.batch import Ids
from cowclip_merlin.online.events.columns import CategoricalColumn, ContinuousColumn, ListRules
from cowclip_merlin.online.events.events import Damage, Events, sample_rate_offsets
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.replaying.replay import ServingCopy
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.tables import FieldRules

FEATURES = LogFeatures(
    label="click", time="time", key="request", categorical=(CategoricalColumn(name="item"),)
)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def events_of(items, labels, offsets=None):
    n = len(items)
    return Events(
        ids=Ids(np.asarray(items, np.int64)[:, None]),
        numbers=np.zeros((n, 0), np.float32),
        labels=np.asarray(labels, np.int8),
        times=np.zeros(n, np.int64),
        offsets=None if offsets is None else np.asarray(offsets, np.float32),
    )


@pytest.fixture
def gradients(monkeypatch):
    """Steps change nothing; name of each dense variable -> its gradient."""
    from cowclip_merlin import CowClip, compat

    tf, kept = compat.tensorflow(), {}

    def apply_gradients(self, pairs, *args, **more):
        for gradient, variable in pairs:
            if variable.name in kept:
                kept[variable.name].assign(gradient)

    def keep(model):
        dense = [v for v in model.trainable_variables if v.shape.num_elements() < 100]
        kept.update({v.name: tf.Variable(tf.zeros_like(v)) for v in dense})
        return kept

    monkeypatch.setattr(CowClip, "apply_gradients", apply_gradients)
    return keep


@pytest.mark.parametrize("offsets", [None, [0.0, -2.3, -0.7, -2.3, 0.0, -4.0]])
def test_loss_and_gradient_equal_a_slow_reference(settings_of, gradients, offsets):
    trainer = OnlineTrainer(settings_of(overrides={"init_std": 1.0}), FEATURES)
    kept = gradients(trainer.model)
    events = events_of([1, 2, 3, 1, 2, 9], [0, 1, 0, 0, 1, 0], offsets)
    rows = trainer.table.admit(events.ids, events.times)
    trainer._steps.clear()  # traced before the gradients were kept
    trainer._steps[1, False] = trainer._trace_step(1)
    served = trainer.score(rows, events.numbers).astype(np.float64)
    trainer.step(rows, events)
    loss, slopes = 0.0, []
    for p, label, offset in zip(served, events.labels, offsets or [0.0] * len(events)):
        trained = sigmoid(np.log(p / (1 - p)) - offset)
        loss -= np.log(trained if label else 1 - trained)
        slopes.append(trained - label)
    # The bias of the last layer is added to each logit, so its gradient is the mean slope.
    bias = trainer.model.blocks[0].logit.bias
    np.testing.assert_allclose(kept[bias.name].numpy(), [np.mean(slopes)], rtol=1e-5)
    np.testing.assert_allclose(trainer._loss_sum.numpy(), loss, rtol=1e-5)


def test_without_offsets_no_second_graph_is_traced(settings_of):
    trainer = OnlineTrainer(settings_of(), FEATURES)
    trainer.train(events_of([1, 2], [0, 1]))
    assert list(trainer._steps) == [(1, False)]
    trainer.train(events_of([1, 2], [0, 1], [-1, -1]))
    assert list(trainer._steps) == [(1, False), (1, True)]


ITEMS, SHOWN, RATE = 10, 600_000, 0.1
TRUE = np.linspace(0.01, 0.1, ITEMS)


def sampled_events():
    """Clicks at known rates, and the negatives that a join with q = 0.1 keeps."""
    settings = JoinSettings(window=60, negatives=RATE)
    item = np.arange(SHOWN) % ITEMS
    # A sequence without clumps, so that the click rates are the true ones.
    label = (np.arange(SHOWN) * 0.6180339887498949 % 1) < TRUE[item]
    kept = label | np.array([settings.keeps_negative(str(i)) for i in range(SHOWN)])
    assert abs(label.mean() / TRUE.mean() - 1) < 1e-3
    return item[kept], label[kept]


@pytest.mark.thorough
def test_served_probabilities_are_the_click_rates(settings_of):
    items, labels = sampled_events()
    rates = {"embedding_lr": 0.05, "dense_lr": 0.05, "init_std": 0.1, "l2": 0.0}
    trainer = OnlineTrainer(settings_of(overrides=rates), FEATURES)
    events = events_of(items, labels, np.full(len(items), np.log(RATE)))
    for _ in range(80):  # of the whole log: the noise of small batches is larger than 1%
        trainer.train(events)
    served = trainer.predict(events_of(np.arange(ITEMS), np.zeros(ITEMS)))
    assert served.mean() == pytest.approx(TRUE.mean(), rel=0.01)
    np.testing.assert_allclose(served, TRUE, rtol=0.15)


@given(st.lists(st.one_of(st.none(), st.floats(1e-6, 1.0)), min_size=1))
def test_offsets_are_the_logs_of_the_rates(rates):
    damage = Damage()
    offsets = sample_rate_offsets(rates, damage)
    expected = [0.0 if rate is None else np.log(rate) for rate in rates]
    assert not damage.reasons
    if offsets is None:
        assert not any(expected)
    else:
        assert offsets.dtype == np.float32
        np.testing.assert_allclose(offsets, expected, rtol=1e-6)


@pytest.mark.parametrize("rate", [0, -0.1, 1.5, "0.1", True, [0.5]])
def test_a_wrong_rate_is_damaged(rate):
    damage = Damage()
    sample_rate_offsets([0.5, rate, 1], damage)
    assert list(damage.reasons) == [1]
    assert "sample_rate is" in damage.reasons[1]


def messages(*more):
    base = {"request": "a", "time": 5, "item": 7, "click": 1}
    return [json.dumps(base | each).encode() for each in more]


def test_messages_carry_their_rates():
    name = "cowclip_sample_rate"
    events, damage = encode_messages(messages({}, {name: 0.5}), FEATURES)
    np.testing.assert_allclose(events.offsets, [0, np.log(0.5)], rtol=1e-6)
    assert not damage.reasons
    assert encode_messages(messages({}, {name: 1}), FEATURES)[0].offsets is None


def test_a_late_positive_is_no_repeat_of_its_negative():
    late = [{"cowclip_late": x} for x in (1, 1, 0)]
    given = messages({"click": 0}, *late, {"request": "b"})
    keys = encode_messages(given, FEATURES)[0].keys
    assert keys[0] == keys[3]
    assert keys[1] == keys[2]
    assert len(set(keys.tolist())) == 3


def test_parts_with_and_without_offsets_concatenate():
    plain, sampled = events_of([1, 2], [0, 1]), events_of([3], [0], [-2])
    assert Events.concatenate([plain, sampled]).offsets.tolist() == [0, 0, -2]
    assert Events.concatenate([sampled, plain]).offsets.tolist() == [-2, 0, 0]
    assert Events.concatenate([plain, plain]).offsets is None
    assert Events.concatenate([sampled, plain]).filter(slice(1)).offsets.tolist() == [-2]


ROWS, BATCH = 600, 50


LISTS = ListRules(separator="|", combiner="sqrtn")
LISTED = LogFeatures(
    label="click",
    time="time",
    categorical=(
        CategoricalColumn(name="user"),
        CategoricalColumn(name="tags", rules=FieldRules(admit=2, ttl=400), lists=LISTS),
        CategoricalColumn(name="films", lists=replace(LISTS, combiner="sum")),
    ),
    continuous=(ContinuousColumn(name="age"),),
)


def rows_with_lists():
    rng = np.random.default_rng(4)
    for i in range(ROWS):
        tags, films = (rng.integers(0, 20, rng.choice([0, 1, 2, 5])).tolist() for _ in range(2))
        click = int((3 in tags) != (rng.random() < 0.2))
        one = {"time": 1000 + i, "user": int(rng.integers(40)), "age": rng.random(), "click": click}
        yield one | {"tags": tags, "films": films}


def batches_of(rows, features):
    rows = list(rows)
    for first in range(0, len(rows), BATCH):
        values = [json.dumps(row).encode() for row in rows[first : first + BATCH]]
        events, damage = encode_messages(values, features)
        assert not damage.reasons
        yield events


def inputs_of(rows, table):
    """Each column as lists of table rows, looked up one by one; and the numbers."""
    tf, columns = compat.tensorflow(), {}
    for field, name in enumerate(("user", "tags", "films")):
        lists = [row[name] if isinstance(row[name], list) else [row[name]] for row in rows]
        found = [[looked_up(table, field, id_) for id_ in ids] for ids in lists]
        columns[name] = tf.ragged.constant(found, tf.int64, ragged_rank=1)
    return columns | {"age": np.array([row["age"] for row in rows], np.float32)}


def looked_up(table, field, id_):
    lengths = np.zeros((1, 3), np.int32)
    lengths[0, field] = 1
    return int(table.lookup(Ids(np.array([id_]), lengths)).values[0])


def scaled(age, column):
    return column.scaling.apply(age.astype(np.float64)).astype(np.float32)


@pytest.mark.runs
def test_training_and_scores_are_those_of_a_slow_reference(settings_of):
    """The reference is eager, with a ragged tensor for each column and rows found one by one."""
    tf, settings, rows = compat.tensorflow(), settings_of(), list(rows_with_lists())
    trainer, slow = (OnlineTrainer(settings, LISTED) for _ in range(2))
    copy = ServingCopy(trainer)
    copy.start()
    for first, events in zip(range(0, ROWS, BATCH), batches_of(rows, LISTED)):
        trainer.train(events)
        slow.table.admit(events.ids, events.times)
        part = rows[first : first + BATCH]
        inputs = inputs_of(part, slow.table)
        inputs["age"] = scaled(inputs["age"], LISTED.continuous[0])
        labels = tf.constant([[row["click"]] for row in part], tf.float32)
        with tf.GradientTape() as tape:
            scores = slow.model(inputs, training=True)
            loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(labels, scores))
        variables = slow.model.trainable_variables
        slow.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        slow.table.expire()
    wanted = slow.table.state()
    for name, x in trainer.table.state().items():
        if "changes" not in name:
            np.testing.assert_allclose(x, wanted[name], rtol=1e-3, atol=1e-5, err_msg=name)
    for one, other in zip(trainer.dense_weights(), slow.dense_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    copy.sync()
    wanted = slow.model(inputs, training=False).numpy()[:, 0]
    for found in (trainer.predict(events), copy.predict(events)):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
    assert np.ptp(wanted) > 0.1
