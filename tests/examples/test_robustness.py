"""examples/robustness.py: trains each folder, and its tables say what the runs say."""

import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from cowclip_merlin.cli import main as cowclip
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.results.result import example_result
from cowclip_merlin.experiments.results.results_csv import read_results
from cowclip_merlin.workflows import PreparedData

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import robustness  # noqa: E402
import robustness_tables  # noqa: E402

LABELS = {name: label for label, name in robustness.LINES.items()}
AUC = {
    ("none", 1): 0.80, ("none", 8): 0.79, ("none", "largest"): 0.77, ("cowclip", 1): 0.81,
    ("cowclip", 8): 0.80, ("cowclip", "largest"): 0.795, ("unclipped", 8): 0.80,
    ("unclipped", "largest"): 0.78, ("sqrt_star", 8): 0.80, ("sqrt_star", "largest"): 0.79,
    ("sde", 8): 0.80, ("sde", "largest"): 0.81, ("sde+clip", 8): 0.80, ("sde+clip", "largest"): 0.8,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A log of 400 rows with one common and one rare column."""
    rng = np.random.default_rng(3)
    work = tmp_path_factory.mktemp("log")
    rows = [f"{rng.integers(2)},{rng.integers(3)},{i // 2}" for i in range(400)]
    (work / "log.csv").write_text("\n".join(["y,common,rare", *rows]) + "\n")
    words = ["--label", "y", "--categorical", "common,rare", "--out", str(work / "CUT")]
    assert cowclip(["prepare", "table", str(work / "log.csv"), *words]) == 0
    return work / "CUT"


Run = namedtuple("Run", ["label", "multiplier", "seed"])


def results(seeds=(1, 2), **changed):
    """Results with the mean AUC above; best epochs are better, most of all without scaling."""
    found = {}
    for (name, multiplier), auc in AUC.items():
        steps = 7 if multiplier == "largest" else 300
        for seed in seeds:
            best = auc + (0.01 if name == "none" else 0.002)
            values = {"auc": auc + 0.001 * (seed - 1.5), "best_auc": best}
            values |= {"steps_per_epoch": steps, "base_batch_size": 1} | changed
            found[Run(LABELS[name], multiplier, seed)] = example_result(**values)
    return found


def test_a_cut_compares_its_runs(folder):
    data = PreparedData.load(folder)
    variant = robustness.make_variant(data, results())
    assert variant.auc == pytest.approx(80)
    expected = {"none x8": -1, "none x32": -3, "cowclip x1": 1, "cowclip x8": 0,
                "cowclip x32": -0.5, "clip x8": 0, "clip x32": 1.5,
                "sqrt_star x8": 0, "sqrt_star x32": -1, "sde x8": 0, "sde x32": 1,
                "sde+clip x8": 0, "sde+clip x32": 0}  # fmt: skip
    assert variant.gains == pytest.approx(expected, abs=1e-9)
    clip = {"clip x8", "clip x32"}
    none = {name for name in expected if name.startswith("none")}
    expected |= {name: expected[name] - 0.8 for name in expected.keys() - clip - none}
    assert variant.best == pytest.approx(expected, abs=1e-9)
    ids = {name: PreparedData.load(folder).cardinalities[name] - 3 for name in ("common", "rare")}
    rows = data.rows["train"]
    assert variant.properties["ids per row"] == pytest.approx(sum(ids.values()) / rows)
    assert variant.properties["rare ids"] == pytest.approx(ids["rare"] / sum(ids.values()))
    assert variant.properties["forgotten ids"] == 0  # of 400 rows, Adam remembers all
    assert variant.properties["steps at x32"] == 7
    assert variant.properties["overfitting"] == pytest.approx(1)
    text = robustness_tables.table([variant])
    assert text.splitlines()[-1].startswith(f"| CUT | {rows} | ") and text.endswith("| 80.00 |")
    assert robustness_tables.gains_table([variant]).splitlines()[-1].startswith("| CUT | -1.00 | ")


def test_a_run_that_diverged_is_named(folder):
    with pytest.raises(InputError, match=r"CUT: the run .* diverged"):
        robustness.make_variant(PreparedData.load(folder), results(status="diverged"))


def test_counts_and_correlations_of_several_cuts():
    rng = np.random.default_rng(1)
    names = robustness_tables.GAINS
    variants = [
        robustness_tables.Variant(
            name=str(i),
            rows=9,
            properties=dict(zip(robustness_tables.PROPERTIES, rng.random(5), strict=True)),
            auc=70.0,
            gains=dict(zip(names, rng.choice([-0.2, -0.05, 0.0, 0.3], len(names)), strict=True)),
            best=dict(zip(names, rng.choice([-0.2, -0.05], len(names)), strict=True)),
        )
        for i in range(9)
    ]
    values = np.array([variant.gains["cowclip x32"] for variant in variants])
    row = next(x for x in robustness_tables.counts(variants).splitlines() if "cowclip x32" in x)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:4] == [
        f"{(values > -0.01).sum()} of 9", f"{(values > -0.1).sum()} of 9",
        f"{np.median(values):+.2f}",
    ]  # fmt: skip
    best = np.array([variant.best["cowclip x32"] for variant in variants])
    assert cells[5] == f"{(best > -0.1).sum()} of 9"
    rare = [variant.properties["rare ids"] for variant in variants]
    row = next(
        x for x in robustness_tables.correlations(variants).splitlines() if "cowclip x32" in x
    )
    expected = spearmanr(rare, values).statistic
    assert float(row.strip("|").split("|")[2]) == pytest.approx(expected, abs=0.006)


def test_a_correlation_needs_different_values():
    assert np.isnan(robustness_tables.rank_correlation([1, 1, 1], [1, 2, 3]))
    assert np.isnan(robustness_tables.rank_correlation([1, 2], [1, 2]))


def test_nothing_to_replace_is_refused(folder, tmp_path, capsys):
    assert robustness.main([str(folder), "--out", str(tmp_path / "R"), "--overwrite"]) == 2
    assert "--overwrite has no effect without --csv" in capsys.readouterr().err


@pytest.mark.runs
@pytest.mark.thorough
def test_it_trains_and_continues(folder, tmp_path, capsys):
    file = tmp_path / "table.csv"
    words = [str(folder), "--out", str(tmp_path / "R"), "--epochs", "1", "--mlp", "4"]
    words += ["--csv", str(file)]
    assert robustness.main([*words, "--steps", "2"]) == 0
    first = capsys.readouterr().out
    assert first.count("| CUT |") == 2 and "clip x32" in first
    runs = read_results(tmp_path / "R")
    assert len(runs) == 14 and {r.batch_size // r.base_batch_size for r in runs} == {1, 8, 32}
    assert robustness_tables.table(robustness_tables.read_csv(file)) in first
    assert robustness.main([*words, "--steps", "2"]) == 2
    assert "table.csv: already exists" in capsys.readouterr().err
    words.append("--overwrite")
    assert robustness.main([*words, "--steps", "2"]) == 0
    second = capsys.readouterr().out
    assert read_results(tmp_path / "R") == runs
    assert second.splitlines()[-6:] == first.splitlines()[-6:]
    assert robustness.main([*words, "--steps", "90"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("robustness: error: ") and "too few for 90 steps" in error


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["NONE"], "NONE: no such folder"),
        (["CUT"], "CUT: two folders"),
        (["--mlp", "x"], "--mlp"),
        (["--csv", "CUT"], "CUT: is a folder"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_trained(
    more, complaint, folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(folder.parent)
    words = [str(folder), *more, "--out", str(tmp_path / "R"), "--steps", "2"]
    assert robustness.main(words) == 2
    error = capsys.readouterr().err.splitlines()
    assert complaint in error[-1] and error[-1].startswith("robustness: error: ")
    assert not (tmp_path / "R").exists()


def test_tables_of_several_files(tmp_path, capsys):
    gains = dict.fromkeys(robustness_tables.GAINS, 0.25)
    facts = dict.fromkeys(robustness_tables.PROPERTIES, 0.5)
    for name in ("a", "b"):
        variant = robustness_tables.Variant(
            name=name, rows=5, properties=facts, auc=70.0, gains=gains, best=gains
        )
        robustness_tables.write_csv(tmp_path / name, [variant])
        assert robustness_tables.read_csv(tmp_path / name) == [variant]
    assert robustness_tables.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    out = capsys.readouterr().out
    assert "| a | 5 |" in out and "| b | 5 |" in out and "2 of 2" in out
    (tmp_path / "c").write_text("x\n1\n")
    for name, complaint in (("c", "c: not a table"), ("d", "d")):
        assert robustness_tables.main([str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert complaint in error and len(error.splitlines()) == 1
