"""examples/several_labels.py: each way of sharing trains, and its AUCs are written by label."""

import csv
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import several_labels


@pytest.fixture
def log(tmp_path):
    draw = random.Random(4)
    rows = []
    for _ in range(500):
        stars = draw.randrange(1, 6)
        labels = {"click": int(stars >= 4), "favorite": int(stars == 5)}
        rows.append(labels | {name: draw.randrange(9) for name in several_labels.CATEGORICAL})
    with (tmp_path / "log.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return tmp_path / "log.csv"


@pytest.mark.thorough
def test_each_way_gives_an_auc_by_label(log, tmp_path, monkeypatch):
    monkeypatch.setattr(several_labels, "WAYS", ("alone", "esmm"))
    out = tmp_path / "results.csv"
    words = [str(log), "--out", str(out), "--seeds", "1", "--epochs", "1", "--batch-size", "64"]
    assert several_labels.main(words) == 0
    with out.open(newline="") as file:
        found = list(csv.DictReader(file))
    expected = [(way, label) for way in ("alone", "esmm") for label in several_labels.LABELS]
    assert [(row["way"], row["label"]) for row in found] == expected
    assert all(0 < float(row["test_auc"]) < 1 for row in found)
