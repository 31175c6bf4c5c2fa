"""Several labels of an event: training, metrics, restarts, and refusals."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from dense_copies import take_weights
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score
from stream_labels import FEATURES, TEXT, TWO, write_log
from streams import assert_equal_but_rounding
from table_schemas import schema_of_tables
from tiers import thorough

from cowclip_merlin import compat
from cowclip_merlin.batch import Batch
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.online.collisions import CollisionSettings, run_collisions
from cowclip_merlin.models import logits
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.features_file import load_features
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.joining.run_join import join_logs
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.producing.producer import Targets
from cowclip_merlin.online.replaying.replay_folder import replay_log
from cowclip_merlin.online.replaying.settings import ReplaySettings
from cowclip_merlin.online.run_config import load_online_config, online_config, refuse_difference
from cowclip_merlin.online.training.recent_scores import TargetScores
from cowclip_merlin.online.training.start import OfflineStart
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.serving.live.follower import Follower
from cowclip_merlin.system.files import write_json
from cowclip_merlin.tables.snapshot import load_snapshot, part_of
from cowclip_merlin.targets import targets_of
from cowclip_merlin.training.build import build_model_of, build_optimizer_of

USERS, ITEMS, ROWS = 5, 9, 60


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_log()


def test_the_labels_of_a_run_are_kept(settings_of, features_file, tmp_path):
    one = features_file(TEXT.replace("[click, buy, sec]", "[click]").replace("regression: sec", ""))
    assert one == replace(FEATURES, more_labels=(), regression=())
    for features in (one, TWO, FEATURES):
        write_json(tmp_path / "config.json", online_config(settings_of(), features))
        assert load_online_config(tmp_path)[1] == features
    config = online_config(settings_of(), one)
    assert not {"more_labels", "regression"} & {*config["features"]}  # as before there were such
    for features, name in ((TWO, "more_labels"), (FEATURES, "regression")):
        with pytest.raises(InputError, match=f"another .*{name}"):
            refuse_difference(tmp_path, config, online_config(settings_of(), features))


def batches(number, features):
    """Batches with every user and every item; each label is missing in some rows."""
    rng, targets = np.random.default_rng(3), len(features.labels)
    for first in range(0, number * ROWS, ROWS):
        rows = []
        for i in range(ROWS):
            user, item = i % USERS, i % ITEMS
            columns = {"user": user, "item": item, "price": rng.random(), "key": str(first + i)}
            click = int((user + item) % 2 != (rng.random() < 0.2))
            labels = [click, int(click and item > 4), 3.0 * click + user][:targets]
            for missing in np.flatnonzero(rng.random(targets) < 0.2)[: targets - 1]:
                labels[missing] = None
            rows.append(columns | {"time": 1000 + first} | dict(zip(features.labels, labels)))
        events, damage = encode_messages([json.dumps(row).encode() for row in rows], features)
        assert not damage.reasons and np.isnan(events.labels).any(axis=0).all()
        yield events


class Dense:
    """The offline model with tables of fixed size, whose rows are those of the trainer."""

    def __init__(self, trainer):
        from merlin.schema import ColumnSchema, Schema, Tags

        table, features = trainer.table, trainer.features
        fields = np.repeat([0, 1], [USERS, ITEMS])
        self.rows = table.insert(fields, np.r_[0:USERS, 0:ITEMS], 0)
        run = replace(trainer.settings.run, update="dense")
        values, sizes = run.hyperparameters("table"), {"user": USERS, "item": ITEMS}
        plain = schema_of_tables(sizes, tables={}, lists=[], continuous=["price"])
        kinds = {False: Tags.BINARY_CLASSIFICATION, True: Tags.REGRESSION}
        labels = [
            ColumnSchema(name, dtype=np.float32, tags=[Tags.TARGET, kinds[regression]])
            for name, regression in features.targets
        ]
        schema = Schema([*plain.excluding_by_name(["click"]), *labels])
        several = {"multi_task": run.multi_task, "mmoe_experts": run.experts}
        self.model = build_model_of(run, values, schema, tables="fused", **several)
        self.optimizer = build_optimizer_of(run, values, fields=sizes, warmup_steps=0)
        self.tables, self.dense = take_weights(self.model, trainer, self.rows)
        self.targets = features.targets

    def loss(self, labels, z):
        """The sum of the losses of all labels that are there, divided by the rows."""
        tf, total = compat.tensorflow(), 0.0
        for k, target in enumerate(self.targets):
            known = np.flatnonzero(~np.isnan(labels[:, k]))
            y, mine = labels[known, k], tf.gather(z[:, k], known)
            if target.regression:
                total += tf.reduce_sum((mine - y) ** 2)
            else:
                p = tf.sigmoid(mine)
                total -= tf.reduce_sum(y * tf.math.log(p) + (1 - y) * tf.math.log(1 - p))
        return total / len(labels)

    def train(self, events):
        """One eager step."""
        tf = compat.tensorflow()
        with tf.GradientTape() as tape:
            z = logits(self.model, Batch(events.ids, events.numbers), training=True)
            loss = self.loss(events.labels, z)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return float(loss)

    def predict(self, events):
        z = logits(self.model, Batch(events.ids, events.numbers)).numpy().astype(np.float64)
        kinds = [target.regression for target in self.targets]
        return np.where(kinds, z, 1 / (1 + np.exp(-z)))


@pytest.mark.runs
@pytest.mark.parametrize(
    ("model", "how"),
    [
        ("deepfm", "shared_bottom"),
        thorough("dcnv2", "mmoe"),
        thorough("wide_and_deep", "esmm"),
        thorough("dcn", "esmm"),
        thorough("deepfm", "mmoe"),
    ],
)
def test_training_equals_the_dense_offline_model(settings_of, model, how):
    """Every batch has all ids, so that the updates of `lazy` are those of `dense`."""
    features = TWO if how == "esmm" else FEATURES
    more = {"experts": 3} if how == "mmoe" else {}
    settings = settings_of(model, batch_size=ROWS, multi_task=how, **more)
    trainer = OnlineTrainer(settings, features)
    dense, (first, *_) = Dense(trainer), batches(1, features)
    before, loss = trainer.predict(first), 0.0
    np.testing.assert_allclose(before, dense.predict(first), rtol=0, atol=1e-6)
    for events in batches(3, features):
        trainer.train(events)
        loss += dense.train(events) * ROWS
    assert trainer.table.num_rows == ITEMS + USERS and before.shape == (ROWS, len(features.labels))
    np.testing.assert_allclose(trainer._loss_sum.numpy(), loss, rtol=1e-5)
    for mine, memory in zip(dense.tables, trainer.table.memory, strict=True):
        np.testing.assert_allclose(memory.w[dense.rows], mine, rtol=1e-4, atol=1e-6)
    for mine, theirs in zip(dense.dense, trainer.dense_variables, strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(trainer.predict(first), dense.predict(first), rtol=0, atol=1e-5)
    assert (np.abs(trainer.predict(first) - before).max(axis=0) > 1e-3).all()


LABELS = st.sampled_from([0.0, 1.0, None])
SCORES = st.integers(1, 99).map(lambda x: x / 100)


def close(found, wanted):
    return found is None if wanted is None else found == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@given(
    st.lists(
        st.tuples(LABELS, SCORES, st.none() | st.integers(-9, 9), st.integers(-9, 9)),
        max_size=40,
    ),
    st.booleans(),
)
def test_recent_scores_of_each_target(rows, weighted):
    scores = TargetScores(targets_of(["click", "sec"], ["sec"]), events=10)
    weights = np.arange(len(rows)) % 3 if weighted else np.ones(len(rows))
    for part in (slice(i, i + 7) for i in range(0, len(rows), 7)):
        columns = [np.array([row[k] for row in rows[part]], np.float32) for k in range(4)]
        given = (np.stack(columns[0::2], 1), np.stack(columns[1::2], 1))
        scores.add(*given, weights[part].astype(np.float32) if weighted else None)

    def newest(label):
        found = [(r[label], r[label + 1], w) for r, w in zip(rows, weights) if r[label] is not None]
        return np.array([each for each in found[-10:] if each[2]], np.float64).reshape(-1, 3).T

    found = scores.metrics()
    assert list(found) == ["click_auc", "click_log_loss", "sec_rmse"] == list(scores.columns)
    labels, given, weight = newest(0)
    both = len({*labels}) == 2
    auc = roc_auc_score(labels, given, sample_weight=weight) if both else None
    loss = log_loss(labels, given, sample_weight=weight, labels=[0, 1]) if len(labels) else None
    assert close(found["click_auc"], auc) and close(found["click_log_loss"], loss)
    labels, given, weight = newest(2)
    rmse = np.sqrt(np.average((labels - given) ** 2, weights=weight)) if len(labels) else None
    assert close(found["sec_rmse"], rmse)


@pytest.mark.parametrize("features", [FEATURES, TWO])
def test_what_takes_one_label_refuses_several(features, tmp_path, settings_of):
    pair = Targets(impressions=FileLog(tmp_path / "i"), actions=FileLog(tmp_path / "a"))
    replay = ReplaySettings(batch_days=0, sync=("1h",))
    calls = {
        "a log of clicks": lambda: pair.check(features),
        "cowclip online join": lambda: join_logs(
            "I", "A", to="E", features=features, state=tmp_path / "s", settings=None
        ),
        "a replay": lambda: replay_log(
            ["log.csv"], features, settings_of(), replay, out=tmp_path / "r"
        ),
        "this experiment": lambda: next(
            run_collisions(None, features, settings_of(), CollisionSettings(), [1])
        ),
    }
    for what, call in calls.items():
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value).startswith(f"{what} takes one label of 0 and 1, but the data has")
        assert "\n" not in str(error.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"i", "a"}


@pytest.mark.parametrize(
    ("labels", "how", "reason"),
    [
        (("buy", "sec"), "esmm", "esmm needs two labels of 0 and 1, such as click and purchase"),
        ((), "mmoe", "mmoe has no effect with one label"),
    ],
)
def test_settings_that_do_not_fit_the_labels(settings_of, labels, how, reason):
    features = replace(FEATURES, more_labels=labels, regression=labels[1:])
    with pytest.raises(InputError, match=reason):
        OnlineTrainer(settings_of(multi_task=how), features)


MODEL = ["--model", "deepfm", "--batch-size", "64", "--mlp", "8", "--embedding-dim", "4"]


def train(out, *more):
    words = ["--from", "EVENTS", "--features", "f.yaml", "--capacity", "4000", "--until-end"]
    return main(["online", "train", *words, "--out", out, *MODEL, *more])


@pytest.fixture
def offline(log):
    """A run on the log with the same labels, and its prepared folder."""
    columns = ["--label", "click,buy,sec", "--regression", "sec", "--categorical", "user,item"]
    columns += ["--continuous", "price", "--freq-threshold", "0", "--device", "cpu"]
    assert main(["prepare", "table", "log.csv", *columns, "--out", "DATA"]) == 0
    several = ["--multi-task", "mmoe", "--experts", "2"]
    assert main(["train", "DATA", *MODEL, *several, "--epochs", "2", "--out", "OFFLINE"]) == 0
    Path("f.yaml").write_text(f"{TEXT}prepared: DATA\n", encoding="utf-8")


@pytest.mark.runs
@pytest.mark.thorough
def test_a_stream_starts_from_a_run_with_the_same_labels_only(log, offline, settings_of, capsys):
    features, model = load_features("f.yaml"), {"multi_task": "mmoe", "experts": 2}
    trainer = OnlineTrainer(settings_of(batch_size=64, **model), features)
    OfflineStart("OFFLINE", "DATA", trainer).apply(0)
    found = [trainer.predict(events) for events in EventLog(["log.csv"], features)]
    assert main(["score", "OFFLINE", "log.csv", "--data", "DATA", "--out", "scores.parquet"]) == 0
    names = ["probability_click", "probability_buy", "prediction_sec"]
    scores = pd.read_parquet("scores.parquet")[names]
    np.testing.assert_allclose(np.concatenate(found), scores.to_numpy(), rtol=0, atol=1e-5)
    assert (scores.std() > 1e-4).all()
    for other, reason in (
        ({"multi_task": "mmoe", "experts": 3}, "was trained with experts 2, not 3"),
        ({"multi_task": "shared_bottom"}, "was trained with multi_task mmoe, not shared_bottom"),
    ):
        trainer = OnlineTrainer(settings_of(batch_size=64, **other), features)
        with pytest.raises(InputError, match=reason):
            OfflineStart("OFFLINE", "DATA", trainer)
    for other, reason in (
        ({"more_labels": ("buy", "sec"), "regression": ()}, "those .* are click, buy, sec; name"),
        ({"more_labels": ("sec",)}, r"its labels are click, buy, sec \(a number\), but those"),
    ):
        trainer = OnlineTrainer(settings_of(**model), replace(features, **other))
        with pytest.raises(InputError, match=reason):
            OfflineStart("OFFLINE", "DATA", trainer)


@pytest.mark.runs
def test_from_a_file_to_a_served_model(log, capsys):
    """Half of the stream and then the rest, against all of it at once."""
    for out, files in (("HALVES", ("first.csv", "rest.csv")), ("WHOLE", ("log.csv",))):
        log[:704].to_csv("first.csv", index=False)
        log[704:].to_csv("rest.csv", index=False)
        shutil.rmtree("EVENTS", ignore_errors=True)
        for file in files:
            produce = ["online", "produce", file, "--features", "f.yaml", "--to", "EVENTS"]
            assert main(produce) == 0 and train(out, "--to", f"{out}.SYNC") == 0
        assert "trained 1,500 events" in capsys.readouterr().out
    assert_equal_but_rounding(Path("HALVES"), Path("WHOLE"), 1500)
    whole = load_snapshot("WHOLE/snapshots")
    rows = Path("WHOLE/metrics.csv").read_text(encoding="utf-8").splitlines()
    row = [*csv.DictReader(rows)][-1]
    assert row["click_auc"] == row["auc"] and row["click_log_loss"] == row["log_loss"]
    assert float(row["buy_auc"]) > 0.3 and 0.1 < float(row["sec_rmse"]) < 3
    text = Path("WHOLE/train.log").read_text(encoding="utf-8")
    assert f", buy AUC {100 * float(row['buy_auc']):.2f} %, sec RMSE" in text

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
    assert wanted.shape == (1500, 3) and (np.ptp(wanted, axis=0) > 1e-3).all()
