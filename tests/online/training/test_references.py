"""Sampled negatives and late positives; `tests/columns/test_stream` trains on their offsets."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.batch import Ids
from cowclip_merlin.online.events.columns import CategoricalColumn
from cowclip_merlin.online.events.events import Damage, Events, sample_rate_offsets
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.training.trainer import OnlineTrainer

FEATURES = LogFeatures(
    label="click", time="time", key="request", categorical=(CategoricalColumn(name="item"),)
)


def events_of(items, labels, offsets=None):
    n = len(items)
    return Events(
        ids=Ids(np.asarray(items, np.int64)[:, None]),
        numbers=np.zeros((n, 0), np.float32),
        labels=np.asarray(labels, np.int8),
        times=np.zeros(n, np.int64),
        offsets=None if offsets is None else np.asarray(offsets, np.float32),
    )


def test_without_offsets_no_second_graph_is_traced(settings_of):
    trainer = OnlineTrainer(settings_of(), FEATURES)
    trainer.train(events_of([1, 2], [0, 1]))
    assert list(trainer._steps) == [(1, False)]
    trainer.train(events_of([1, 2], [0, 1], [-1, -1]))
    assert list(trainer._steps) == [(1, False), (1, True)]


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
