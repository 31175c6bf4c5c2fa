"""A log of events with three labels, some of which are missing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from cowclip_merlin.online.events.features import (
    CategoricalColumn,
    ContinuousColumn,
    LogFeatures,
)

FEATURES = LogFeatures(
    label="click",
    more_labels=("buy", "sec"),
    regression=("sec",),
    time="time",
    key="key",
    categorical=(CategoricalColumn(name="user"), CategoricalColumn(name="item")),
    continuous=(ContinuousColumn(name="price"),),
)
TWO = replace(FEATURES, more_labels=("buy",), regression=())


def frame_of(rows):
    """Clicks of users on items, some of them bought, and seconds; some labels are missing."""
    rng = np.random.default_rng(8)
    user, item = rng.integers(0, 30, rows), rng.integers(0, 20, rows)
    click = ((user + item) % 3 == 0) != (rng.random(rows) < 0.1)
    buy = np.where(click & (item % 2 == 0), 1.0, 0.0)
    sec = np.where(rng.random(rows) < 0.3, np.nan, click * (1 + item / 10))
    buy[rng.random(rows) < 0.2] = np.nan
    columns = {"time": 1_700_000_000 + np.arange(rows), "key": [f"r{i}" for i in range(rows)]}
    columns |= {"user": user, "item": item, "price": rng.random(rows).round(3)}
    return pd.DataFrame(columns | {"click": click.astype(int), "buy": buy, "sec": sec.round(3)})


TEXT = """\
label: [click, buy, sec]
regression: sec
time: time
key: key
categorical: [user, item]
continuous: [price]
"""


def write_log():
    """Write a log and its features file into the working folder; return the rows."""
    frame = frame_of(1500)
    frame.to_csv("log.csv", index=False)
    frame.to_parquet("log.parquet")
    Path("f.yaml").write_text(TEXT, encoding="utf-8")
    return frame
