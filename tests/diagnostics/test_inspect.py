"""`cowclip inspect`: its text, figures and errors."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from cowclip_merlin.cli import main
from cowclip_merlin.contrib.diagnostics.record import FILE
from cowclip_merlin.contrib.diagnostics.report import FIGURES
from cowclip_merlin.diagnostics import read_diagnostics
from cowclip_merlin.training import RunSettings, train
from cowclip_merlin.training.run_logs import read_reliability, write_reliability

SETTINGS = RunSettings(
    model="deepfm", mlp=(8,), batch_size=256, base_batch_size=64, epochs=2, seed=5,
    overrides={"r": 1e-2, "zeta": 0.0},
)  # fmt: skip


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("inspected") / "run"
    rows = train(data, SETTINGS, out=out, diagnostics_every=5)
    return out, rows


def test_the_text_says_what_the_files_say(run, capsys):
    folder, rows = run
    assert main(["inspect", str(folder)]) == 0
    text, table = capsys.readouterr().out, read_diagnostics(folder)
    assert text.startswith("deepfm, batch 256, rule cowclip, clip cowclip, update dense, seed 5:")
    for row in rows:
        assert re.search(rf"^ +{row['epoch']} .* {row['test_auc']:.5f} ", text, re.MULTILINE)
    for step, share in table[table.scope == "all"][["step", "clipped_share"]].to_numpy():
        assert re.search(rf"^ +{step:.0f} .* {100 * share:.2f}% ", text, re.MULTILINE)
    last = table[table.step == table.step.max()]
    shown = re.findall(r"^ +(C\d+) .* (\d+\.\d\d)% ", text, re.MULTILINE)
    assert [float(share) for _, share in shown] == sorted(
        (float(s) for _, s in shown), reverse=True
    )
    fields = last[last.scope == "field"].set_index("group").clipped_share
    assert {name: float(share) for name, share in shown} == pytest.approx(
        (100 * fields).to_dict(), abs=0.006
    )
    top = last[(last.scope == "decile") & (last.group == "10")].iloc[0]
    seen = f"{top.least_count:,.0f} to {top.most_count:,.0f}"
    assert re.search(rf"^ +10 +{seen} .*{re.escape(f'{top.g_norm:.3e}')}", text, re.MULTILINE)


@pytest.mark.thorough
def test_figures_are_written_and_the_same_every_time(run, tmp_path, capsys):
    folder, _ = run
    assert main(["inspect", str(folder)]) == 0
    assert main(["inspect", str(folder), "--out", str(tmp_path / "figures")]) == 0
    for name in (*FIGURES, "reliability"):
        first = (folder / "figures" / f"{name}.svg").read_bytes()
        assert (
            first.startswith(b"<?xml")
            and first == (tmp_path / "figures" / f"{name}.svg").read_bytes()
        )
    assert {f.stem for f in (folder / "figures").iterdir()} == {*FIGURES, "reliability"}


def lines(axes):
    return [(line.get_xdata(), line.get_ydata()) for line in axes.get_lines()]


def test_figures_are_drawn_of_the_numbers(run):
    """Also of one probe."""
    table = read_diagnostics(run[0])
    every = table[table.scope == "all"]
    share, factor = (lines(axes)[0] for axes in FIGURES["clip"](table).axes)
    np.testing.assert_array_equal(share, (every.step, 100 * every.clipped_share))
    np.testing.assert_array_equal(factor, (every.step, every.mean_clip_factor))
    w, g, per_cnt = FIGURES["norms"](table).axes
    at = table[(table.scope == "decile") & (table.step == table.step.max())]
    for axes, column in ((w, "w_norm"), (g, "g_norm"), (per_cnt, "g_norm_per_cnt")):
        np.testing.assert_array_equal(lines(axes)[-1], (at.group.astype(int), at[column]))
    looks = [(line.get_color(), line.get_marker(), line.get_linestyle()) for line in g.get_lines()]
    assert len(looks) == 3 and all(len(set(each)) == 3 for each in zip(*looks))
    for draw in FIGURES.values():
        assert draw(table[table.step == 0]).axes


@pytest.mark.thorough
@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_clippy_has_norms_and_no_factors(data, tmp_path, capsys, update):
    """It bounds steps, which are made after the probe: no number must be made up for it."""
    settings = replace(SETTINGS, clip="clippy", update=update, epochs=1)
    rows = train(data, settings, out=tmp_path / "run", diagnostics_every=5)
    table = read_diagnostics(tmp_path / "run")
    assert table.clipped_share.isna().all() and table.mean_clip_factor.isna().all()
    assert (table[table.scope == "all"].g_norm > 0).all()
    assert main(["inspect", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert f" {rows[0]['mean_clip_factor']:.4f}\n" in text and "nan" not in text
    drawn = {file.stem for file in (tmp_path / "run" / "figures").iterdir()}
    assert drawn == {"norms", "rates", "reliability"}


@pytest.mark.thorough
def test_a_run_on_validation_rows_shows_their_scores(data, tmp_path, capsys):
    settings = replace(SETTINGS, validation_fraction=0.1, epochs=1)
    (row,) = train(data, settings, out=tmp_path / "run", diagnostics_every=5)
    assert main(["inspect", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert "validation AUC" in text and "test AUC" not in text
    assert f"{row['validation_auc']:.5f}" in text and f"{row['validation_log_loss']:.5f}" in text


@pytest.mark.thorough
def test_few_looks_are_said_with_the_remedy(data, run, tmp_path, capsys):
    train(data, replace(SETTINGS, epochs=1), out=tmp_path / "run", diagnostics_every=1000)
    assert main(["inspect", str(tmp_path / "run")]) == 0
    assert "1 probe in total; for more, train with a smaller" in capsys.readouterr().out
    assert main(["inspect", str(run[0])]) == 0
    assert "in all" not in capsys.readouterr().out


@pytest.mark.parametrize("clip_all", [0.0, 1.0])
def test_a_share_that_never_changes_can_be_drawn(run, clip_all):
    table = read_diagnostics(run[0])
    table["clipped_share"] = clip_all
    low, high = FIGURES["clip"](table).axes[0].get_ylim()
    assert low < 100 * clip_all < high and high <= 101


@pytest.mark.thorough
def test_a_run_that_has_not_finished_an_epoch(run, tmp_path, capsys):
    for name in ("config.json", FILE):
        (tmp_path / name).write_bytes((run[0] / name).read_bytes())
    assert main(["inspect", str(tmp_path)]) == 0
    assert "no epoch is finished" in capsys.readouterr().out


def test_the_reliability_of_the_served_epoch_is_drawn(run, tmp_path, capsys):
    folder, rows = run
    recorded = read_reliability(folder / "reliability.csv")
    assert [int(row["epoch"]) for row in recorded] == [1] * 20 + [2] * 20
    last = [row for row in recorded if row["epoch"] == "2"]
    sizes, predicted = (
        np.array([float(row[name]) for row in last]) for name in ("rows", "predicted")
    )
    clicks = sizes @ [float(row["observed"]) for row in last]
    assert sizes @ predicted / clicks == pytest.approx(rows[-1]["test_calibration"], rel=1e-9)
    assert main(["inspect", str(folder), "--out", str(tmp_path / "figures")]) == 0
    assert "test rows, epoch 2" in (tmp_path / "figures" / "reliability.svg").read_text()
    assert str(tmp_path / "figures" / "reliability.svg") in capsys.readouterr().out


def test_a_resumed_run_writes_its_bins_anew(run, data, tmp_path):
    folder = shutil.copytree(run[0], tmp_path / "run")
    write_reliability(folder / "reliability.csv", 2, "test", [])
    assert len(read_reliability(folder / "reliability.csv")) == 20
    (folder / "reliability.csv").write_text("epoch,split\n1,test\n")
    assert main(["inspect", str(folder)]) == 2


def test_a_run_of_an_earlier_version_has_no_bins(run, tmp_path, capsys):
    folder = shutil.copytree(run[0], tmp_path / "run")
    (folder / "reliability.csv").unlink()
    assert main(["inspect", str(folder)]) == 0
    assert "reliability" not in capsys.readouterr().out
