"""The guessed roles of columns, from values in every form of a log."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from data import write

from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows import guess_columns

N = 300
SOME = np.random.default_rng(0)
WHOLE = SOME.integers(0, 90, N)
GAPS = pd.Series([None if x == 1 else x for x in WHOLE.tolist()], dtype=object)
COLUMNS = {
    # name: (values, role, what the reason says)
    "few": (WHOLE % 7, "categorical", "whole numbers, 7 values"),
    "many": (WHOLE, "categorical", "whole numbers"),
    "with_gaps": (GAPS, "categorical", "whole numbers, .* values; .*% missing"),
    "price": (WHOLE * 3, "continuous", "whole numbers"),
    "userAge": (WHOLE, "continuous", "whole numbers"),
    "ageId": (WHOLE, "categorical", "whole numbers"),
    "fraction": (WHOLE / 7, "continuous", "numbers"),
    "name": ([f"n{x}" for x in WHOLE], "categorical", "text"),
    "country": (SOME.choice(["NA", "DE"], N), "categorical", "text, 2 values"),
    "or_nan": (["NaN" if x == 1 else f"{x / 7}" for x in WHOLE], "categorical", "but for.*'NaN'"),
    "zips": ([f"0{x:04}" for x in WHOLE], "categorical", "text"),
    "hashes": ([str(10**18 + 7 * x) for x in WHOLE.tolist()], "categorical", "text"),
    "comma": ([f"{x},5" for x in WHOLE], "categorical", "text, .*numbers with commas; write dec"),
    "us_date": ([f"3/{1 + x % 28}/2024" for x in WHOLE], "categorical", "dates; write 2001-01-31"),
    "minute": ([f"01.03.2024 {i // 60}:{i % 60}" for i in range(N)], "left out", "a row.*dates;"),
    "flag": (WHOLE > 9, "categorical", "text, 2 values"),
    "row": (np.arange(N), "left out", "nearly one value a row: 300 values in 300 rows"),
    "request": ([f"r{x}" for x in range(N)], "left out", "nearly one value a row"),
    "one": (["a"] * N, "left out", "one value only"),
    "none": ([None] * N, "left out", "no values"),
    "day": ([f"2024-03-{1 + x % 28:02}" for x in range(N)], "time", "order of the split"),
    "sent_ts": (10**12 + 10**8 * WHOLE, "left out", "times in milliseconds; divide by 1000"),
    "ended_at": ([f"2024-03-0{1 + x % 9} 10:00" for x in range(N)], "left out", "has the time"),
}  # fmt: skip


def guess(file, label="y", **given):
    return guess_columns([file], label, given)


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "parquet"])
def test_each_kind_of_values_has_its_role(tmp_path, kind):
    frame = pd.DataFrame({"y": WHOLE % 2} | {name: each[0] for name, each in COLUMNS.items()})
    if kind == "parquet":
        frame["day"] = pd.to_datetime(frame["day"])
        frame.to_parquet(tmp_path / "log.parquet")
    else:
        write(tmp_path / f"log.{kind}", frame)
    found = guess(tmp_path / f"log.{kind}")
    roles = {each.name: each.role for each in found.columns}
    assert roles == {name: role for name, (_, role, _) in COLUMNS.items()}
    for each in found.columns:
        assert re.search(COLUMNS[each.name][2], each.why), each
    assert found.settings["split"] == "time" and found.settings["time"] == "day"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_lists_and_vectors(tmp_path, kind):
    tags = [[*"abc"][: x % 4] for x in WHOLE]
    if kind == "csv":
        frame = pd.DataFrame({"y": WHOLE % 2, "tags": ["|".join(each) for each in tags]})
        frame.to_csv(tmp_path / "log.csv", index=False)
    else:
        vectors = [[x / 7, 0.5] for x in WHOLE.tolist()]
        frame = pd.DataFrame({"y": WHOLE % 2, "tags": tags, "vector": vectors})
        if kind == "parquet":
            frame.to_parquet(tmp_path / "log.parquet")
        else:
            lines = [json.dumps(row) for row in frame.to_dict("records")]
            (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    found = guess(tmp_path / f"log.{kind}")
    assert found.names("multi") == ("tags",)
    assert found.names("vector") == (() if kind == "csv" else ("vector",))


@pytest.mark.parametrize(
    ("separator", "name"), [(";", "log.csv"), ("\t", "log.csv"), ("|", "x.txt")]
)
def test_the_header_with_the_label_tells_the_separator(tmp_path, separator, name):
    frame = pd.DataFrame({"y": WHOLE % 2, "user": WHOLE})
    frame.to_csv(tmp_path / name, index=False, sep=separator)
    assert guess(tmp_path / name).settings == {
        "kind": "table", "label": "y", "categorical": ("user",), "separator": separator
    }  # fmt: skip


def test_amounts_are_spread_unevenly_but_ids_are_not(tmp_path):
    amounts = np.round(np.exp(SOME.normal(8, 2, 9000))).astype(int)
    ids = SOME.integers(0, 5000, 9000)
    pd.DataFrame({"y": ids % 2, "a": amounts, "b": ids, "c": ids * 7919}).to_csv(
        tmp_path / "log.csv", index=False
    )
    found = {each.name: each for each in guess(tmp_path / "log.csv").columns}
    assert {name: each.role for name, each in found.items()} == {
        "a": "continuous", "b": "categorical", "c": "categorical"
    }  # fmt: skip
    assert found["a"].why.endswith("unevenly spread")


def test_all_rows_decide_whether_a_column_has_one_value_a_row(tmp_path):
    """The first 50,000 rows have one row of each user; later the users come again."""
    users = np.tile(np.arange(60_000), 2)
    frame = pd.DataFrame({"y": users % 2, "user": users, "late": np.arange(120_000) // 100_000})
    frame.to_csv(tmp_path / "log.csv", index=False)
    found = guess(tmp_path / "log.csv")
    assert found.settings["categorical"] == ("user", "late")
    frame[:60_000].to_csv(tmp_path / "log.csv", index=False)
    assert guess(tmp_path / "log.csv").names("left out") == ("user", "late")


def test_many_values_are_counted_by_a_share_of_their_hashes(tmp_path, monkeypatch):
    """As `test_all_rows_decide` does, but of a log with more values than are kept."""
    monkeypatch.setattr("cowclip_merlin.workflows.raw.first_look.HASHES", 5000)
    users = np.tile(np.arange(60_000), 2)
    frame = pd.DataFrame({"y": users % 2, "user": users, "row": np.arange(120_000), "one": 1})
    frame.to_csv(tmp_path / "log.csv", index=False)
    why = {each.name: each.why for each in guess(tmp_path / "log.csv").columns}
    assert why["one"] == "one value only"
    (values,) = re.findall(r"whole numbers, ([\d,]+) values", why["user"])
    assert int(values.replace(",", "")) == pytest.approx(60_000, rel=0.05)
    found = re.fullmatch(r"nearly one value a row: ([\d,]+) values in 120,000 rows", why["row"])
    assert int(found[1].replace(",", "")) == pytest.approx(120_000, rel=0.05)


def test_given_roles_win(tmp_path):
    frame = pd.DataFrame({"y": WHOLE % 2, "a": WHOLE, "b": WHOLE / 7, "c": np.arange(N), "": 1})
    frame.to_csv(tmp_path / "log.csv", index=False)
    found = guess(tmp_path / "log.csv", continuous=["a"], ignore=["b"], categorical=["c"])
    roles = {each.name: (each.role, each.why) for each in found.columns}
    given = "as given"
    assert roles == {
        "a": ("continuous", given), "b": ("left out", given), "c": ("categorical", given)
    }  # fmt: skip
    lines = found.table().splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["column", "role", "why"], ["y", "label"], ["a", "continuous", "as", "given"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("label", "given", "words"),
    [
        ("z", {}, "no column 'z' in the header"),
        ("y", {"categorical": ["q"]}, r"`categorical`: .*log\.csv has no column 'q', but 'y', 'a'"),
        ("y", {"multi": ["y"]}, "`multi`: column 'y' is the label"),
        ("y", {"multi": ["a"], "ignore": ["a"]}, "`ignore`: column 'a' is given as `multi`, too"),
    ],
)
def test_wrong_names_are_refused(tmp_path, label, given, words):
    (tmp_path / "log.csv").write_text("y,a\n0,1\n1,2\n")
    with pytest.raises(InputError, match=words):
        guess(tmp_path / "log.csv", label, **given)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("labels", "some"),
    [
        (["low", "mid", "high"], "'low', 'mid', 'high'"),
        (["hit", "miss"], "'hit', 'miss'"),
        ([0, 1, 2, 3, 4], "'?0'?, '?1'?, '?2'? and 2 more"),
        ([0.5, 1.5], "'?0.5'?, '?1.5'?"),
    ],
)
def test_other_labels_than_0_and_1_are_refused_at_once(tmp_path, kind, labels, some):
    file = tmp_path / f"log.{kind}"
    frame = pd.DataFrame({"y": [labels[i % len(labels)] for i in range(N)], "a": WHOLE % 7})
    frame.to_parquet(file) if kind == "parquet" else write(file, frame)
    words = rf"log\.{kind}: label 'y' has the values {some}, not 0 and 1; make a column of"
    with pytest.raises(InputError, match=words):
        guess(file)


@pytest.mark.parametrize("two", [("yes", "no"), ("true", "false"), (1.0, 0.0)])
def test_two_labels_in_any_form_and_a_few_wrong_ones_stay(tmp_path, two):
    labels = [two[i % 2] for i in range(N)]
    labels[7] = "?"  # a damaged row, as `prepare` says
    write(tmp_path / "log.csv", pd.DataFrame({"y": labels, "a": WHOLE % 7}))
    assert guess(tmp_path / "log.csv").label == "y"
    labels[9:19] = ["?"] * 10
    write(tmp_path / "log.csv", pd.DataFrame({"y": labels, "a": WHOLE % 7}))
    guess_columns([tmp_path / "log.csv"], "y", max_bad_fraction=0.5)
    with pytest.raises(InputError, match="label 'y'"):
        guess_columns([tmp_path / "log.csv"], "y", max_bad_fraction=0.001)
