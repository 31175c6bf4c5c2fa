"""A run that starts from another one: rows by value, optimizer state, and what is refused."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tiers import thorough

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import RunSettings, settings_for, train
from cowclip_merlin.training.build import build_model, build_optimizer
from cowclip_merlin.training.checkpoint import Checkpoints
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.training.starting.warm_start import WarmStart
from cowclip_merlin.workflows import PrepareSettings, prepare
from cowclip_merlin.workflows.prepared.counts import SPECIAL, id_to_value

SMALL = {"mlp": (8,), "batch_size": 64, "base_batch_size": 64, "embedding_dim": 4}


def table(seed, first, rows=1200):
    """A log whose users and items are those from number `first` on."""
    rng = np.random.default_rng(seed)
    user, item = first + rng.integers(0, 60, rows), first // 2 + rng.zipf(1.6, rows) % 90
    click = rng.random(rows) < 1 / (1 + np.exp(user % 7 - item % 5))
    return pd.DataFrame({"click": click.astype(int), "user": user, "item": item})


def prepared(folder, frame, **settings):
    frame.to_csv(folder.with_suffix(".csv"), index=False)
    given = {"kind": "table", "label": "click", "categorical": ("user", "item")} | settings
    return prepare(PrepareSettings(files=(folder.with_suffix(".csv"),), out=folder, **given))


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """Two prepared folders with some common values, under other ids."""
    folder = tmp_path_factory.mktemp("days")
    return [prepared(folder / f"day{n}", table(n, 40 * n)) for n in range(2)]


def new_run(data, settings):
    """A model and its optimizer, as a run makes them."""
    values = settings.hyperparameters(data.kind)
    model = build_model(settings, values, data)
    optimizer = build_optimizer(settings, values, data, steps=10)
    optimizer.create_state(model.trainable_variables)
    return model, optimizer


def rows_by_value(data, model, optimizer):
    """(layer, slot, field, value or id) -> row, one after the other."""
    found = {}
    for number, layer in enumerate(model.row_sync.layers):
        for table_, layout in layer.table_layouts():
            slots = {name: optimizer.get_slot(table_, name) for name in optimizer.row_slots}
            for slot, variable in ({"weights": table_} | slots).items():
                rows = variable.numpy()
                for field, offset in zip(layout.fields, layout.offsets):
                    for id_, value in enumerate(id_to_value(data, field)):
                        key = value if id_ >= len(SPECIAL) else id_
                        found[number, slot, field, key] = rows[offset + id_]
    return found


@pytest.mark.parametrize(
    ("model", "tables", "update", "optimizer"),
    [
        ("deepfm", "fused", "exact", "adam"),
        thorough("dcnv2", "per_field", "dense", "adam"),
        thorough("wide_and_deep", "fused", "lazy", "adam"),
        thorough("dcn", "per_field", "dense", "adagrad"),
        thorough("deepfm", "per_field", "lazy", "rowwise_adagrad"),
    ],
)
def test_every_known_value_keeps_its_row(days, tmp_path, model, tables, update, optimizer):
    others = {"clip": "none", "rule": "none"} if optimizer != "adam" else {}
    settings = RunSettings(model=model, tables=tables, update=update, optimizer=optimizer,
                           epochs=1, seed=3, **others, **SMALL)  # fmt: skip
    train(days[0].path, settings, out=tmp_path / "run", device="cpu")
    config = RunConfig.load(tmp_path / "run")
    old, old_optimizer = new_run(days[0], settings)
    Checkpoints(tmp_path / "run/checkpoints", old, old_optimizer).restore()
    before = rows_by_value(days[0], old, old_optimizer)
    other = RunSettings(**{**vars(settings), "seed": 8, "batch_size": 32})
    new, new_optimizer = new_run(days[1], other)
    first = rows_by_value(days[1], new, new_optimizer)
    said = WarmStart(tmp_path / "run", days[1], other).apply(new, new_optimizer)
    after = rows_by_value(days[1], new, new_optimizer)
    known = [key for key in after if key in before]
    assert 100 < len(known) < len(after) and after.keys() == first.keys()
    for key, row in after.items():
        np.testing.assert_array_equal(row, before.get(key, first[key]), err_msg=str(key))
    layers = len(old.row_sync.layers)
    ids = len({key[2:] for key in known})
    assert len(known) == ids * layers * (1 + len(old_optimizer.row_slots))
    assert f"{ids:,} of {sum(days[1].cardinalities.values()):,} ids have their rows" in said
    assert int(new_optimizer.iterations) == int(old_optimizer.iterations) > 10
    assert config.data == str(days[0].path)


def test_with_equal_data_all_state_is_that_of_the_run(days, tmp_path, caplog):
    """Of its last whole checkpoint; the damaged one after it is said."""
    settings = RunSettings(model="dcnv2", epochs=1, **SMALL)
    train(days[0].path, settings, out=tmp_path / "run", device="cpu")
    folder = tmp_path / "run/checkpoints"
    damaged = shutil.copytree(folder / "1", folder / "2") / "weights.0.bin"
    damaged.write_bytes(b"")
    old, old_optimizer = new_run(days[0], settings)
    Checkpoints(tmp_path / "run/checkpoints", old, old_optimizer).restore()
    new, new_optimizer = new_run(days[0], settings)
    WarmStart(tmp_path / "run", days[0], settings).apply(new, new_optimizer)
    assert f"{damaged}: damaged" in caplog.text and "using checkpoint 1" in caplog.text
    pairs = [(old.variables, new.variables), (old_optimizer.weights, new_optimizer.weights)]
    for before, after in pairs:
        assert len(before) == len(after) > 4
        for one, other in zip(before, after):
            np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=one.name)
    for name in old_optimizer.row_slots:
        for one, other in zip(old.trainable_variables, new.trainable_variables):
            slots = old_optimizer.get_slot(one, name), new_optimizer.get_slot(other, name)
            np.testing.assert_array_equal(*(slot.numpy() for slot in slots), err_msg=one.name)


@pytest.mark.runs
def test_the_command_starts_from_a_run_and_resumes(days, tmp_path, capsys):
    def command(day, out, *more):
        words = ["train", str(days[day].path), "--out", str(tmp_path / out), "--model", "deepfm"]
        words += ["--batch-size", "64", "--mlp", "8", "--rule", "none", "--base-batch-size", "64"]
        words += ["--embedding-lr", "0.01", "--dense-lr", "0.01", "--warmup-epochs", "2"]
        return main([*words, "--device", "cpu", *more])

    assert command(0, "one", "--epochs", "2") == 0
    assert command(1, "cold", "--epochs", "1") == 0
    assert command(1, "warm", "--epochs", "1", "--from", str(tmp_path / "one")) == 0
    told = capsys.readouterr().out
    assert f"starts from {tmp_path / 'one'} after 34 steps: " in told
    cold, warm = (pd.read_csv(tmp_path / name / "metrics.csv") for name in ("cold", "warm"))
    assert warm["train_loss"][0] < cold["train_loss"][0] - 0.02
    assert warm["dense_lr"][0] == pytest.approx(0.01, rel=1e-6)
    assert cold["dense_lr"][0] < 0.006  # it warms up over two epochs
    assert warm["step"][0] == 2 * cold["step"][0] + cold["step"][0]
    again = ("--epochs", "1", "--from", str(tmp_path / "one"), "--resume")
    assert command(1, "warm", *again) == 0
    assert "starts from" not in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.runs
def test_on_extended_data_every_row_goes_on(days, tmp_path):
    price = {"continuous": ("price",)}
    frames = [table(n, 40 * n).assign(price=lambda t: t["user"] * 1.5) for n in range(2)]
    first = prepared(tmp_path / "first", frames[0], **price)
    frames[1].to_csv(tmp_path / "second.csv", index=False)
    files = (tmp_path / "second.csv",)
    settings = PrepareSettings(
        files=files, out=tmp_path / "second", kind="table", extend=first.path
    )
    second = prepare(settings)
    run = RunSettings(model="deepfm", epochs=1, **SMALL)
    train(first.path, run, out=tmp_path / "run", device="cpu")
    model, optimizer = new_run(second, run)
    said = WarmStart(tmp_path / "run", second, run).apply(model, optimizer)
    kept = sum(first.cardinalities.values())
    assert f"{kept:,} of {sum(second.cardinalities.values()):,} ids have their rows" in said
    assert f"; 0 of its ids are not in {second.path}" in said
    rows = train(second.path, run, out=tmp_path / "next", warm_start=tmp_path / "run", device="cpu")
    assert np.isfinite(rows[-1]["train_loss"])


def test_what_does_not_fit_is_one_line_and_leaves_nothing(days, tmp_path):
    settings = RunSettings(model="deepfm", epochs=1, **SMALL)
    train(days[0].path, settings, out=tmp_path / "run", device="cpu")
    numbers = [table(n, 0).assign(price=lambda t, n=n: t["user"] * (n + 1.0)) for n in range(2)]
    with_price = [
        prepared(tmp_path / f"price{n}", frame, continuous=("price",))
        for n, frame in enumerate(numbers)
    ]
    vectors = numbers[0].assign(photo="1|2")
    with_vectors = prepared(tmp_path / "photo", vectors, vector=("photo",))
    lists = numbers[0].astype({"item": str})
    with_lists = prepared(tmp_path / "lists", lists, multi=("item",))
    train(with_price[0].path, settings, out=tmp_path / "priced", device="cpu")
    for run, data, changes, words in [
        ("run", days[1], {"model": "dcn"}, "was trained with model deepfm, not dcn"),
        ("run", days[1], {"embedding_dim": 5}, "embedding_dim 4, not 5"),
        ("run", with_price[0], {}, "its continuous columns are price, those of"),
        ("run", with_vectors, {}, "its vectors have other columns or lengths"),
        ("run", with_lists, {}, "other columns have several values per row than in"),
        ("priced", with_price[1], {}, "column 'price' has another scale than in"),
        ("run", days[1], {"tables": "sharded"}, "needs whole tables"),
        ("none", days[1], {}, "no config.json; give the run folder"),
    ]:
        other, out = RunSettings(**{**vars(settings), **changes}), tmp_path / "out"
        with pytest.raises(InputError, match=words):
            train(data.path, other, out=out, warm_start=tmp_path / run, device="cpu")
        assert not out.exists()


@pytest.mark.runs
def test_going_on_takes_the_settings_of_the_run(days, tmp_path, capsys):
    """And one epoch: the paper's or the recipe's defaults for the new rows would spoil it."""
    one, two, data = tmp_path / "one", tmp_path / "two", str(days[1].path)
    words = ["--model", "deepfm", "--batch-size", "64", "--mlp", "8", "--rule", "none"]
    words += ["--embedding-lr", "0.01", "--dense-lr", "0.01", "--base-batch-size", "64"]
    words += ["--update", "exact", "--validation-fraction", "0.2", "--early-stopping", "2"]
    assert main(["train", str(days[0].path), "--out", str(one), "--epochs", "2", *words]) == 0
    capsys.readouterr()
    assert main(["train", data, "--out", str(two), "--from", str(one), "--dense-lr", "0.02"]) == 0
    said = capsys.readouterr().out
    old, new = (RunConfig.load(run) for run in (one, two))
    assert new.settings.overrides == {**old.settings.overrides, "dense_lr": 0.02}
    usual = {"epochs": 1, "validation_fraction": 0.0, "early_stopping": None}
    assert new.settings == replace(old.settings, overrides=new.settings.overrides, **usual)
    assert 0 < new.before["test_auc"] < 1
    (row,) = (csv_row for csv_row in pd.read_csv(two / "metrics.csv").to_dict("records"))
    assert f"went on from {one}, which scored these test rows AUC {new.before['test_auc']:.5f}; " \
        f"now {row['test_auc']:.5f}" in said  # fmt: skip
    (same,) = train(data, settings_for(data, warm_start=one, overrides={"dense_lr": 0.02}),
                    out=tmp_path / "three", warm_start=one)  # fmt: skip
    assert same["test_auc"] == pytest.approx(row["test_auc"])
    assert train(data, out=tmp_path / "four", warm_start=one)[-1]["epoch"] == 1
    assert main(["train", data, "--out", str(two), "--from", str(one), "--resume"]) == 0
    assert "went on from" in capsys.readouterr().out


@pytest.mark.runs
def test_a_run_that_became_worse_says_so_last(days, tmp_path, capsys):
    one, data = tmp_path / "one", str(days[1].path)
    settings = RunSettings(model="dcn", epochs=2, rule="none", **SMALL)
    train(days[1].path, settings, out=one)
    capsys.readouterr()
    words = ["train", data, "--out", str(tmp_path / "two"), "--from", str(one), "--must-improve"]
    worst = ["--dense-lr", "0.9", "--embedding-lr", "0.9", "--seed", "5", "--l2", "0.5"]
    assert main([*words, *worst]) == 3
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f"; worse than {one} on the same rows")
    assert main(["train", data, "--out", str(tmp_path / "x"), "--must-improve", "--model", "dcn",
                 "--batch-size", "8"]) == 2  # fmt: skip
    assert "--must-improve compares with the run of --from" in capsys.readouterr().err
