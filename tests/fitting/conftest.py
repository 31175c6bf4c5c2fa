"""A log with every kind of column that a guess knows, in which users and items decide clicks."""

import numpy as np
import pandas as pd
import pytest


def make_log(rows=1200, seed=0):
    some = np.random.default_rng(seed)
    user, item = some.integers(0, 60, rows), some.integers(0, 300, rows)
    seconds = np.sort(some.integers(0, 8 * 86400, rows))
    taste, appeal = some.normal(size=60), some.normal(size=300)
    tags = [some.choice([*"abcdef"], some.integers(0, 4), replace=False) for _ in range(rows)]
    logit = 1.5 * taste[user] + appeal[item] + 0.5 * np.array(["a" in each for each in tags]) - 0.5
    price = some.lognormal(2, 1, rows).round(2)
    return pd.DataFrame({
        "click": (some.random(rows) < 1 / (1 + np.exp(-logit))).astype(int),
        "row": np.arange(rows),
        "user": user,
        "item_id": item,
        "country": some.choice(["NA", "DE", "US"], rows),
        "price": np.where(some.random(rows) < 0.05, np.nan, price),
        "campaign": np.where(some.random(rows) < 0.1, np.nan, some.integers(0, 9, rows)),
        "tags": ["|".join(each) for each in tags],
        "date": (pd.Timestamp("2024-03-01") + pd.to_timedelta(seconds, "s")).astype(str),
        "constant": "x",
    })  # fmt: skip


@pytest.fixture(scope="session")
def rows():
    return make_log()


@pytest.fixture(scope="session")
def log(rows, tmp_path_factory):
    file = tmp_path_factory.mktemp("fit") / "log.csv"
    rows.to_csv(file, index=False)
    return file
