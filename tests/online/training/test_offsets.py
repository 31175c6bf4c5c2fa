"""Training on sampled negatives: the gradient, and the click rate that is served."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.batch import Ids
from cowclip_merlin.online.events.events import Damage, Events
from cowclip_merlin.online.events.features import CategoricalColumn, LogFeatures
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.events.sample_rates import sample_rate_offsets
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.training.trainer import OnlineTrainer

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
    from cowclip_merlin import compat
    from cowclip_merlin.optimizer.cowclip import CowClip

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


@pytest.mark.thorough
def test_offsets_of_zero_train_as_no_offsets(settings_of):
    weights = []
    for offsets in (None, np.zeros(6)):
        trainer = OnlineTrainer(settings_of(), FEATURES)
        trainer.train(events_of([1, 2, 3, 1, 2, 9], [0, 1, 0, 0, 1, 0], offsets))
        weights.append(trainer.dense_weights())
    for left, right in zip(*weights):
        np.testing.assert_allclose(left, right, rtol=1e-6)


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
@pytest.mark.parametrize("corrected", [True, False])
def test_served_probabilities_are_the_click_rates(settings_of, corrected):
    items, labels = sampled_events()
    offsets = np.full(len(items), np.log(RATE)) if corrected else None
    rates = {"embedding_lr": 0.05, "dense_lr": 0.05, "init_std": 0.1, "l2": 0.0}
    trainer = OnlineTrainer(settings_of(overrides=rates), FEATURES)
    events = events_of(items, labels, offsets)
    for _ in range(80):  # of the whole log: the noise of small batches is larger than 1%
        trainer.train(events)
    served = trainer.predict(events_of(np.arange(ITEMS), np.zeros(ITEMS)))
    if corrected:
        assert served.mean() == pytest.approx(TRUE.mean(), rel=0.01)
        np.testing.assert_allclose(served, TRUE, rtol=0.15)
    else:
        assert served.mean() > 4 * TRUE.mean()


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
