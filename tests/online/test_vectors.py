"""Training on events with vectors: against columns of single numbers, and its configuration."""

import json

import numpy as np
import pytest
from tiers import thorough

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import (
    CategoricalColumn,
    ContinuousColumn,
    ListRules,
    LogFeatures,
    VectorColumn,
)
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.events.numbers import NumberScaling
from cowclip_merlin.online.replaying.serving_copy import ServingCopy
from cowclip_merlin.online.run_config import changes_of_run, load_online_config, online_config
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.system.files import write_json
from cowclip_merlin.tables.field_rules import FieldRules

ROWS, BATCH, LENGTHS = 400, 50, {"text": 3, "image": 2}


def features_of(vectors=(), singles=()):
    unscaled = NumberScaling(transform="none")
    numbers = [ContinuousColumn(name=name, scaling=unscaled) for name in singles]
    item = CategoricalColumn(name="item", rules=FieldRules(admit=2, ttl=200))
    seen = CategoricalColumn(name="seen", lists=ListRules(separator="|"), table="item")
    return LogFeatures(
        label="click",
        time="time",
        categorical=(CategoricalColumn(name="user"), item, seen),
        continuous=(ContinuousColumn(name="age"), *numbers),
        vectors=tuple(VectorColumn(name=name, length=LENGTHS[name]) for name in vectors),
    )


VECTORS = features_of(vectors=LENGTHS)
SINGLES = features_of(singles=[f"{name}{j}" for name, n in LENGTHS.items() for j in range(n)])


def rows_of():
    """Rows with vectors, of which the first one tells the label; and with single numbers."""
    rng = np.random.default_rng(4)
    for i in range(ROWS):
        vectors = {name: rng.normal(size=n).tolist() for name, n in LENGTHS.items()}
        row = {"time": 1000 + i, "user": i * i % 23, "item": i // 30 + i % 4, "age": rng.random()}
        row["seen"] = [i // 30 + j for j in range(i % 3)]
        row["click"] = int(vectors["text"][1] > 0)
        singles = {f"{name}{j}": x for name, v in vectors.items() for j, x in enumerate(v)}
        yield row | vectors, row | singles


def batches_of(rows, features):
    for first in range(0, ROWS, BATCH):
        values = [json.dumps(row).encode() for row in rows[first : first + BATCH]]
        events, damage = encode_messages(values, features)
        assert not damage.reasons
        yield events


@pytest.mark.runs
@pytest.mark.parametrize(
    ("model", "continuous"),
    [
        ("deepfm", "deep"),
        thorough("deepfm", "all"),
        thorough("wide_and_deep", "all"),
        thorough("dcn", "all"),
        thorough("dcnv2", "all"),
        thorough("din", "deep"),
    ],
)
def test_vectors_train_as_columns_of_single_numbers(settings_of, model, continuous):
    """The slow reference is a trainer with a column of its own for each number, unscaled."""
    settings = settings_of(model, continuous=continuous)
    whole = OnlineTrainer(settings, VECTORS)
    reference = OnlineTrainer(settings, SINGLES)
    copy = ServingCopy(whole)
    copy.start()
    rows, singles = zip(*rows_of())
    for events, single in zip(batches_of(rows, VECTORS), batches_of(singles, SINGLES)):
        np.testing.assert_array_equal(events.numbers, single.numbers)
        before = whole.predict(events)
        for trainer, batch in ((whole, events), (reference, single)):
            trainer.train(batch)
    found = whole.state()  # with the changes that the copy has not
    for name, x in reference.state().items():
        np.testing.assert_allclose(found[name], x, rtol=1e-4, atol=1e-6, err_msg=name)
    copy.sync()
    scores = reference.predict(single)
    for found in (whole.predict(events), copy.predict(events)):
        np.testing.assert_allclose(found, scores, rtol=1e-5, atol=1e-6)
    assert np.abs(scores - before).max() > 1e-3


@pytest.mark.runs
def test_a_model_learns_from_a_vector(settings_of):
    rows, _ = zip(*rows_of())
    batches = list(batches_of(rows, VECTORS))
    trainer = OnlineTrainer(settings_of(overrides={"dense_lr": 0.02}), VECTORS)
    for events in batches * 4:
        trainer.step(trainer.table.admit(events.ids, events.times), events)
    found = np.concatenate([trainer.predict(events) > 0.5 for events in batches])
    assert (found == [row["click"] for row in rows]).mean() > 0.9


def test_a_run_keeps_its_vectors(settings_of, tmp_path):
    for features in (SINGLES, VECTORS):
        write_json(tmp_path / "config.json", online_config(settings_of(), features))
        assert load_online_config(tmp_path)[1] == features
    before, plain = (online_config(settings_of(), each) for each in (VECTORS, SINGLES))
    assert not [name for name in plain["features"] if "vector" in name]  # as before there were any
    longer = json.loads(json.dumps(before))
    longer["features"]["vectors"][0]["length"] = 4
    with pytest.raises(InputError, match=r"another length of 'text' \(3, not 4\); go on with"):
        changes_of_run(tmp_path, before, longer)
    with pytest.raises(InputError, match="another vectors"):
        changes_of_run(tmp_path, before, plain)
