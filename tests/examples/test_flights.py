"""examples/flights.py: the published file becomes a log that `cowclip online` reads."""

import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.features import load_features

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
    """A file of the published form."""
    date, delay, distance, origin, destination = zip(*ROWS, strict=True)
    columns = {"date": pa.array(date, pa.timestamp("us")), "delay": delay, "distance": distance}
    for name, values in (("origin", origin), ("destination", destination)):
        columns[name] = pa.array(values, pa.large_string())
    pq.write_table(pa.table(columns), tmp_path / "flights-3m.parquet")
    return tmp_path / "flights-3m.parquet"


def run(file, out, *more):
    return flights.main([str(file), "--out", str(out), *more])


def test_rows_become_events(published, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(flights, "_CHUNK", 2)
    out = tmp_path / "log.parquet"
    assert run(published, out) == 0
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
        assert run(published, out, "--rows", str(rows)) == 0
        assert pq.read_metadata(out).num_rows == min(rows, 3)


def test_another_limit_of_the_delay(published, tmp_path):
    out = tmp_path / "log.parquet"
    out.write_text("mine")
    assert run(published, out, "--late", "14", "--overwrite") == 0
    assert pq.read_table(out)["late"].to_pylist() == [1, 1, 0]


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
