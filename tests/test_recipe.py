"""Defaults of a run on a table of one's own: what they are, and what replaces them."""

import json
import shlex
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from cowclip_merlin import InputError, scale
from cowclip_merlin.cli import build_parser, main
from cowclip_merlin.cli.options import model_settings
from cowclip_merlin.cli.train import settings_from_args, train_command
from cowclip_merlin.recipe import (
    choose,
    choose_search,
    rare_share,
    recipe_for,
    update_words,
    usual_batch,
)
from cowclip_merlin.training import RunSettings, settings_for, train
from cowclip_merlin.training.build import build_optimizer
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.training.run_logs import read_metrics
from cowclip_merlin.workflows import PreparedData

GIVEN = {"model": "deepfm", "batch_size": 64}
WORDS = ["--model", "deepfm", "--batch-size", "64", "--mlp", "4", "--update", "exact"]


@pytest.fixture(scope="module")
def table(make_once):
    def make(folder):
        rng = np.random.default_rng(1)
        rows = [f"{rng.integers(2)},{rng.integers(9)},{rng.random():.3f}" for _ in range(400)]
        (folder / "log.csv").write_text("\n".join(["y,a,x", *rows, ""]))
        columns = ["--label", "y", "--categorical", "a", "--continuous", "x"]
        words = ["prepare", "table", str(folder / "log.csv"), "--out", str(folder / "DATA")]
        assert main([*words, *columns]) == 0

    return make_once("recipe", make) / "DATA"


@pytest.mark.parametrize("memory", [1, 7, 20, 40, 64, 400, 10**6])
def test_rare_ids_are_those_that_a_loop_counts(tmp_path, memory):
    log = ["a", *"bb", *"c" * 5, *"d" * 20, *"e" * 12]  # 40 rows: of 20, an id once is none
    (tmp_path / "log.csv").write_text(
        "\n".join(["y,a", *[f"{i % 2},{x}" for i, x in enumerate(log)]])
    )
    out = tmp_path / "DATA"
    words = ["prepare", "table", str(tmp_path / "log.csv"), "--label", "y", "--categorical", "a"]
    assert main([*words, "--test-fraction", "0", "--out", str(out)]) == 0
    rare = [x for x in set(log) if log.count(x) / len(log) * memory < 1]
    assert rare_share(PreparedData.load(out), memory) == (len(rare) / 5, 5)


def test_prepare_and_train_say_which_rules_fit(tmp_path, capsys):
    """Of eleven ids ten come once in 20,000 rows, which must be ten memories or more."""
    rows = [f"{i % 2},{i if i < 10 else 'often'}" for i in range(20_000)]
    (tmp_path / "log.csv").write_text("\n".join(["y,a", *rows]))
    data, log = str(tmp_path / "DATA"), str(tmp_path / "log.csv")
    words = ["prepare", "table", log, "--label", "y", "--categorical", "a"]
    assert main([*words, "--test-fraction", "0", "--out", data]) == 0
    said = "91% of 11 ids are rarer than one in {} rows: {}"
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "0% of 11 ids are rarer than one in 32,000 rows: the rule sde fits"
    for base, memory, rules in (
        (1, "1,000", "the rules sde and cowclip fit"),
        (2, "2,000", "the rules sde and cowclip fit"),
        (3, "3,000", "the rule sde fits"),
    ):
        given = ["train", data, "--out", "RUN", "--base-batch-size", str(base)]
        settings_from_args(build_parser().parse_args(given), PreparedData.load(data))
        assert said.format(memory, rules) in capsys.readouterr().out.splitlines()
    assert main(["prepare", "table", log, "--like", data, "--out", str(tmp_path / "NEW")]) == 0
    assert "rarer" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "ids", "batch", "epochs", "l2"),
    [
        (10, 9, 32, 1, 0.3),
        (8_107, 9_652, 32, 1, 0.0003),
        (52_000, 5_000, 32, 5, 0.0012),
        (90_009, 37_746, 32, 2, 0.00015),
        (150_000, 50_000, 64, 3, 0.00014),
        (150_000, 50_001, 64, 2, 0.00014),
        (150_000, 75_001, 64, 1, 6.4e-5),
        (2_700_000, 2_300_000, 1024, 1, 8.9e-7),
        (400_000, 50_000, 128, 4, 9.6e-5),
        (2_700_000, 489, 1024, 5, 2.2e-5),
        (40_000_000, 10**7, 1024, 1, 6.0e-8),
    ],
)
def test_the_recipe(rows, ids, batch, epochs, l2):
    recipe = recipe_for(rows=rows, ids=ids)
    assert (recipe.base.batch_size, recipe.epochs, recipe.base.l2) == (batch, epochs, l2)
    assert recipe.base.embedding_lr == recipe.base.dense_lr == 1e-3 and recipe.rule == "sde"
    assert recipe.mlp == (200, 200)


@hypothesis.given(rows=st.integers(1, 10**8), ids=st.integers(1, 10**8), more=st.floats(1, 1.1))
def test_a_little_more_changes_little(rows, ids, more):
    """No border makes two other recipes of two logs that are nearly alike."""
    one, other = recipe_for(rows=rows, ids=ids), recipe_for(rows=rows, ids=int(more * ids))
    assert 0 <= one.epochs - other.epochs <= 1
    assert 0.75 <= other.base.l2 / one.base.l2 <= 1  # of values with two digits


def test_a_search_and_the_command_line_take_the_small_hidden_layers(table):
    data, words = PreparedData.load(table), ["--out", "RUN"]
    for command, chosen in (("train", choose), ("tune", choose_search)):
        for given, mlp in (([], (200, 200)), (["--mlp", "400,400,400"], (400, 400, 400))):
            args = build_parser().parse_args([command, str(table), *words, *given])
            assert chosen(data, model_settings(args))[0].mlp == mlp
    assert choose_search(data, {"preset": "criteo"})[0].mlp == (400, 400, 400)


@pytest.mark.runs
def test_a_run_says_and_records_what_it_chose(table, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", str(table), "--out", str(run), *WORDS]) == 0
    words = capsys.readouterr().out.splitlines()
    rows = PreparedData.load(table).rows["train"]
    assert not any(word in words[0] for word in ("model", "update", "batch 64"))  # those are given
    assert words[0].startswith(f"your own table of {rows} training rows: MLP 4, 5 epochs, ")
    assert "sde, at base batch 32 embedding_lr 0.001, dense_lr 0.001, l2 0.17" in words[0]
    assert words[1].endswith("% of 9 ids are rarer than one in 32,000 rows: the rule sde fits")
    assert "--preset criteo" in words[2]
    kept = json.loads((run / "config.json").read_text())["settings"]
    expected = settings_for(table, **GIVEN, mlp=(4,), update="exact")
    assert RunSettings.from_dict(kept) == expected
    # What is not given stays as it was, whatever the defaults are now.
    assert main(["train", str(table), "--out", str(run), *WORDS, "--resume"]) == 0
    again = ["train", str(table), "--out", str(run), *WORDS, "--resume", "--rule", "none"]
    assert main(again) == 2
    assert "rule sde, not none" in capsys.readouterr().err


@pytest.mark.runs
def test_the_bare_command_and_the_bare_call_train_alike(table, tmp_path, capsys):
    rows, runs = PreparedData.load(table).rows["train"], [tmp_path / "a", tmp_path / "b"]
    said = f"your own table of {rows} training rows: model deepfm, batch 2, update exact (the "
    assert main(["train", str(table), "--out", str(runs[0])]) == 0
    assert capsys.readouterr().out.startswith(said)
    train(table, out=runs[1])
    assert capsys.readouterr().out.startswith(said)
    kept = [RunConfig.load(run).settings for run in runs]
    assert kept == [settings_for(table)] * 2 and kept[0].update == "exact"
    one, other = (read_metrics(run / "metrics.csv", epochs=5) for run in runs)
    assert [row["train_loss"] for row in one] == [row["train_loss"] for row in other] != []
    # The bare command also goes on, with the run's own settings.
    assert main(["train", str(table), "--out", str(runs[0]), "--resume", "--epochs", "6"]) == 0
    assert RunConfig.load(runs[0]).settings == replace(kept[0], epochs=6)


@pytest.mark.parametrize(
    ("rows", "batch"),
    [(0, 2), (360, 2), (799, 2), (800, 4), (6_400, 32), (90_009, 256), (204_799, 512),
     (204_800, 1024), (40_000_000, 1024)],
)  # fmt: skip
def test_the_batch_by_rows(rows, batch):
    assert usual_batch(rows) == batch
    assert rows // batch >= 100 or rows < 200
    assert usual_batch(rows, by_rows=False) == (1024 if rows >= 1024 else batch)


def test_rows_held_out_do_not_count_for_the_batch(table):
    assert settings_for(table).batch_size == 2
    longer = replace(PreparedData.load(table), rows={"train": 800, "test": 40})
    assert settings_for(longer).batch_size == 4
    assert settings_for(longer, validation_fraction=0.1).batch_size == 2


AUTO = [
    ({}, "exact"),
    ({"rule": "cowclip"}, "exact"),
    ({"rule": "cowclip", "overrides": {"r": 1e-6}}, "dense"),
    ({"clip": "column"}, "dense"),
    ({"clip": "field"}, "dense"),
    ({"optimizer": "adagrad"}, "exact"),
    ({"optimizer": "adagrad", "overrides": {"l2": 1e-5}}, "dense"),
    ({"optimizer": "rowwise_adagrad"}, "exact"),
]


@pytest.mark.parametrize(("given", "update"), AUTO)
def test_the_update_is_exact_where_it_works(table, given, update):
    for auto in ({}, {"update": "auto"}):
        assert settings_for(table, **GIVEN, **given, **auto).update == update
    assert settings_for(table, **GIVEN, **given, update="lazy").update == "lazy"
    settings = settings_for(table, **GIVEN, **given)
    prepared = PreparedData.load(table)
    build_optimizer(settings, settings.hyperparameters("table"), prepared, steps=4)
    if update == "dense":
        assert all(update_words(settings, "table"))


@pytest.mark.parametrize("auto", [[], ["--update", "auto"]])
@pytest.mark.parametrize(("options", "update"), [([], "exact"), (["--clip", "field"], "dense")])
def test_the_command_chooses_the_same_update(table, auto, options, update, capsys):
    words = ["train", str(table), "--out", "RUN", *options, *auto]
    found = settings_from_args(build_parser().parse_args(words), PreparedData.load(table))
    assert found.update == update and f"update {update} (" in capsys.readouterr().out
    assert (
        settings_from_args(build_parser().parse_args([*words, "--update", "lazy"])).update == "lazy"
    )


def test_the_help_has_groups_and_opens_with_what_matters(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    titles = ["what to train:", "batch and rates:", "model:", "data:", "run:", "workers:"]
    places = [text.index(f"\n{title}\n") for title in titles]
    assert places == sorted(places)
    first = text[places[0] : places[1]]
    assert all(name in first for name in ("DATA", "--out", "--model", "--batch-size", "--from"))


def test_what_is_given_wins(table):
    settings = settings_for(table, **GIVEN, rule="sqrt", epochs=9, overrides={"l2": 0.5})
    assert (settings.rule, settings.epochs, settings.base_batch_size) == ("sqrt", 9, 32)
    assert settings.overrides == {"embedding_lr": 1e-3, "dense_lr": 1e-3, "l2": 0.5}
    with pytest.raises(InputError, match="rule"):
        settings_for(table, **GIVEN, rule="other")


def test_another_base_batch_gives_the_same_run(table):
    usual, other = settings_for(table, **GIVEN), settings_for(table, **GIVEN, base_batch_size=64)
    assert (usual.base_batch_size, other.base_batch_size) == (32, 64)
    expected = usual.hyperparameters("table")
    values = other.hyperparameters("table")
    for name in ("embedding_lr", "dense_lr", "l2", "beta_1", "beta_2", "epsilon"):
        assert getattr(values, name) == pytest.approx(getattr(expected, name), rel=1e-12)
    assert scale(values, to=64, rule="sde") == values


def test_adagrad_has_rates_of_its_own(table):
    settings = settings_for(table, **GIVEN, optimizer="adagrad")
    expected = {"embedding_lr": 0.05, "dense_lr": 0.05, "l2": 0.0, "initial_accumulator": 9.8e-5}
    assert (settings.overrides, settings.base_batch_size, settings.epochs) == (expected, 32, 1)
    assert ", 1 epoch, rule sde" in choose(PreparedData.load(table), {"optimizer": "adagrad"})[1]
    values = settings.hyperparameters("table")
    s = settings.batch_size / 32
    assert values.initial_accumulator == pytest.approx(9.8e-5 / s**2)
    assert (values.embedding_lr, values.dense_lr) == (0.05, 0.05)
    given = settings_for(table, **GIVEN, optimizer="adagrad", overrides={"initial_accumulator": 0})
    assert given.overrides == expected | {"initial_accumulator": 0}


@pytest.mark.parametrize(
    "given", [{"preset": "criteo"}, {"preset": "criteo", "optimizer": "adagrad"}]
)
def test_the_papers_defaults_instead(table, given):
    update = "dense" if "optimizer" in given else "exact"  # Adagrad with L2 updates all rows
    found = settings_for(table, **GIVEN, **given)
    assert found == RunSettings(**GIVEN, **given, update=update)


def test_criteo_has_the_papers_defaults(data):
    assert settings_for(data, **GIVEN) == RunSettings(**GIVEN, update="exact")
    assert settings_for(data) == RunSettings(model="deepfm", batch_size=1024, update="exact")


def test_the_command_of_a_sweep_trains_with_its_settings(table):
    swept = RunSettings(**GIVEN, preset="criteo", overrides={"r": 0.5})
    args = build_parser().parse_args(shlex.split(train_command(swept))[1:])
    assert settings_from_args(args, PreparedData.load(table)) == swept


TEST = {"validation_fraction": 0.0}
STOPPED = {"validation_split": "given", "early_stopping": 2, "epochs": 10}
STOPS = [
    ({}, {}, STOPPED),
    ({}, {"early_stopping": 1, "epochs": 3}, STOPPED | {"early_stopping": 1, "epochs": 3}),
    ({}, {"early_stopping": 0}, STOPPED | {"early_stopping": None, "epochs": 5}),
    ({}, {"validation_fraction": 0.0}, {"scored_split": "test", "epochs": 5}),
    ({}, {"validation_fraction": 0.2}, {"early_stopping": None, "validation_split": "random"}),
    ({}, {"preset": "criteo"}, STOPPED | {"early_stopping": None}),
    ({"validation": 0}, {}, {"scored_split": "test", "early_stopping": None, "epochs": 5}),
    (
        {"validation": 0, "how": "time"},
        {"validation_fraction": 0.1},
        {"validation_split": "last"},
    ),
]


@pytest.mark.parametrize(("data", "given", "expected"), STOPS, ids=map(str, range(len(STOPS))))
def test_the_best_epoch_on_validation_rows_of_ones_own_is_kept(table, data, given, expected):
    rows = {"train": 360, "test": 40, "validation": data.get("validation", 60)}
    made = PreparedData.load(table)
    described = {"settings": {"split": {"how": data.get("how", "random")}}}
    folder = replace(
        made,
        rows={split: n for split, n in rows.items() if n},
        description={**made.description, **described},
    )
    found = settings_for(folder, **GIVEN, **given)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.runs
def test_a_run_with_validation_rows_leaves_the_test_rows(table, tmp_path, capsys):
    log, words = str(table.parent / "log.csv"), ["--label", "y", "--categorical", "a"]
    (tmp_path / "valid.csv").write_text((table.parent / "log.csv").read_text())
    data, run = str(tmp_path / "DATA"), tmp_path / "run"
    given = ["--validation", str(tmp_path / "valid.csv"), "--continuous", "x"]
    assert main(["prepare", "table", log, *given, "--out", data, *words]) == 0
    capsys.readouterr()
    assert main(["train", data, "--out", str(run), *WORDS]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "at most 10 epochs, of which it keeps the best on the validation rows" in said[0]
    assert said[-1].endswith(f"cowclip evaluate {run} {data}")
    rows = read_metrics(run / "metrics.csv", epochs=10)
    assert all("validation_auc" in row and not row.get("test_auc") for row in rows)
    settings = RunConfig.load(run).settings
    assert settings == settings_for(data, **GIVEN, mlp=(4,), update="exact")
    assert (settings.early_stopping, settings.validation_split) == (2, "given")
    # Going on trains one epoch, and scores the same rows, unless other rows are asked for.
    for given, rows in (({}, "given"), ({"early_stopping": 1}, "given"), (TEST, "random")):
        on = settings_for(data, warm_start=run, **given)
        assert (on.epochs, on.validation_split) == (1, rows)
        assert on.early_stopping == given.get("early_stopping")
    for options, split in (([], "validation"), (["--validation-fraction", "0"], "test")):
        out = tmp_path / split
        assert main(["train", data, "--out", str(out), "--from", str(run), *options]) == 0
        assert f"which scored these {split} rows AUC" in capsys.readouterr().out
        assert f"{split}_auc" in RunConfig.load(out).before
    (row,) = train(data, out=tmp_path / "python", warm_start=run)
    (same,) = read_metrics(tmp_path / "validation/metrics.csv", epochs=1)
    assert row["validation_auc"] == pytest.approx(float(same["validation_auc"]))
