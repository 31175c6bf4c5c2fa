"""Several targets: what `prepare` reads, writes and refuses."""

import json

import numpy as np
import pandas as pd
import pytest

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading.columns import read_columns
from cowclip_merlin.targets import Target
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare, read_log
from cowclip_merlin.workflows.raw.values.labels import LabelCounts

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


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_missing_label_is_nan(tmp_path, kind):
    data = prepared(tmp_path, frame(), kind=kind)
    written, expected = rows_of(data), frame().astype({"click": "f4", "buy": "f4", "seconds": "f4"})
    for name in ("click", "buy", "seconds"):
        assert written[name].dtype == np.float32
        np.testing.assert_array_equal(written[name], expected[name])
    assert data.targets == (Target("click"), Target("buy"), Target("seconds", True))
    assert PreparedData.load(data.path) == data
    tags = {name: sorted(tag.value for tag in data.schema[name].tags) for name in LABELS["label"]}
    assert tags["buy"] == ["binary_classification", "target"]
    assert tags["seconds"] == ["regression", "target"]
    page = (data.path / "summary.md").read_text()
    assert (
        "- label buy: 32 rows, 25.00% 1" in page and "- label seconds: 14 rows, mean 4.875" in page
    )
    loaded = read_columns(data, "train").label
    np.testing.assert_array_equal(loaded, expected[["click", "buy", "seconds"]][:36])


def with_value(name, value):
    rows = frame().astype({"click": object, "buy": object, "seconds": object})
    rows.loc[3, name] = value
    return rows


BAD = [
    ("buy", "2", "buy is '2', neither 0 nor 1"),
    ("click", "nan", "click is 'nan', neither 0 nor 1"),
    ("seconds", "nan", "seconds is 'nan', no label of a regression; give a finite number"),
    ("seconds", "inf", "seconds is 'inf', no label of a regression"),
    ("seconds", "1e300", "seconds is '1e300', no label of a regression"),
    ("seconds", "long", "seconds is 'long', no label of a regression"),
]


@pytest.mark.parametrize(("name", "value", "reason"), BAD)
def test_a_line_with_a_wrong_label_is_damaged(tmp_path, name, value, reason):
    data = prepared(tmp_path, with_value(name, value), max_bad_fraction=0.1)
    assert len(rows_of(data)) == 39
    damaged = (data.path / "damaged" / "lines.tsv").read_text()
    assert damaged.startswith(f"{tmp_path / 'log.csv'}\t5\t{reason}")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_a_row_of_parquet_with_a_wrong_label_is_damaged(tmp_path, value):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame())
    seconds = [*table["seconds"].to_pylist()[:3], value, *table["seconds"].to_pylist()[4:]]
    table = table.set_column(2, "seconds", pa.array(seconds, pa.float64(), from_pandas=False))
    pq.write_table(table, tmp_path / "log.parquet")
    given = {"files": (tmp_path / "log.parquet",), "max_bad_fraction": 0.1}
    data = prepare(PrepareSettings(out=tmp_path / "DATA", **given, **COLUMNS, **LABELS))
    assert len(rows_of(data)) == 39
    damaged = (data.path / "damaged" / "lines.tsv").read_text()
    assert f"seconds is {value!r}, no label of a regression" in damaged


def test_a_truth_value_is_a_number_in_the_reason_too(tmp_path):
    """The reason names the label that is wrong, not the one of true and false before it."""
    rows = frame().assign(seconds=[True, False] * 20)[["seconds", "buy", "user", "age"]]
    rows["buy"] = [1, 0, 1, 5, *[0, 1] * 18]
    labels = {"label": ("seconds", "buy"), "regression": ("seconds",)}
    given = {"kind": "parquet", "max_bad_fraction": 0.1, **labels}
    data = prepared(tmp_path, rows, **given)
    assert rows_of(data).seconds.isin([0, 1]).all()
    assert "buy is 5, neither 0 nor 1" in (data.path / "damaged" / "lines.tsv").read_text()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_row_without_any_label_is_damaged(tmp_path, kind):
    rows = frame()
    rows.loc[4, ["click", "buy", "seconds"]] = None
    data = prepared(tmp_path, rows, kind=kind, max_bad_fraction=0.1)
    assert len(rows_of(data)) == 39
    reason = (data.path / "damaged" / "lines.tsv").read_text().split("\t")[2]
    assert reason == "no label: click, buy, seconds are missing"


def test_words_are_labels_too(tmp_path):
    rows = frame().assign(click=["yes", "no"] * 20, buy=[True, None] + [False, True] * 19)
    for kind in ("csv", "parquet"):
        found = rows_of(prepared(tmp_path, rows, kind=kind, name=kind))
        assert found.click.tolist() == [1.0, 0.0] * 20
        np.testing.assert_array_equal(found.buy, [1.0, np.nan] + [0.0, 1.0] * 19)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("click", 1, "no row has label 0 in column 'click'"),
        ("buy", 0, "no row has label 1 in column 'buy'"),
        ("seconds", None, "no row has a label in column 'seconds'"),
    ],
)
def test_a_target_needs_labels_to_learn_from(tmp_path, name, values, message):
    rows = frame()
    rows[name] = values
    with pytest.raises(InputError, match=message):
        prepared(tmp_path, rows)
    assert not (tmp_path / "DATA").exists()


def test_one_label_is_described_as_before(tmp_path):
    rows = frame()[["click", "user", "age"]]
    one = prepared(tmp_path, rows, label="click", regression=())
    again = prepared(tmp_path, rows, label=("click",), regression=(), name="AGAIN")
    described = json.loads((one.path / "dataset.json").read_text())
    assert not {"more_labels", "regression"} & (
        set(described["layout"]) | set(described["settings"])
    )
    assert "targets" not in described and described["settings"]["label"] == "click"
    assert again.fingerprint == one.fingerprint and again.checksums == one.checksums
    assert rows_of(one).click.dtype == np.int8
    several = prepared(tmp_path, frame(), name="SEVERAL")
    assert several.fingerprint != one.fingerprint
    assert several.vocabulary != one.vocabulary  # its number has a mean and a spread


def test_new_rows_have_the_same_labels(tmp_path):
    data = prepared(tmp_path, frame())
    settings = {"kind": "table", "like": data.path, "files": (tmp_path / "log.csv",)}
    new = prepare(PrepareSettings(out=tmp_path / "NEW", **settings))
    assert new.targets == data.targets and new.rows["test"] == 40
    with pytest.raises(InputError, match=r"`label`: .* has other columns; omit `label`"):
        prepare(PrepareSettings(out=tmp_path / "N", label=("click", "buy"), **settings))
    with pytest.raises(InputError, match="`hugectr` writes one label of 0 and 1, not click"):
        prepare(PrepareSettings(out=tmp_path / "N", hugectr=True, **settings))


def test_read_log_reads_all_labels(tmp_path):
    data = prepared(tmp_path, frame())
    found = read_log(tmp_path / "log.csv", data, labels=True)
    np.testing.assert_array_equal(found.seconds, frame().seconds.astype("f4"))
    assert list(read_log(tmp_path / "log.csv", data)) == ["user", "age"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--label", "click", "--regression", "age"], "--regression 'age' is no label"),
        (["--label", "click,click"], "'click' is given twice"),
        (["--label", "click,user"], "'user' is given twice"),
        (
            ["--label", "click,buy", "--hugectr"],
            "--hugectr writes one label of 0 and 1, not click, buy",
        ),
        (["--label", "click,sold"], "no column 'sold' in the header"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, capsys, words, message):
    frame().to_csv(tmp_path / "log.csv", index=False)
    options = ["--out", str(tmp_path / "DATA"), "--categorical", "user"]
    assert main(["prepare", "table", str(tmp_path / "log.csv"), *options, *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "DATA").exists()


def test_other_kinds_have_their_own_label(tmp_path, capsys):
    (tmp_path / "log.txt").write_text("")
    options = ["--out", str(tmp_path / "DATA"), "--label", "click,buy"]
    assert main(["prepare", "criteo", str(tmp_path / "log.txt"), *options]) == 2
    assert "--label, --regression" in capsys.readouterr().err


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
