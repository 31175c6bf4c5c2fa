"""examples/loss_by_steps.py: larger batches are compared with the base batch of their setting."""

import sys
from pathlib import Path

import pytest

from cowclip_merlin.experiments.results.result import example_result
from cowclip_merlin.experiments.results.results_csv import write_results

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import loss_by_steps  # noqa: E402

USUAL = {"model": "deepfm", "optimizer": "adam", "rule": "cowclip", "clip": "cowclip",
         "update": "exact", "epochs": 3, "base_batch_size": 64, "embedding_lr": 1e-3}  # fmt: skip


def run(factor, auc, seed=1, **changed):
    """A run whose rates follow the rule from 3e-4 and 1e-5."""
    rates = {"dense_lr": 3e-4 * factor**0.5, "l2": 1e-5 * factor, "batch_size": 64 * factor}
    values = USUAL | rates | {"auc": auc, "seed": seed, "steps_per_epoch": 1600 // factor}
    name = f"{factor}-{seed}-{sorted(changed.items())}"
    return example_result(**values | {"config_hash": name} | changed)


def test_a_larger_batch_is_compared_with_its_own_base():
    runs = [run(1, 0.80), run(1, 0.82, 2), run(8, 0.79), run(8, 0.81, 2), run(32, 0.77)]
    runs += [run(1, 0.60, r=0.1), run(8, 0.65, r=0.1)]
    runs += [run(8, 0.99, data_fingerprint="without a base")]
    found = [(each.steps, round(each.difference, 6)) for each in loss_by_steps.losses(runs)]
    assert found == [(200, -1), (50, -4), (200, 5)]


@pytest.mark.parametrize(
    "other",
    [
        {"model": "dcn"}, {"optimizer": "adagrad"}, {"clip": "none"}, {"update": "lazy"},
        {"split": "validation"}, {"status": "diverged"}, {"variant": "a"}, {"epochs": 1},
    ],
)  # fmt: skip
def test_other_runs_do_not_count(other):
    assert not loss_by_steps.losses([run(1, 0.8, **other), run(8, 0.7, **other)])


def test_the_table_has_a_row_per_group(tmp_path, capsys):
    for folder, data, last in (("a", "one", 0.75), ("b", "two", 0.78)):
        (tmp_path / folder).mkdir()
        values = {"data": data, "data_fingerprint": data}
        runs = [run(1, 0.8, **values), run(8, 0.79, **values), run(32, last, **values)]
        write_results(tmp_path / folder, runs)
    assert loss_by_steps.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| 200 to 449 | 2 | 2 | -1.00 | -1.00 to -1.00 | -1.00 to -1.00 |",
        "| 50 to 99 | 2 | 2 | -3.50 | -4.25 to -2.75 | -5.00 to -2.00 |",
    ]


def test_wrong_folders(tmp_path, capsys):
    assert loss_by_steps.main([str(tmp_path)]) == 2
    assert "has no results.csv" in capsys.readouterr().err
    write_results(tmp_path, [run(8, 0.8)])
    assert loss_by_steps.main([str(tmp_path)]) == 2
    assert "no runs of DeepFM" in capsys.readouterr().err
