"""Sizing and plan: at the paper's size the paper's values, below it what the rules say."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.files import load_experiment, parse_experiment
from cowclip_merlin.experiments.on_data import plan
from cowclip_merlin.experiments.on_data.outputs import run_table
from cowclip_merlin.experiments.on_data.plan import (
    describe_infeasible,
    feasible_multipliers,
    plan_runs,
)
from cowclip_merlin.experiments.on_data.sweeps import expand_sweep
from cowclip_merlin.experiments.results import example_result
from cowclip_merlin.experiments.sizing import MAX_LR, PAPER_ROWS, sizing_for
from cowclip_merlin.scaling import RULES, scale

PAPER = sizing_for(PAPER_ROWS)
SMALL = sizing_for(450_000, epochs=4)


def settings(experiment, size, label, multiplier, **options):
    (run,) = [
        run
        for run in plan_runs(load_experiment(experiment), size, seeds=1, **options)
        if (run.label, run.multiplier) == (label, multiplier)
    ]
    return run.settings


@pytest.mark.parametrize("multiplier", [1, 2, 8, 32, 128])
def test_at_the_papers_size_the_presets_hold(multiplier):
    mine = settings("table3", PAPER, "DeepFM", multiplier)
    assert mine.batch_size == 1024 * multiplier
    assert mine.epochs == 10
    assert mine.hyperparameters("criteo") == scale("criteo", to=1024 * multiplier)


@pytest.mark.parametrize("rule", ["none", "sqrt", "sqrt_star", "linear", "n2_lambda"])
def test_rules_multiply_the_base_rates_of_the_sizing(rule):
    label = {"none": "no scaling", "sqrt_star": "sqrt*", "n2_lambda": "n2-lambda"}.get(rule, rule)
    got = settings("table2", SMALL, label, 8).hyperparameters("criteo")
    by = RULES[rule](8)
    assert got.embedding_lr == pytest.approx(SMALL.baseline["embedding_lr"] * by.embedding_lr)
    assert got.dense_lr == pytest.approx(SMALL.baseline["dense_lr"] * by.dense_lr)
    assert got.l2 == pytest.approx(SMALL.baseline["l2"] * by.l2)
    assert (got.init_std, got.warmup_epochs) == (1e-4, 0)


def test_a_line_may_start_each_epoch_with_new_embeddings():
    lines = [{"label": label, "multipliers": [1], "reset_embeddings": label == "new"}
             for label in ("kept", "new")]  # fmt: skip
    given = {"title": "t", "claim": "c", "lines": lines}
    runs = plan_runs(parse_experiment(Path("mine.yaml"), given), SMALL, seeds=1)
    assert {run.label: run.settings.reset_embeddings for run in runs} == {"kept": 0, "new": 1}


def test_ablations_change_one_thing_each():
    whole = settings("table12", SMALL, "CowClip", "largest").hyperparameters("criteo")
    changed = {
        "linear scaling of the dense rate": {"dense_lr": whole.dense_lr * math.sqrt(32)},
        "n2-lambda in place of linear L2": {"l2": whole.l2 * 32},
        "without zeta": {"zeta": 0},
        "without warm-up": {"warmup_epochs": 0},
        "without large init": {"init_std": 1e-4},
    }
    for label, values in changed.items():
        mine = settings("table12", SMALL, label, "largest")
        assert mine.effective_clip == "cowclip"
        got, expected = vars(mine.hyperparameters("criteo")), vars(replace(whole, **values))
        assert got == pytest.approx(expected), label


@given(rows=st.integers(10_000, PAPER_ROWS), epochs=st.integers(1, 12))
def test_a_sizing_keeps_what_it_promises(rows, epochs):
    size = sizing_for(rows, epochs=epochs)
    if rows >= PAPER_ROWS / 2:
        assert (size.base_batch, size.max_multiplier) == (1024, 128)
        return
    assert size.steps_at_largest >= 50
    assert rows / (2 * size.base_batch * size.max_multiplier) < 50, "a larger batch would do, too"
    lr, l2 = size.cowclip["embedding_lr"], size.cowclip["l2"]
    walk = lr * math.sqrt(size.steps_at_largest * epochs)
    assert lr == MAX_LR or lr == 1e-4 or math.isclose(walk, 1e-4 * math.sqrt(3150))
    assert math.isclose(l2 * lr * rows, 1e-5 * 1e-4 * PAPER_ROWS)


def test_too_few_rows_are_refused():
    with pytest.raises(InputError, match="1000 training rows"):
        sizing_for(1000)
    assert sizing_for(1000, steps=10, max_multiplier=8).base_batch == 8


def test_the_papers_size_has_its_own_base_batch():
    assert sizing_for(PAPER_ROWS, max_multiplier=8).max_multiplier == 8
    with pytest.raises(InputError, match=r"`steps` 30: .* 1,024; .*`max_multi"):
        sizing_for(PAPER_ROWS, steps=30)


def test_lines_of_fewer_ids_are_not_held_against_the_reference():
    table1 = load_experiment("table1")
    results = {
        run: example_result(auc=0.8 - 0.1 * ("top 3" in run.label) + run.settings.seed / 1e4)
        for run in plan_runs(table1, SMALL, seeds=2)
    }
    rows = dict(run_table(table1, SMALL, results, data="", command="").rows)
    verdicts = {label: {c.verdict for c in cells if c.mean} for label, cells in rows.items()}
    assert verdicts["all ids, linear"] == {"noise"}
    assert {label for label, found in verdicts.items() if found == {""}} == {
        "all ids, base batch", *(label for label in verdicts if label.startswith("top 3"))
    }  # fmt: skip


def test_a_diverged_run_took_no_time_that_counts():
    """It has seconds, of the epochs before, and would look fast."""
    table5 = load_experiment("table5")
    runs = plan_runs(table5, SMALL, seeds=2)
    bad = next(run for run in runs if run.multiplier == 4)
    results = {run: example_result(seconds=600.0) for run in runs}
    results[bad] = example_result(status="diverged", auc=math.nan, log_loss=math.nan, seconds=10.0)
    table = run_table(table5, SMALL, results, data="", command="")
    cells = [cell for label, line in table.rows for cell in line if label == bad.label]
    assert [cell.text for cell in cells].count("diverged") == 1
    assert {cell.mean for cell in cells if cell.mean} == {10.0}


def test_what_the_size_cannot_carry_is_said():
    assert describe_infeasible(load_experiment("table3"), PAPER) == []
    (line, *_) = describe_infeasible(load_experiment("table3"), SMALL)
    assert line == "DeepFM at 64 times, 128 times the base batch: too large for this number of rows"


def test_two_columns_of_one_batch_have_two_headings():
    small = sizing_for(450_000, epochs=4, max_multiplier=8)
    shown = run_table(load_experiment("effect"), small, {}, data="", command="")
    assert shown.columns == ("x1 = 1,024", "x8 = 8,192", "x8 = 8,192 (largest)")


def test_equal_runs_have_equal_hashes_and_others_have_not():
    table2 = plan_runs(load_experiment("table2"), SMALL, seeds=2)
    table10 = plan_runs(load_experiment("table10"), SMALL, seeds=2)
    names = [run.config_hash("data") for run in table2]
    assert len(set(names)) == len(names)
    assert names == [run.config_hash("data") for run in table10]
    assert not set(names) & {run.config_hash("other data") for run in table2}


def test_a_clip_that_the_rule_implies_makes_no_other_run():
    table12 = plan_runs(load_experiment("table12"), SMALL, seeds=1)
    table6 = plan_runs(load_experiment("table6"), SMALL, seeds=1)
    (one,) = [run for run in table12 if run.label == "CowClip"]
    (other,) = [run for run in table6 if run.settings.clip == "cowclip"]
    assert one.config_hash("data") == other.config_hash("data")
    names = {run.config_hash("data") for run in table6}
    assert len(names) == len(table6)


def test_an_ablation_wins_over_tuned_values_and_a_rivals_sweep_over_its_defaults():
    mine = settings("table12", SMALL, "without zeta", "largest", tuned={"cowclip": {"zeta": 1.0}})
    assert mine.overrides["zeta"] == 0
    tuned = {"adagrad": {"embedding_lr": 0.5}, "baseline": {"embedding_lr": 9.0}}
    rival = settings("rivals", SMALL, "Adagrad, no clip", "largest", tuned=tuned)
    assert rival.optimizer == "adagrad"
    assert (rival.overrides["embedding_lr"], rival.overrides["l2"]) == (0.5, 0)


def test_where_exact_is_not_possible_dense_takes_its_place():
    updates = {
        run.label: run.settings.update
        for run in plan_runs(load_experiment("table6"), SMALL, seeds=1)
    }
    assert updates.pop("adaptive column-wise (CowClip)") == "exact"
    assert set(updates.values()) == {"dense"}
    tuned = {"cowclip": {"l2": 0.01, "r": 0.1}}
    assert settings("table3", SMALL, "DeepFM", 4, tuned=tuned).update == "exact"
    assert settings("table3", SMALL, "DeepFM", 8, tuned=tuned).update == "dense"
    line = {"label": "a", "rule": "none", "optimizer": "adagrad", "multipliers": [1]}
    for l2, update in ((0.0, "exact"), (1e-4, "dense")):
        lines = [line | {"overrides": {"l2": l2}}]
        own = parse_experiment(Path("own.yaml"), {"title": "t", "claim": "c", "lines": lines})
        (run,) = plan_runs(own, SMALL, seeds=1)
        assert run.settings.update == update


def test_runs_have_the_layers_and_the_schedule_of_their_line():
    how = {"lr_schedule": "step", "lr_factor": 0.5, "lr_every": 2, "lr_floor": 0.1}
    how |= {"activation": "dice", "dropout": 0.2, "batch_norm": True}
    lines = [{"label": "a", "multipliers": [1]} | how]
    own = parse_experiment(Path("own.yaml"), {"title": "t", "claim": "c", "lines": lines})
    (run,) = plan_runs(own, SMALL, seeds=1)
    assert {name: getattr(run.settings, name) for name in how} == how
    (sweep,) = plan_runs(
        expand_sweep(replace(own, kind="sweep", grid={"l2": (0.1,)})), SMALL, seeds=1
    )
    assert {name: getattr(sweep.settings, name) for name in how} == how


def test_rows_that_are_held_out_count_for_no_batch():
    size = sizing_for(33_000, epochs=1, steps=1)
    assert size.base_batch * size.max_multiplier == 32_768
    sweep = load_experiment("sweep_r")
    assert [*feasible_multipliers(sweep.lines[0], size)] == [
        1,
        "largest",
    ] and not describe_infeasible(sweep, size)
    assert [*feasible_multipliers(sweep.lines[0], size, 0.1)] == [1]  # 29,700 rows are trained on
    assert "at 32 times the base batch: too large for" in describe_infeasible(sweep, size, 0.1)[0]


@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_an_estimate_counts_the_rows_that_are_used(monkeypatch, fraction):
    """Steps cost 1 ms and 1 us a row, scoring half of that; set-up does not shrink."""
    monkeypatch.setattr(plan, "step_seconds", lambda settings, _: 1e-3 + 1e-6 * settings.batch_size)
    data = SimpleNamespace(rows={"train": 100_000, "test": 10_000})
    runs = plan_runs(load_experiment("table2"), SMALL, seeds=1, fraction=fraction)
    expected = 0.0
    for run in runs:
        steps = math.ceil(fraction * 100_000 / run.settings.batch_size)
        epoch = steps * 1e-3 + fraction * (100_000 * 1e-6 + 10_000 * 0.5e-6)
        expected += plan.SETUP_SECONDS + SMALL.epochs * epoch
    assert plan.estimate_seconds(runs, data) == pytest.approx(expected)
