"""A column of times: its hour and weekday are id columns, and it can be the order of the split."""

import json
from datetime import datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows import LogFormat, PreparedData, PrepareSettings, prepare, read_log

DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
FORMAT = LogFormat(kind="table", label="", categorical=("at_hour", "at_weekday"), time="at")
TIMES = st.datetimes(datetime(1973, 4, 1), datetime(2033, 5, 1))
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m)))


def parts(file):
    found = read_log(file, FORMAT)
    return [tuple(row) for row in found[["at_hour", "at_weekday"]].itertuples(index=False)]


def expected(time):
    return str(time.hour), DAYS[time.weekday()]


def clock(zone, digits):
    """How a time is written: text of ISO 8601 with a fraction of some digits, or Z, or a zone."""
    name = "Z" if zone is timezone.utc else "" if zone is None else None

    def written(time):
        text = time.strftime("%Y-%m-%d %H:%M:%S")
        text += f".{time.microsecond:06}"[: digits + 1] if digits else ""
        local = time.replace(tzinfo=zone)
        return text + (local.isoformat()[-6:] if name is None else name)

    return written


@given(
    times=st.lists(TIMES, min_size=1, max_size=5),
    zone=st.sampled_from([None, timezone.utc]) | ZONES,
    digits=st.sampled_from([0, 3, 6]),
    kind=st.sampled_from(["csv", "jsonl"]),
)
def test_text_has_the_hour_and_weekday_that_python_says(
    tmp_path_factory, times, zone, digits, kind
):
    texts = [clock(zone, digits)(time) for time in times]
    file = tmp_path_factory.mktemp("times") / f"log.{kind}"
    lines = ["at", *texts] if kind == "csv" else [json.dumps({"at": text}) for text in texts]
    file.write_text("\n".join(lines) + "\n")
    utc = [time.replace(tzinfo=zone or timezone.utc).astimezone(timezone.utc) for time in times]
    assert parts(file) == [expected(time) for time in utc]


@pytest.mark.parametrize("kind", ["datetime64[ns]", "datetime64[ns, Asia/Tokyo]", "int64", "date"])
@given(times=st.lists(TIMES, min_size=1, max_size=5))
def test_parquet_does(tmp_path_factory, kind, times):
    file = tmp_path_factory.mktemp("times") / "log.parquet"
    column = pd.Series(times, dtype="datetime64[ns]")
    if kind == "int64":
        column = column.astype("int64") // 10**9
    elif kind == "date":
        column, times = column.dt.date, [datetime(t.year, t.month, t.day) for t in times]
    elif kind != column.dtype:  # the same moments, as clocks there show them
        column = column.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
    pd.DataFrame({"at": column}).to_parquet(file)
    assert parts(file) == [expected(time) for time in times]


def test_a_missing_time_is_a_missing_value(tmp_path):
    (tmp_path / "log.csv").write_text("at,b\n2001-01-31,1\n,2\n")
    assert parts(tmp_path / "log.csv") == [("0", "wednesday"), (None, None)]


@pytest.mark.parametrize(
    "text", ["soon", "2001-02-30", "31/01/2001", "20010131", "2001013114", "1700000000000", "nan"]
)
def test_what_is_no_time_damages_the_row(tmp_path, text):
    for kind, line in (("csv", f"at\n{text}\n"), ("jsonl", json.dumps({"at": text}) + "\n")):
        (tmp_path / f"log.{kind}").write_text(line)
        with pytest.raises(InputError, match=rf"at is '{text}', no time; give 2001-01-31, "):
            parts(tmp_path / f"log.{kind}")


def log(rows, seed=0):
    some = np.random.default_rng(seed)
    start, seconds = datetime(2024, 3, 1), np.sort(some.integers(0, 8 * 86400, rows))
    at = [str(start + timedelta(seconds=int(each))) for each in seconds]
    user, y = some.integers(0, 9, rows), some.integers(0, 2, rows)
    return pd.DataFrame({"y": y, "user": user, "at": at, "row": np.arange(rows)})


def prepared(folder, rows, **more):
    rows.to_csv(folder / "log.csv", index=False)
    given = {"kind": "table", "label": "y", "categorical": ("user",), "continuous": ("row",)}
    given |= {"time": "at", "split": "time", "test_fraction": 0.2, "partition_mb": 0.001}
    return prepare(
        PrepareSettings(files=(folder / "log.csv",), out=folder / "DATA", **given | more)
    )


def test_the_last_rows_by_time_are_the_test_rows_in_any_order_of_the_log(tmp_path, capsys):
    rows = log(400)
    mixed = rows.sample(frac=1, random_state=3)
    mixed.loc[[5, 390], "at"] = None  # they are training rows
    data = prepared(tmp_path, mixed)
    test = pd.concat(map(pd.read_parquet, data.files("test")))
    left = mixed[mixed["at"].notna()].sort_values("at")
    wanted = left.tail(round(398 * 0.2))
    low, high = data.statistics.minimum["row"], data.statistics.maximum["row"]
    found = np.round(test["row"] * (high - low) + low).astype(int)
    assert sorted(found) == sorted(wanted["row"]) and data.rows == {"train": 320, "test": 80}
    assert f"test rows: those from {wanted['at'].min()} on, by at" in capsys.readouterr().out
    assert not data.by_time  # the last training rows are not the latest ones
    assert data.categorical == ("user", "at_hour", "at_weekday")


def test_days_stay_together_and_a_sorted_log_is_by_time_beside_vectors(tmp_path):
    rows = log(400).assign(v="1|2")
    rows["at"] = rows["at"].str[:10]
    data = prepared(tmp_path, rows, test_fraction=0.15, vector=("v",))
    assert data.by_time and data.rows["test"] == (rows["at"] == "2024-03-08").sum()
    again = PreparedData.load(data.path)
    assert again.log_format.time == "at" and again.log_format.vectors == {"v": 2}


def test_equal_times_cannot_split(tmp_path):
    with pytest.raises(InputError, match=r"log\.csv: column 'at': all rows have the same time"):
        prepared(tmp_path, log(40).assign(at="2024-03-01"))


def test_new_rows_and_frames_get_the_same_ids(tmp_path):
    from cowclip_merlin.training import RunSettings, train

    rows = log(300)
    data = prepared(tmp_path, rows)
    settings = RunSettings(model="deepfm", batch_size=64, epochs=1, mlp=(4,))
    train(data.path, settings, out=tmp_path / "RUN")
    scores = cc.score(tmp_path / "RUN", tmp_path / "log.csv")
    frame = rows.assign(at=pd.to_datetime(rows["at"]))
    np.testing.assert_array_equal(cc.score(tmp_path / "RUN", frame), scores)
    like = {"kind": "table", "like": data.path, "files": (tmp_path / "log.csv",)}
    again = prepare(PrepareSettings(out=tmp_path / "LIKE", **like))
    evaluated = cc.training.evaluate_run(tmp_path / "RUN", again.path)
    assert evaluated.auc == pytest.approx(cc.roc_auc(rows["y"], scores))
    columns = cc.triton.export_repository(tmp_path / "RUN", data.path, out=tmp_path / "REPO")
    assert columns["made"]["at_weekday"] == "weekday of at, monday to sunday"
    assert {*columns["made"]} == {"at_hour", "at_weekday"} <= {*columns["categorical"]}
    found = cc.importance(tmp_path / "RUN", frame.assign(y=rows["y"]))
    assert {*found.column} == {*data.categorical, *data.continuous, "at"} - {*columns["made"]}
    # The hour and the weekday move together, as those of another row of the log.
    order = np.random.default_rng((0, 0)).permutation(len(frame))
    moved = cc.score(tmp_path / "RUN", frame.assign(at=frame["at"].to_numpy()[order]))
    lost = cc.roc_auc(rows["y"], scores) - cc.roc_auc(rows["y"], moved)
    assert found.set_index("column").auc_lost["at"] == pytest.approx(lost, abs=1e-6) != 0
