"""examples/flights.py: the published file becomes a log that `cowclip online` reads."""

import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.features_file import load_features

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import flights  # noqa: E402

ROWS = [
    (datetime(2001, 1, 1, 0, 1), 33, 2176, "LAS", "PHL"),
    (datetime(2001, 1, 1, 0, 1), 15, 405, "MCI", "MDW"),
    (datetime(2001, 6, 30, 23, 59), -13, 2345, "LAS", "PHL"),
]


@pytest.fixture
def published(tmp_path):
    """Writes a file of the published form; `change` edits its table."""

    def write(change=lambda table: table, name="flights-3m.parquet"):
        date, delay, distance, origin, destination = zip(*ROWS, strict=True)
        table = pa.table(
            {
                "date": pa.array(date, pa.timestamp("us")),
                "delay": delay,
                "distance": distance,
                "origin": pa.array(origin, pa.large_string()),
                "destination": pa.array(destination, pa.large_string()),
            }
        )
        pq.write_table(change(table), tmp_path / name)
        return tmp_path / name

    return write


def run(file, out, *more):
    return flights.main([str(file), "--out", str(out), *more])


def test_rows_become_events(published, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(flights, "_CHUNK", 2)
    out = tmp_path / "log.parquet"
    assert run(published(), out) == 0
    assert capsys.readouterr().out == f"{out}: 3 rows, 13 categorical columns\n"
    log = pq.read_table(out).to_pylist()
    assert [row["late"] for row in log] == [1, 0, 0]
    assert log[2] == {
        "late": 0, "time": 993_945_540, "origin": "LAS", "destination": "PHL", "hour": "23",
        "weekday": "6", "route": "LAS PHL", "origin_day": "LAS 06-30",
        "destination_day": "PHL 06-30", "origin_hour": "LAS 23", "route_hour": "LAS PHL 23",
        "flight": "LAS PHL 23:59", "origin_day_hour": "LAS 06-30 23",
        "destination_day_hour": "PHL 06-30 23", "route_day": "LAS PHL 06-30", "distance": 2345,
    }  # fmt: skip
    features = load_features(tmp_path / "log.parquet.yaml")
    source = EventLog([out], features, max_bad_fraction=0)
    events = [each for piece in source for each in piece.labels]
    assert events == [1, 0, 0] and len(features.categorical) == 13


def test_the_first_rows_only(published, tmp_path, monkeypatch):
    monkeypatch.setattr(flights, "_CHUNK", 2)
    for rows in (1, 2, 3, 9):
        out = tmp_path / f"{rows}.parquet"
        assert run(published(), out, "--rows", str(rows)) == 0
        assert pq.read_metadata(out).num_rows == min(rows, 3)


def test_another_limit_of_the_delay(published, tmp_path):
    out = tmp_path / "log.parquet"
    assert run(published(), out, "--late", "14") == 0
    assert pq.read_table(out)["late"].to_pylist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.drop_columns(["delay", "origin"]), "no column delay, origin; "),
        (lambda t: t.set_column(0, "date", t["date"].cast(pa.string())), "date is string, "),
        (lambda t: t.set_column(3, "origin", pa.array([1.5, 2, 3])), "origin is double, "),
    ],
)
def test_another_file_is_refused(change, complaint, published, tmp_path, capsys):
    out = tmp_path / "log.parquet"
    assert run(published(change), out) == 2
    error = capsys.readouterr().err
    assert complaint in error and len(error.splitlines()) == 1
    assert not list(tmp_path.glob("*log.parquet*"))


def test_a_missing_or_damaged_file(tmp_path, capsys):
    assert run(tmp_path / "none.parquet", tmp_path / "log.parquet") == 2
    assert "none.parquet: no such file" in capsys.readouterr().err
    (tmp_path / "text.parquet").write_text("date,delay\n")
    assert run(tmp_path / "text.parquet", tmp_path / "log.parquet") == 2
    error = capsys.readouterr().err
    assert "text.parquet: " in error and len(error.splitlines()) == 1


def test_nothing_is_replaced_unasked(published, tmp_path, capsys):
    out, features = tmp_path / "log.parquet", tmp_path / "log.parquet.yaml"
    for present in (out, features):
        present.write_text("mine")
        assert run(published(), out) == 2
        assert f"{present}: already exists" in capsys.readouterr().err
        assert present.read_text() == "mine" and len(list(tmp_path.glob("log*"))) == 1
        present.unlink()
    out.write_text("mine")
    assert run(published(), out, "--overwrite") == 0
    assert pq.read_metadata(out).num_rows == 3


@pytest.mark.parametrize(
    ("out", "more", "complaint"),
    [("log.csv", (), "log.csv: the log is "), ("l.parquet", ("--rows", "0"), "rows")],
)
def test_wrong_options(published, tmp_path, capsys, out, more, complaint):
    assert run(published(), tmp_path / out, *more) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.thorough
def test_the_real_file(tmp_path):
    file = ROOT.parent / "shared/data/flights_3m.parquet"
    if not file.is_file():
        pytest.skip("needs the flights in ../shared/data")
    out = tmp_path / "log.parquet"
    assert run(file, out) == 0
    log = pq.read_table(out)
    assert log.num_rows == 3_000_000
    assert sum(log["late"].to_numpy()) == 599_055
    ids = {name: len(log[name].unique()) for name in flights.CATEGORICAL}
    assert ids["origin"] == 229 and ids["flight"] == 734_104
    assert sum(ids.values()) == 2_293_921
    events = next(iter(EventLog([out], load_features(f"{out}.yaml"), max_bad_fraction=0)))
    assert events.times[0] == 978_307_260
