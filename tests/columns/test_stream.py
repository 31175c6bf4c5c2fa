"""Streams of events with every role: against a dense offline model, and from a file to a server."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data import ROLES, VECTORS, features_of, frame, write
from dense_copies import take_weights
from streams import assert_equal_but_rounding
from table_schemas import schema_of_tables
from tiers import thorough

from cowclip_merlin import compat
from cowclip_merlin.batch import Batch
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.models import logits
from cowclip_merlin.online import open_log
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.replaying.replay import ServingCopy
from cowclip_merlin.online.run_config import load_online_config
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.serving.live.follower import Follower
from cowclip_merlin.tables.snapshot import load_snapshot, part_of
from cowclip_merlin.targets import targets_of
from cowclip_merlin.training.build import build_model_of, build_optimizer_of

pytestmark = pytest.mark.runs
SIZES = {"user": 4, "item": 6, "note": 3, "tags seen": 5}
BATCH, TARGETS = 60, ROLES["labels"].columns
NUMBERS = ["age", *(f"{name}{j}" for name, n in VECTORS.items() for j in range(n))]


def features_with(labels, tmp_path):
    """All roles with one, two or three labels; the last of three is a number."""
    file = tmp_path / "f.yaml"
    file.write_text(features_of(*ROLES), encoding="utf-8")
    features = load_features(file)
    more = TARGETS[1:labels]
    return replace(features, more_labels=more, regression=TARGETS[2:labels])


def batches(number, features):
    """Batches with every id of every table; each label is missing in some rows."""
    rng, targets = np.random.default_rng(3), len(features.labels)
    for first in range(0, number * BATCH, BATCH):
        rows = []
        for i in range(BATCH):
            row = {"time": 1000 + first, "key": str(first + i), "w": rng.integers(0, 4) / 2}
            row |= {"user": i % 4, "item": i % 6, "note": str(i % 3), "age": 90 * rng.random()}
            row |= {name: rng.normal(size=n).tolist() for name, n in VECTORS.items()}
            row["tags seen"], row["liked"] = (
                rng.integers(0, n, rng.integers(0, 4)).tolist() for n in (5, 6)
            )
            click = int((row["item"] in row["liked"]) != (row["image"][1] > 0))
            labels = [click, int(click and i % 6 > 2), 3.0 * click + i % 4][:targets]
            for missing in np.flatnonzero(rng.random(targets) < 0.2)[: targets - 1]:
                labels[missing] = None
            rows.append(row | dict(zip(features.labels, labels)))
        assert {t for row in rows for t in row["tags seen"]} == {*range(5)}
        events, damage = encode_messages([json.dumps(row).encode() for row in rows], features)
        assert not damage.reasons
        if targets == 1:
            events = replace(events, offsets=np.float32(-rng.integers(0, 4, BATCH)))
        yield events


class Dense:
    """The offline model with tables of fixed size, whose rows are those of the trainer."""

    def __init__(self, trainer):
        from merlin.schema import ColumnSchema, Schema, Tags

        features, run = trainer.features, replace(trainer.settings.run, update="dense")
        fields = np.repeat(np.arange(4), [*SIZES.values()])
        ids = np.concatenate([np.arange(n) for n in SIZES.values()])
        self.rows = trainer.table.insert(fields, ids, 0)
        lists = {"tables": {"liked": "item"}, "lists": ["tags seen", "liked"]}
        sizes = SIZES | {"liked": SIZES["item"]}
        plain = schema_of_tables(sizes, continuous=NUMBERS, **lists)
        kinds = {False: Tags.BINARY_CLASSIFICATION, True: Tags.REGRESSION}
        labels = [
            ColumnSchema(name, dtype=np.float32, tags=[Tags.TARGET, kinds[regression]])
            for name, regression in features.targets
        ]
        schema = Schema([*plain.excluding_by_name(["click"]), *labels])
        values = run.hyperparameters("table")
        several = {"multi_task": run.multi_task, "mmoe_experts": run.experts}
        several = several if len(features.labels) > 1 else {}
        self.model = build_model_of(run, values, schema, tables="fused", **several)
        self.optimizer = build_optimizer_of(run, values, fields=SIZES, warmup_steps=0)
        self.tables, self.dense = take_weights(self.model, trainer, self.rows)
        self.targets = features.targets

    def loss(self, events, z):
        """The weighted sum of the losses of all labels that are there, by the sum of weights."""
        tf, total, w = compat.tensorflow(), 0.0, events.weights
        labels = np.float32(events.labels).reshape(len(w), -1)
        for k, target in enumerate(self.targets):
            known = np.flatnonzero(~np.isnan(labels[:, k]))
            y, mine = labels[known, k], tf.gather(z[:, k], known)
            if events.offsets is not None:
                mine -= events.offsets[known]
            p = tf.sigmoid(mine)
            each = y * tf.math.log(p) + (1 - y) * tf.math.log(1 - p)
            total += tf.reduce_sum(w[known] * ((mine - y) ** 2 if target.regression else -each))
        return total / w.sum()

    def train(self, events):
        """One eager step; return the sum of the losses."""
        tf = compat.tensorflow()
        with tf.GradientTape() as tape:
            z = logits(self.model, Batch(events.ids, events.numbers), training=True)
            loss = self.loss(events, z)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return float(loss) * events.weights.sum()

    def predict(self, events):
        z = logits(self.model, Batch(events.ids, events.numbers)).numpy().astype(np.float64)
        found = np.where([t.regression for t in self.targets], z, 1 / (1 + np.exp(-z)))
        return found[:, 0] if len(self.targets) == 1 else found


@pytest.mark.parametrize(
    ("model", "labels", "how"),
    [
        ("deepfm", 3, "shared_bottom"),
        ("din", 1, "shared_bottom"),
        thorough("dcnv2", 3, "mmoe"),
        thorough("wide_and_deep", 2, "esmm"),
        thorough("dcn", 2, "esmm"),
        thorough("deepfm", 1, "shared_bottom"),
    ],
)
def test_training_equals_the_dense_offline_model(settings_of, tmp_path, model, labels, how):
    """Every batch has all ids, so that the updates of `lazy` are those of `dense`."""
    features = features_with(labels, tmp_path)
    more = {"experts": 3} if how == "mmoe" else {}
    continuous = "all" if labels == 3 else "deep"
    settings = settings_of(model, batch_size=BATCH, multi_task=how, continuous=continuous, **more)
    trainer = OnlineTrainer(settings, features)
    dense, (first, *_) = Dense(trainer), batches(1, features)
    copy = ServingCopy(trainer)
    copy.start()
    before, loss = trainer.predict(first), 0.0
    np.testing.assert_allclose(before, dense.predict(first), rtol=0, atol=1e-6)
    for events in batches(3, features):
        trainer.train(events)
        loss += dense.train(events)
    assert trainer.table.num_rows == sum(SIZES.values())
    np.testing.assert_allclose(trainer._loss_sum.numpy(), loss, rtol=1e-5)
    for mine, memory in zip(dense.tables, trainer.table.memory, strict=True):
        np.testing.assert_allclose(memory.w[dense.rows], mine, rtol=1e-4, atol=1e-6)
    for mine, theirs in zip(dense.dense, trainer.dense_variables, strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=1e-4, atol=1e-6)
    copy.sync()
    for found in (trainer.predict(first), copy.predict(first)):
        np.testing.assert_allclose(found, dense.predict(first), rtol=0, atol=1e-5)
    assert (np.abs(trainer.predict(first) - before).max(axis=0) > 1e-3).all()
    if labels == 3:
        again = OnlineTrainer(settings, features)
        again.restore(trainer.state())
        np.testing.assert_array_equal(again.predict(first), trainer.predict(first))
        columns = [replace(column, table=None) for column in features.categorical]
        with pytest.raises(
            InputError, match="fields 0, 1, 2, 3, 1, those of this one 0, 1, 2, 3, 4"
        ):
            alone = replace(features, categorical=tuple(columns))
            OnlineTrainer(settings, alone).restore(trainer.state())


def test_a_batch_of_weight_0_changes_no_weight(settings_of, tmp_path):
    features = features_with(3, tmp_path)
    trainer, (first, second) = OnlineTrainer(settings_of(), features), batches(2, features)
    trainer.train(first)

    def state():
        rows = trainer.table.lookup(first.ids).values
        tables = [table.numpy()[rows] for table in trainer.tables]
        return [x.copy() for x in (*trainer.dense_weights(), *tables)]

    before = state()
    trainer.train(replace(second, weights=np.zeros(BATCH, np.float32)))
    for a, b in zip(before, state(), strict=True):
        np.testing.assert_array_equal(a, b)
    trainer.train(second)
    assert any((a != b).any() for a, b in zip(before, state(), strict=True))


MODEL = ["--model", "deepfm", "--batch-size", "64", "--mlp", "8", "--embedding-dim", "4"]


def train(out, *more):
    words = ["--from", "EVENTS", "--features", "f.yaml", "--capacity", "4000", "--until-end"]
    return main(["online", "train", *words, "--out", out, *MODEL, *more])


def test_from_a_file_to_a_served_model(tmp_path, monkeypatch, capsys):
    """Half of the stream and then the rest, against all of it at once; damage is set aside."""
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_text(features_of(*ROLES), encoding="utf-8")
    wrong = json.loads(json.dumps(frame().to_dict("records")[0], default=float)) | {"w": -1}
    parts = {"first.csv": frame()[:704], "rest.csv": frame()[704:], "log.csv": frame()}
    for name, rows in parts.items():
        write(Path(name), rows)
    for out, files in (("HALVES", ("first.csv", "rest.csv")), ("WHOLE", ("log.csv",))):
        shutil.rmtree("EVENTS", ignore_errors=True)
        for file in files:
            produce = ["online", "produce", file, "--features", "f.yaml", "--to", "EVENTS"]
            assert main(produce) == 0
            if out == "WHOLE":
                open_log("EVENTS").append([json.dumps(wrong).encode()])
            assert train(out, "--to", f"{out}.SYNC") == 0
        assert "trained 1,200 events" in capsys.readouterr().out
    assert_equal_but_rounding(Path("HALVES"), Path("WHOLE"), 1200)
    assert "no weight" in Path("WHOLE/damaged.jsonl").read_text(encoding="utf-8")
    whole = load_snapshot("WHOLE/snapshots")
    rows = Path("WHOLE/metrics.csv").read_text(encoding="utf-8").splitlines()
    row = [*csv.DictReader(rows)][-1]
    assert row["click_auc"] == row["auc"] and row["click_log_loss"] == row["log_loss"]
    assert float(row["bought it_auc"]) > 0.3 and float(row["seconds_rmse"]) > 0.1
    text = Path("WHOLE/train.log").read_text(encoding="utf-8")
    assert f", bought it AUC {100 * float(row['bought it_auc']):.2f} %, seconds RMSE" in text

    sync, (settings, features) = FileLog("WHOLE.SYNC"), load_online_config("WHOLE")
    follower = Follower(lambda: sync)
    while follower.step():
        pass
    trainer = OnlineTrainer(settings, features)
    trainer.restore(part_of(whole.arrays, "trainer."))
    events = next(iter(EventLog(["log.csv"], features)))
    wanted = trainer.predict(events)
    found = follower.model.predict(events).probabilities
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    assert wanted.shape == (1200, 3) and (np.ptp(wanted, axis=0) > 1e-3).all()
    assert features.targets == targets_of(TARGETS, ["seconds"])
