"""`cowclip experiment` with ids in buckets: the runs, the table, the figure, nothing run twice."""

import pandas as pd
import pytest
from small_log_experiment import run_on_log

from cowclip_merlin.experiments.tables.files import read_table

DEFINITION = """
kind: collisions
title: "Small collisions: two loads"
claim: Nothing.
corner: ids per bucket
reference: none
lines:
  - {label: none, load: 0, epochs: 2, columns: [user]}
  - {label: "4", load: 4, epochs: 2, columns: [user]}
"""


@pytest.mark.thorough
def test_loads_are_compared_seed_by_seed(tmp_path, drifting_log, capsys):
    (tmp_path / "small.yaml").write_text(DEFINITION)
    out = tmp_path / "results"

    def run(*more):
        assert run_on_log(drifting_log, tmp_path, out, "small", more=more) == 0
        return capsys.readouterr().out

    assert "4 runs, the first one tells the time" in run("--dry-run")
    said = run()
    assert said.count("[4/4] seed 2, 4: AUC") == 1
    frame = pd.read_csv(out / "collisions.csv")
    assert len(frame) == 8 and frame.config_hash.nunique() == 4
    plain, hashed = (frame[frame.load == load].hashed_ids.max() for load in (0, 4))
    assert plain > 3 * hashed
    table = read_table(out / "tables/small.json")
    best = frame[frame.load == 0].groupby("epoch").auc.mean().idxmax()
    at_best = frame[frame.epoch == best].pivot(index="seed", columns="load", values="auc") * 100
    rows = dict(table.rows)
    assert rows["none"][0].mean == pytest.approx(at_best[0].mean())
    assert rows["4"][1].mean == pytest.approx((at_best[4] - at_best[0]).mean())
    assert f"After epoch {best}" in (out / "tables/small.md").read_text()
    assert (out / "figures/small.svg").exists()
    assert "no run is missing" in run("--dry-run")
    assert "[1/" not in run() and len(pd.read_csv(out / "collisions.csv")) == 8
