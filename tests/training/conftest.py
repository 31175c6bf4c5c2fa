"""A prepared folder that a test may spoil."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def folder(data, tmp_path):
    """A prepared folder of its own, without a cache."""
    copy = shutil.copytree(data, tmp_path / "data", ignore=lambda _, names: hidden(names))
    forget_checksums(copy)
    return PreparedData.load(copy)


@pytest.fixture(scope="session")
def small(make_once):
    """A prepared folder of two categorical columns and a number, which trains faster."""

    def make(folder):
        rng = np.random.default_rng(1)
        a, b, x = rng.integers(0, 40, 3000), rng.integers(0, 7, 3000), rng.random(3000).round(3)
        click = (rng.random(3000) < 0.2 + 0.5 * (a % 2)).astype(int)
        pd.DataFrame({"click": click, "a": a, "b": b, "x": x}).to_csv(folder / "l.csv", index=False)
        columns = {"label": "click", "categorical": ("a", "b"), "continuous": ("x",)}
        files = (folder / "l.csv",)
        prepare(PrepareSettings(files=files, out=folder / "data", kind="table", **columns))

    return make_once("small_table", make) / "data"


def forget_checksums(folder):
    """So that what a test writes into the parquet files is read."""
    description = json.loads((folder / "dataset.json").read_text())
    description["checksums"] = {}
    (folder / "dataset.json").write_text(json.dumps(description))


def hidden(names):
    return [name for name in names if name.startswith(".cache")]
