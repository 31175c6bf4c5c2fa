"""A step at several times the batch size is that of a training with that batch size."""

import numpy as np
import pytest
from streams import FEATURES, messages

import cowclip_merlin as cc
from cowclip_merlin.choices import ClipSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.trainer import OnlineTrainer
from cowclip_merlin.workflows.online.messages import encode_messages


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


def test_exact_updates_have_one_l2():
    optimizer = cc.CowClip(update="exact")
    with (
        pytest.raises(InputError, match='update="exact" has one L2'),
        optimizer.tracing_with(l2=1.0, clip_settings=ClipSettings()),
    ):
        pass
