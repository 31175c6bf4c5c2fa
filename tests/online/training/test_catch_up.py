"""A step at several times the batch size is that of a training with that batch size."""

import numpy as np
import pytest
from streams import FEATURES, messages

import cowclip_merlin as cc
from cowclip_merlin.choices import ClipSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.scaling import ADAM_RULES


def test_large_steps_equal_those_of_the_large_batch(settings_of):
    small = OnlineTrainer(settings_of(batch_size=32), FEATURES, catch_up=8)
    large = OnlineTrainer(settings_of(batch_size=256), FEATURES)
    for first in range(0, 1024, 256):
        batch, _ = encode_messages(messages(range(first, first + 256)), FEATURES)
        small.step(small.table.admit(batch.ids, batch.times), batch, batch_factor=8)
        small.table.expire()
        large.train(batch)
    mine, wanted = small.state(), large.state()
    for name in wanted:
        np.testing.assert_array_equal(mine[name], wanted[name], err_msg=name)
    batch, _ = encode_messages(messages(range(32)), FEATURES)
    small.train(batch)  # and back
    values = settings_of(batch_size=32).run.hyperparameters("table")
    assert float(small.optimizer.dense_optimizer.learning_rate) == pytest.approx(values.dense_lr)


@pytest.mark.parametrize("rule", ADAM_RULES)
def test_large_steps_by_a_rule_of_adam_equal_those_of_the_large_batch(settings_of, rule):
    """Adam's second moments have the unit of the small batch: 8 times those of the large one."""
    more = {"rule": rule, "base_batch_size": 32, "clip": "cowclip"}
    small = OnlineTrainer(settings_of(batch_size=32, **more), FEATURES, catch_up=8)
    large = OnlineTrainer(settings_of(batch_size=256, **more), FEATURES)
    for first in range(0, 1024, 256):
        batch, _ = encode_messages(messages(range(first, first + 256)), FEATURES)
        small.step(small.table.admit(batch.ids, batch.times), batch, batch_factor=8)
        small.table.expire()
        large.train(batch)
    for mine, wanted in zip(small.dense_weights(), large.dense_weights(), strict=True):
        np.testing.assert_allclose(mine, wanted, atol=1e-6)
    mine, wanted = small.table.state(), large.table.state()
    np.testing.assert_allclose(mine["table0.w"], wanted["table0.w"], atol=1e-6)
    np.testing.assert_allclose(mine["table0.v"], 8 * wanted["table0.v"], rtol=1e-3, atol=1e-12)
    assert wanted["table0.v"].any()


def test_sde_goes_on_from_a_state_between_two_sizes(settings_of):
    def trainer():
        return OnlineTrainer(settings_of(batch_size=32, rule="sde"), FEATURES, catch_up=8)

    def train(one, factors, first):
        for factor in factors:
            n = 32 * factor
            batch, _ = encode_messages(messages(range(first, first + n)), FEATURES)
            one.step(one.table.admit(batch.ids, batch.times), batch, batch_factor=factor)
            first += n
        return first

    whole, again = trainer(), trainer()
    first = train(whole, [1, 8, 1, 8], 0)
    again.restore({name: x.copy() for name, x in whole.state().items()})
    for one in (whole, again):
        train(one, [8, 1, 8, 1], first)
    mine, wanted = again.state(), whole.state()
    for name in wanted:
        np.testing.assert_array_equal(mine[name], wanted[name], err_msg=name)


def test_exact_updates_have_one_l2():
    optimizer = cc.CowClip(update="exact")
    with (
        pytest.raises(InputError, match=r'update="exact" .*one L2'),
        optimizer.tracing_with(l2=1.0, clip_settings=ClipSettings()),
    ):
        pass
