"""Training on events with lists, against a slow reference."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tiers import thorough

from cowclip_merlin import compat
from cowclip_merlin.batch import Ids
from cowclip_merlin.online.events.features import (
    CategoricalColumn,
    ContinuousColumn,
    ListRules,
    LogFeatures,
)
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.replaying.serving_copy import ServingCopy
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.tables.layout import FieldRules

pytestmark = pytest.mark.runs
ROWS, BATCH = 600, 50


def features_of(lists, admit=2):
    tags = CategoricalColumn(name="tags", rules=FieldRules(admit=admit, ttl=400), lists=lists)
    films = CategoricalColumn(name="films", lists=lists and replace(lists, combiner="sum"))
    return LogFeatures(
        label="click",
        time="time",
        categorical=(CategoricalColumn(name="user"), tags, films),
        continuous=(ContinuousColumn(name="age"),),
    )


FEATURES = features_of(ListRules(separator="|", combiner="sqrtn"))


def rows_of(sizes):
    """Rows with lists; `sizes` are those that a list may have."""
    rng = np.random.default_rng(4)
    for i in range(ROWS):
        tags, films = (rng.integers(0, 20, rng.choice(sizes)).tolist() for _ in range(2))
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


@pytest.mark.parametrize("model", ["deepfm", thorough("dcn"), thorough("wide_and_deep")])
def test_training_and_scores_are_those_of_a_slow_reference(settings_of, model):
    """The reference is eager, with a ragged tensor for each column and rows found one by one."""
    tf, settings, rows = compat.tensorflow(), settings_of(model), list(rows_of([0, 1, 2, 5]))
    trainer, slow = (OnlineTrainer(settings, FEATURES) for _ in range(2))
    copy = ServingCopy(trainer)
    copy.start()
    for first, events in zip(range(0, ROWS, BATCH), batches_of(rows, FEATURES)):
        trainer.train(events)
        slow.table.admit(events.ids, events.times)
        part = rows[first : first + BATCH]
        inputs = inputs_of(part, slow.table)
        inputs["age"] = scaled(inputs["age"], FEATURES.continuous[0])
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
