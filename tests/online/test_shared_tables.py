"""Columns that share a table online: against dense offline models, restarts, starts, and errors."""

import json
from dataclasses import replace

import numpy as np
import pytest
from dense_copies import take_weights
from table_schemas import schema_of_tables
from tiers import thorough

from cowclip_merlin import compat
from cowclip_merlin.batch import Batch
from cowclip_merlin.errors import InputError
from cowclip_merlin.models import logits
from cowclip_merlin.online.events.buckets import bucket_ids
from cowclip_merlin.online.events.features import (
    CategoricalColumn,
    ContinuousColumn,
    ListRules,
    LogFeatures,
)
from cowclip_merlin.online.events.ids import MISSING, text_id
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.run_config import changes_of_run, load_online_config, online_config
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.system.files import write_json
from cowclip_merlin.tables.field_rules import FieldRules
from cowclip_merlin.training.build import build_model_of, build_optimizer_of

ITEMS, USERS, ROWS = 9, 5, 60
LISTS = ListRules(separator="|")
FEATURES = LogFeatures(
    label="click",
    time="time",
    categorical=(
        CategoricalColumn(name="seen", lists=LISTS, table="item"),
        CategoricalColumn(name="user"),
        CategoricalColumn(name="item", rules=FieldRules(ttl=500)),
        CategoricalColumn(name="last", table="item"),
    ),
    continuous=(ContinuousColumn(name="age"),),
)
ALONE = replace(FEATURES, categorical=tuple(replace(c, table=None) for c in FEATURES.categorical))


def batches(number):
    """Batches with every user and every item, clicked if the item was seen."""
    rng = np.random.default_rng(3)
    for first in range(0, number * ROWS, ROWS):
        rows = []
        for i in range(ROWS):
            item, seen = int(rng.integers(ITEMS)), rng.integers(0, ITEMS, rng.integers(4))
            columns = {"item": item, "seen": seen.tolist(), "last": int(rng.integers(ITEMS))}
            columns |= {"user": i % USERS, "age": rng.random(), "time": 1000 + first + i}
            rows.append(columns | {"click": int((item in seen) != (rng.random() < 0.2))})
        events, damage = encode_messages([json.dumps(row).encode() for row in rows], FEATURES)
        assert not damage.reasons and {row["item"] for row in rows} == {*range(ITEMS)}
        yield events


class Dense:
    """The offline model with a table of fixed size, whose rows are those of the trainer."""

    def __init__(self, trainer):
        table = trainer.table
        fields = np.repeat([0, 1], [ITEMS, USERS])
        ids = np.concatenate([np.arange(ITEMS), np.arange(USERS)])
        self.rows = table.insert(fields, ids, 0)
        run = replace(trainer.settings.run, update="dense")
        values = run.hyperparameters("table")
        names = {"seen": "item", "item": "item", "last": "item"}
        sizes = {"seen": ITEMS, "user": USERS, "item": ITEMS, "last": ITEMS}
        schema = schema_of_tables(sizes, tables=names, lists=["seen"], continuous=["age"])
        self.model = build_model_of(run, values, schema, tables="fused")
        fused = {"item": ITEMS, "user": USERS}
        self.optimizer = build_optimizer_of(run, values, fields=fused, warmup_steps=0)
        self.tables, self.dense = take_weights(self.model, trainer, self.rows)

    def train(self, events):
        """One eager step, with the cross-entropy of TensorFlow."""
        tf = compat.tensorflow()
        with tf.GradientTape() as tape:
            z = logits(self.model, Batch(events.ids, events.numbers), training=True)[:, 0]
            labels = tf.constant(events.labels, tf.float32)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, z)
            loss = tf.reduce_mean(losses)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    def predict(self, events):
        z = logits(self.model, Batch(events.ids, events.numbers))[:, 0]
        return 1 / (1 + np.exp(-z.numpy().astype(np.float64)))


@pytest.mark.runs
@pytest.mark.parametrize("model", ["din", "deepfm", thorough("dcnv2"), thorough("wide_and_deep")])
def test_training_equals_the_dense_offline_model(settings_of, model):
    """Every batch has all ids, so that the updates of `lazy` are those of `dense`."""
    trainer = OnlineTrainer(settings_of(model, batch_size=ROWS), FEATURES)
    dense, first = Dense(trainer), next(batches(1))
    before = trainer.predict(first)
    for events in batches(8):
        trainer.train(events)
        dense.train(events)
    assert trainer.table.num_rows == ITEMS + USERS
    for mine, memory in zip(dense.tables, trainer.table.memory, strict=True):
        np.testing.assert_allclose(memory.w[dense.rows], mine, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(dense.dense, trainer.dense_variables, strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(trainer.predict(first), dense.predict(first), rtol=0, atol=1e-6)
    assert np.abs(trainer.predict(first) - before).max() > 0.02


def test_columns_of_a_table_have_its_ids_and_buckets():
    columns = (replace(FEATURES.categorical[2], buckets=7), *FEATURES.categorical[:2])
    features = replace(FEATURES, categorical=columns)
    row = {"item": "x", "seen": ["y", "x"], "user": None, "age": 0, "time": 5, "click": 1}
    events, damage = encode_messages([json.dumps(row).encode()], features)
    assert not damage.reasons and events.ids.lengths.tolist() == [[1, 2, 1]]
    ids = np.array([text_id("x"), text_id("y"), text_id("x")])
    assert events.ids.values.tolist() == [*bucket_ids(ids, 0, 7).tolist(), MISSING]


FILE = "label: y\ntime: t\ncategorical:\n- item\n"


def test_a_features_file_names_the_table(features_file):
    text = "- {name: seen, separator: '|', table: item}\n- {name: last, table: item}\n- user\n"
    features = features_file(FILE + text)
    assert features.shared == {"seen": "item", "last": "item"}
    assert features.tables == ("item", "user") and features.table_of_column == (0, 0, 0, 1)
    assert features.rules == {"item": FieldRules(), "user": FieldRules()}
    assert features_file(FILE).table_of_column is None


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("{name: a, table: b}", "line 5: table of 'a' is 'b'; name a .* of its own: item$"),
        ("{name: a, table: 7}", "table of 'a' is 7; "),
        ("{name: a, table: [item]}", r"table of 'a' is \['item'\]; "),
        ("{name: a, table: a}", "table of 'a' is 'a'; "),
        ("{name: a, table: b}\n- {name: b, table: item}", "table of 'a' is 'b'; "),
        ("{name: a, table: item, ttl: 1d}", "ttl of 'a' has no effect, .* of 'item'; give it"),
        ("{name: a, table: item, buckets: 9}", "buckets of 'a' has no effect"),
    ],
)
def test_a_wrong_table_is_one_line(features_file, lines, words):
    with pytest.raises(InputError, match=words) as error:
        features_file(f"{FILE}- {lines}\n")
    assert "\n" not in str(error.value)


def test_a_run_keeps_its_tables(settings_of, tmp_path):
    for features in (ALONE, FEATURES):
        config = online_config(settings_of(), features)
        write_json(tmp_path / "config.json", config)
        assert load_online_config(tmp_path)[1] == features
    before = online_config(settings_of(), ALONE)
    assert "table" not in before["features"]["categorical"][0]  # as before columns could share
    with pytest.raises(InputError, match=r"another table of 'seen' \(None, not 'item'\)"):
        changes_of_run(tmp_path, before, config)


@pytest.mark.runs
def test_the_state_of_other_tables_is_refused(settings_of):
    settings, events = settings_of(), next(batches(1))
    kept = OnlineTrainer(settings, FEATURES)
    kept.train(events)
    again = OnlineTrainer(settings, FEATURES)
    again.restore(kept.state())
    np.testing.assert_array_equal(again.predict(events), kept.predict(events))
    with pytest.raises(InputError, match="fields 0, 1, 0, 0, those of this one 0, 1, 2, 3; let"):
        OnlineTrainer(settings, ALONE).restore(kept.state())
