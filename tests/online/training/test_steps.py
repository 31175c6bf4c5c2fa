"""Steps in a thread, steps of several times the batch size, and rates that fall."""

from dataclasses import replace

import numpy as np
import pytest
from streams import FEATURES, messages
from tiers import thorough

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.training.trainer import OnlineTrainer, StepPipeline
from cowclip_merlin.scaling import ADAM_RULES
from cowclip_merlin.training.train_step import Diverged

BATCHES = 30


def batches():
    for first in range(0, 32 * BATCHES, 32):
        yield encode_messages(messages(range(first, first + 32)), FEATURES)[0]


def one_after_the_other(trainer):
    for i, batch in enumerate(batches()):
        rows = trainer.table.admit(batch.ids, batch.times)
        trainer.table.hold(rows)
        trainer.step(rows, batch, batch_factor=1 + 3 * (i % 2))
        trainer.table.expire()


@pytest.mark.parametrize("max_rows", [thorough(None), 60])
def test_equal_to_steps_one_after_the_other(settings_of, max_rows):
    """Also where each batch drops ids: with 60 rows, two batches fill the table."""
    settings = settings_of(batch_size=32, table={"capacity": 3000, "max_rows": max_rows})
    reference = OnlineTrainer(settings, FEATURES, catch_up=4)
    one_after_the_other(reference)
    trainer, scored = OnlineTrainer(settings, FEATURES, catch_up=4), []
    pipeline = StepPipeline(trainer, lambda *scores: scored.append(scores[:2]))
    for i, batch in enumerate(batches()):
        pipeline.submit(batch, 1 + 3 * (i % 2))
    pipeline.wait()
    pipeline.close()
    mine, wanted = trainer.state(), reference.state()
    assert mine.keys() == wanted.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], wanted[name], err_msg=name)
    statistics = trainer.table.statistics()
    assert statistics.evicted > 10 if max_rows else statistics.expired > 20
    assert [len(scores) for _, scores in scored] == [32] * BATCHES


def test_a_batch_is_scored_before_its_step(settings_of):
    trainer = OnlineTrainer(settings_of(batch_size=32), FEATURES)
    reference = OnlineTrainer(settings_of(batch_size=32), FEATURES)
    scored = []
    pipeline = StepPipeline(trainer, lambda labels, scores, _: scored.append(scores))
    for i, batch in enumerate(list(batches())[:4]):
        batch = replace(batch, offsets=np.full(32, -i, np.float32) if i else None)
        logit = -np.log(1 / reference.predict(batch) - 1)
        reference.train(batch)
        pipeline.submit(batch)
        pipeline.wait()
        wanted = 1 / (1 + np.exp(-(logit + i)))  # of the stream, in which negatives are missing
        np.testing.assert_allclose(scored[-1], wanted, rtol=1e-5)


def test_an_error_of_the_step_reaches_the_caller(settings_of, monkeypatch):
    trainer = OnlineTrainer(settings_of(batch_size=32), FEATURES)
    pipeline = StepPipeline(trainer, lambda *scores: None)
    batch = next(batches())
    for memory in trainer.table.memory:  # the rows that new ids read
        memory.w[:] = np.inf
    monkeypatch.setattr(trainer.table, "admit", lambda ids, *_, **__: trainer.table.lookup(ids))
    pipeline.submit(batch)
    with pytest.raises(Diverged):
        pipeline.wait()
    pipeline.close()


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


@pytest.mark.parametrize(
    ("update", "changes", "words"),
    [
        ("exact", {"l2": 1.0}, 'update="exact" .*one L2'),
        *(
            ("lazy", {name: value}, f"{name} cannot change")
            for name, value in (("epsilon", 1.0), ("clip", "none"), ("typo", 1.0))
        ),
        # Rows would take the new beta, and the rate that corrects it the old one.
        ("lazy", {"beta_1": 0.5}, "beta_1 needs two optimizers VaryingAdam"),
    ],
)
def test_numbers_that_a_step_cannot_have_are_refused(update, changes, words):
    optimizer = cc.CowClip(update=update)
    with pytest.raises(InputError, match=words), optimizer.tracing_with(**changes):
        pass


def test_linear_rates_are_those_set_by_hand(settings_of, monkeypatch):
    """Batches of odd sizes, also 8 times as large; the rates stay at the floor after 500 events."""
    how = {"batch_size": 32, "rule": "cowclip"}
    linear = {"lr_schedule": "linear", "lr_floor": 0.25, "table": {"lr_events": 500}}
    falling = settings_of(**how, **linear)
    falling = OnlineTrainer(falling, FEATURES, catch_up=8)
    by_hand = OnlineTrainer(settings_of(**how), FEATURES, catch_up=8)
    first, seen = 0, []
    for n, factor in [(32, 1), (256, 8), (17, 1), (200, 8), (32, 1), (256, 8), (32, 1)]:
        share = np.float64(0.25 + 0.75 * max(0, 1 - first / 500))
        monkeypatch.setattr(by_hand, "_fallen", lambda share=share: share)
        for trainer in (falling, by_hand):
            batch, _ = encode_messages(messages(range(first, first + n)), FEATURES)
            trainer.step(trainer.table.admit(batch.ids, batch.times), batch, batch_factor=factor)
        usual = by_hand.settings.run.hyperparameters("table")
        if factor == 1:
            rates = falling.optimizer.learning_rates
            wanted = share * np.array([usual.embedding_lr, usual.dense_lr])
            np.testing.assert_allclose(rates, wanted, rtol=1e-6)
        seen.append(share)
        first += n
    assert seen[0] == 1 and seen[3] > 0.25 and seen[-3:] == [0.25] * 3
    mine, wanted = falling.state(), by_hand.state()
    for name in wanted:
        np.testing.assert_allclose(mine[name], wanted[name], rtol=1e-4, atol=1e-6, err_msg=name)
    constant = OnlineTrainer(settings_of(**how), FEATURES, catch_up=8)
    constant.step(constant.table.admit(batch.ids, batch.times), batch)
    assert constant.learning_rates == (usual.embedding_lr, usual.dense_lr)
