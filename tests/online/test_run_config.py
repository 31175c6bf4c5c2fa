"""The error for other settings than those of a folder: it says what differs."""

from dataclasses import replace
from pathlib import Path

import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import OnlineSettings
from cowclip_merlin.online.events.columns import CategoricalColumn, ContinuousColumn
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.values import NumberScaling
from cowclip_merlin.online.run_config import online_config, refuse_difference
from cowclip_merlin.tables import FieldRules
from cowclip_merlin.training import RunSettings

NAMES = ["user", "item", "category", "site", "device", "hour"]
COLUMNS = tuple(CategoricalColumn(name=name) for name in NAMES)
FEATURES = LogFeatures(
    label="click", time="time", categorical=COLUMNS, continuous=(ContinuousColumn(name="price"),)
)
SETTINGS = OnlineSettings(run=RunSettings(model="deepfm", batch_size=32, update="lazy", epochs=1))


def config(settings=SETTINGS, **features):
    return online_config(settings, replace(FEATURES, **features))


def with_rules(at, **rules):
    changed = replace(COLUMNS[at], rules=FieldRules(**rules))
    return config(categorical=(*COLUMNS[:at], changed, *COLUMNS[at + 1 :]))


PRICE = ContinuousColumn(name="price", scaling=NumberScaling(transform="log"))
LONG = tuple(f"column{i}" for i in range(40))
CASES = {
    "a rule of a late column": (with_rules(5, ttl=5), "another ttl of 'hour' (0, not 5);"),
    "two rules": (with_rules(1, admit=3, ttl=9), "admit of 'item' (1, not 3), ttl of 'item' (0, "),
    "transform": (config(continuous=(PRICE,)), "transform of 'price' ('signed_log', not 'log');"),
    "a new column": (
        config(categorical=(*COLUMNS, CategoricalColumn(name="age"))),
        "categorical (...e', 'device', 'hour'], not ...e', 'device', 'hour', 'age']);",
    ),
    "no continuous column": (config(continuous=()), "continuous (['price'], not []);"),
    "more than it shows": (
        config(label="late", time="at", key="id", continuous=(PRICE,)),
        "label ('click', not 'late'), time ('time', not 'at'), ",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_differs_is_named(case):
    now, words = CASES[case]
    with pytest.raises(InputError) as error:
        refuse_difference(Path("RUN"), config(), now)
    said = str(error.value)
    assert said.startswith("RUN: ") and words in said
    assert (" and 1 more;" in said) == (case == "more than it shows")


def test_the_difference_of_long_values_is_shown():
    other = (*LONG[:30], "changed", *LONG[31:])
    with pytest.raises(InputError, match=r"columns \(\.\.\..*'column30', .*, not .*'changed', "):
        refuse_difference(Path("RUN"), config(columns=LONG), config(columns=other))


def test_files_of_one_name_are_compared_too():
    now = {"log": [{"name": "a.csv", "bytes": size} for size in (1, 2)]}
    before = {"log": [{"name": "a.csv", "bytes": size} for size in (9, 2)]}
    refuse_difference(Path("RUN"), now, now)
    for old in (before, {}, None):
        with pytest.raises(InputError, match=r"RUN: .*another log"):
            refuse_difference(Path("RUN"), old, now)
