"""`CowClip.of` builds the optimizer that the hyper-parameters describe."""

from dataclasses import replace

import pytest

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError

BASE = cc.Hyperparameters(batch_size=32, dense_lr=8e-4, l2=1e-4)
AT = cc.scale(replace(BASE, warmup_epochs=1.0), to=1024, rule="sde")


def test_everything_but_the_initialization_is_taken():
    optimizer = cc.CowClip.of(AT, steps_per_epoch=10, update="lazy", clip="column")
    config = optimizer.get_config()
    assert (config["update"], config["clip"]) == ("lazy", "column")
    for name in ("l2", "r", "zeta", "bound", "lambda_rel", "lambda_abs"):
        assert config[name] == getattr(AT, name)
    for inner in (optimizer.embedding_optimizer, optimizer.dense_optimizer):
        adam = inner.get_config()
        for name in ("beta_1", "beta_2", "epsilon"):
            assert adam[name] == pytest.approx(getattr(AT, name))
    assert float(optimizer.embedding_optimizer.learning_rate) == pytest.approx(AT.embedding_lr)
    rates = [float(optimizer.learning_rate(step)) for step in (0, 5, 10, 20)]
    assert rates == pytest.approx([0, AT.dense_lr / 2, AT.dense_lr, AT.dense_lr])


def test_a_warm_up_needs_the_steps_of_an_epoch():
    for values in (cc.scale("criteo", to=1024), cc.scale(BASE, to=1024, rule="cowclip")):
        with pytest.raises(InputError, match=r"warmup_epochs is 1, .*steps_per_epoch"):
            cc.CowClip.of(values)
    with pytest.raises(InputError, match="warmup_epochs is 1e"):
        cc.CowClip.of(cc.Hyperparameters(warmup_epochs=1e12), steps_per_epoch=10)


@pytest.mark.parametrize("values", [BASE, cc.scale(BASE, to=1024)])
def test_the_settings_of_a_small_batch_neither_warm_up_nor_clip(values):
    optimizer = cc.CowClip.of(values)
    assert float(optimizer.learning_rate) == pytest.approx(values.dense_lr)
    assert optimizer.config.clip == "none"


def test_the_clip_follows_the_rule():
    paper = cc.scale(BASE, to=1024, rule="cowclip")
    assert cc.CowClip.of(paper, steps_per_epoch=1).config.clip == "cowclip"
    assert cc.CowClip.of(cc.scale("avazu", to=1024), steps_per_epoch=1).config.clip == "cowclip"
    assert cc.CowClip.of(cc.scale("avazu", to=1024, rule="sqrt")).config.clip == "none"
    assert cc.CowClip.of(AT, steps_per_epoch=1, clip="cowclip").config.clip == "cowclip"


def test_what_the_hyperparameters_say_is_not_given_twice():
    with pytest.raises(TypeError, match="l2"):
        cc.CowClip.of(AT, steps_per_epoch=1, l2=0.0)
