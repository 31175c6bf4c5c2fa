"""Steps in a thread give the numbers of steps one after the other."""

import numpy as np
import pytest
from streams import FEATURES, messages
from tiers import thorough

from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.training.steps.step_pipeline import StepPipeline
from cowclip_merlin.online.training.trainer import OnlineTrainer
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
    for batch in list(batches())[:5]:
        wanted = reference.predict(batch)
        reference.train(batch)
        pipeline.submit(batch)
        pipeline.wait()
        np.testing.assert_array_equal(scored[-1], wanted)


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
