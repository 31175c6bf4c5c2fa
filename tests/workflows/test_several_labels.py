"""Several labels: what `prepare` makes of words and truth values, and their mean and spread."""

import numpy as np
import pandas as pd
import pytest

from cowclip_merlin.workflows import PrepareSettings, prepare
from cowclip_merlin.workflows.ingest import LabelCounts

LABELS = {"label": ("click", "buy", "seconds"), "regression": ("seconds",)}
COLUMNS = {"kind": "table", "categorical": ("user",), "continuous": ("age",)}


def frame(rows=40):
    n = np.arange(rows)
    click = pd.array(n % 2, "Int64")
    buy = pd.array(np.where(n % 4 == 1, 1, 0), "Int64")
    buy[n % 5 == 0] = None
    seconds = np.where(n % 3 == 0, n / 4, np.nan)
    columns = {"click": click, "buy": buy, "seconds": seconds, "user": n % 7, "age": n / rows}
    return pd.DataFrame(columns)


def prepared(folder, rows, *, kind="csv", name="DATA", **settings):
    file = folder / f"log.{kind}"
    rows.to_parquet(file) if kind == "parquet" else rows.to_csv(file, index=False)
    settings = COLUMNS | LABELS | {"split": "time"} | settings
    return prepare(PrepareSettings(files=(file,), out=folder / name, **settings))


def rows_of(data):
    files = [file for split in ("train", "test") for file in data.files(split)]
    return pd.concat(map(pd.read_parquet, files), ignore_index=True)


def test_a_truth_value_is_a_number_in_the_reason_too(tmp_path):
    """The reason names the label that is wrong, not the one of true and false before it."""
    rows = frame().assign(seconds=[True, False] * 20)[["seconds", "buy", "user", "age"]]
    rows["buy"] = [1, 0, 1, 5, *[0, 1] * 18]
    labels = {"label": ("seconds", "buy"), "regression": ("seconds",)}
    given = {"kind": "parquet", "max_bad_fraction": 0.1, **labels}
    data = prepared(tmp_path, rows, **given)
    assert rows_of(data).seconds.isin([0, 1]).all()
    assert "buy is 5, neither 0 nor 1" in (data.path / "damaged" / "lines.tsv").read_text()


def test_words_are_labels_too(tmp_path):
    rows = frame().assign(click=["yes", "no"] * 20, buy=[True, None] + [False, True] * 19)
    for kind in ("csv", "parquet"):
        found = rows_of(prepared(tmp_path, rows, kind=kind, name=kind))
        assert found.click.tolist() == [1.0, 0.0] * 20
        np.testing.assert_array_equal(found.buy, [1.0, np.nan] + [0.0, 1.0] * 19)


def test_mean_and_spread_of_the_training_rows():
    """By parts, and far from 0, as times are."""
    counts, rng = LabelCounts(), np.random.default_rng(3)
    parts = [1.7e9 + 1e3 * rng.normal(size=n) for n in (1, 40, 7)]
    for part in parts:
        counts.add("train", np.append(part, np.nan))
        counts.add("test", part * 2)
    every = np.concatenate(parts)
    assert counts.mean == pytest.approx(every.mean(), rel=1e-12)
    assert counts.spread == pytest.approx(every.std(), rel=1e-9)
    assert LabelCounts().spread == 1.0
