"""Defaults of a run on a table of one's own: what they are, and what replaces them."""

import json
import shlex
from functools import partial

import numpy as np
import pytest

from cowclip_merlin import InputError, scale
from cowclip_merlin.cli import build_parser, main
from cowclip_merlin.cli.train import settings_from_args, train_command
from cowclip_merlin.recipe import own_table_defaults, recipe_for
from cowclip_merlin.training import RunSettings, settings_for
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


@pytest.mark.parametrize(
    ("rows", "ids", "batch", "epochs", "l2"),
    [
        (10, 9, 32, 5, 6.0),
        (52_000, 5_000, 32, 5, 0.0012),
        (149_999, 10**6, 64, 5, 0.0004),
        (150_000, 15_000, 64, 1, 1.3e-5),
        (150_000, 14_999, 64, 5, 0.0004),
        (2_700_000, 2_300_000, 1024, 1, 7.4e-7),
        (40_000_000, 10**7, 1024, 1, 5e-8),
    ],
)
def test_the_recipe(rows, ids, batch, epochs, l2):
    recipe = recipe_for(rows=rows, ids=ids)
    assert (recipe.base.batch_size, recipe.epochs, recipe.base.l2) == (batch, epochs, l2)
    assert recipe.base.embedding_lr == recipe.base.dense_lr == 1e-3 and recipe.rule == "sde"


@pytest.mark.runs
def test_a_run_says_and_records_what_it_chose(table, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", str(table), "--out", str(run), *WORDS]) == 0
    words = capsys.readouterr().out.splitlines()
    rows = PreparedData.load(table).rows["train"]
    assert words[0].startswith(f"your own table of {rows} training rows: 5 epochs, rule sde, at ")
    assert "base batch 32 embedding_lr 0.001, dense_lr 0.001, l2 0.1" in words[0]
    assert "--preset criteo" in words[1]
    kept = json.loads((run / "config.json").read_text())["settings"]
    expected = settings_for(table, **GIVEN, mlp=(4,), update="exact")
    assert RunSettings.from_dict(kept) == expected
    # What is not given stays as it was, whatever the defaults are now.
    assert main(["train", str(table), "--out", str(run), *WORDS, "--resume"]) == 0
    again = ["train", str(table), "--out", str(run), *WORDS, "--resume", "--rule", "none"]
    assert main(again) == 2
    assert "rule sde, not none" in capsys.readouterr().err


def test_a_table_without_training_rows_is_refused_in_one_line(table, tmp_path, capsys):
    new = ["prepare", "table", str(table.parent / "log.csv"), "--like", str(table)]
    assert main([*new, "--out", str(tmp_path / "NEW")]) == 0
    capsys.readouterr()
    assert main(["train", str(tmp_path / "NEW"), "--out", str(tmp_path / "run"), *WORDS]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "prepared with --like" in line and not (tmp_path / "run").exists()


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


@pytest.mark.parametrize("given", [{"preset": "criteo"}, {"optimizer": "adagrad"}])
def test_the_papers_defaults_instead(table, given):
    assert settings_for(table, **GIVEN, **given) == RunSettings(**GIVEN, **given)


def test_criteo_has_the_papers_defaults(data):
    assert settings_for(data, **GIVEN) == RunSettings(**GIVEN)


def test_the_command_of_a_sweep_trains_with_its_settings(table):
    swept = RunSettings(**GIVEN, preset="criteo", overrides={"r": 0.5})
    args = build_parser().parse_args(shlex.split(train_command(swept))[1:])
    assert settings_from_args(args, partial(own_table_defaults, PreparedData.load(table))) == swept
