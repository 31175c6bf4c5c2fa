"""Events of files: times, damaged rows, numbers of a prepared folder; real logs."""

import gzip
import time
from datetime import datetime, timezone

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import EventLog, load_features
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.workflows import PreparedData, Recipe

SMALL = "label: y\ntime: t\ncategorical: [a]\ncontinuous: [{name: x, transform: none}]\n"
HEADER = "y,t,a,x\n"


@pytest.fixture
def read(features_file, tmp_path):
    """Reads a log of this text: the log, and its events in one piece each."""

    def make(text, name="log.csv", features=SMALL, **options):
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        log = EventLog([tmp_path / name], features_file(features), **options)
        return log, list(log)

    return make


def joined(pieces, name):
    column = getattr(Events.concatenate(pieces), name)
    return (column.values if name == "ids" else column).tolist()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("978307260", 978_307_260),
        ("9.783e8", 978_300_000),
        (" 978307260.99 ", 978_307_260),
        ("2001-01-01", 978_307_200),
        ("2001-01-01 00:01", 978_307_260),
        ("2001-01-01 00:01:00", 978_307_260),
        ("2001-01-01T00:01:00.999999999", 978_307_260),
        ("2001-01-01T00:01:00Z", 978_307_260),
        ("2001-01-01 02:01:00.5+02:00", 978_307_260),
        ("1970-01-01", 0),
        ("4294967295", 2**32 - 1),
    ],
)
def test_forms_of_time(read, text, seconds):
    assert joined(read(HEADER + f"1,{text},a,1\n0,{text},a,1\n")[1], "times") == [seconds] * 2


def test_times_in_a_format_of_their_own(read):
    features = "label: y\ntime: {name: hour, format: '%y%m%d%H'}\ncategorical: [hour]\n"
    text = "y,hour\n1,14102100\n0,14102100\n1,2014-10-21\n0,\n1,14102101\n"
    log, pieces = read(text, features=features, max_bad_fraction=0.5)
    assert joined(pieces, "times") == [1413849600, 1413849600, 1413853200]
    assert joined(pieces, "ids") == [[14102100], [14102100], [14102101]]
    reasons = ["hour is '2014-10-21'", "hour is missing"]
    assert [bad.reason.partition(",")[0] for bad in log.damaged.first] == reasons
    features = "label: y\ntime: {name: t, format: '%Y-%m-%d %H %z'}\ncategorical: [a]\n"
    [events] = read("y,t,a\n1,1970-01-01 03 +0200,a\n", features=features)[1]
    assert events.times.tolist() == [3600]


def test_dates_and_seconds_in_one_column(read):
    log, pieces = read(
        HEADER + "1,60,a,1\n1,1970-01-01 00:02,a,1\n1,?,a,1\n1,1970-01-01T00:03Z,a,1\n",
        max_bad_fraction=0.5,
    )
    assert joined(pieces, "times") == [60, 120, 180] and log.damaged.first[0].line == 4


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,5,a", "3 columns instead of 4"),
        ("2,5,a,1", "y is '2', "),
        (",5,a,1", "y is '', "),
        ("1,5,a,tall", "x is 'tall', "),
        ("1,5,a,inf", "x is 'inf', not a finite"),
        ("1,5,a,1e308", "x is '1e308', too large"),
        ("1,,a,1", "t is missing"),
        ("1,soon,a,1", "t is 'soon', neither"),
        ("1,2001-02-30,a,1", "t is '2001-02-30', neither"),
        ("1,nan,a,1", "t is 'nan', neither"),
        ("1,-0.5,a,1", "t is '-0.5', before 1970"),
        ("1,1969-12-31 23:59:59.5,a,1", "before 1970"),
        ("1,1700000000000,a,1", "t is '1700000000000', after 2106"),
    ],
)
def test_damaged_rows_are_set_aside_with_line_and_reason(read, tmp_path, row, reason):
    text = HEADER + f"0,1,a,1\n1,2,b,2\n{row}\n0,9,c,3\n"
    log, pieces = read(text, max_bad_fraction=0.5, quarantine=tmp_path / "q/lines.tsv")
    assert joined(pieces, "times") == [1, 2, 9]
    assert (log.rows, log.events, log.damaged.count) == (4, 3, 1)
    [bad] = log.damaged.first
    assert (bad.line, bad.text.decode()) == (4, row) and reason in bad.reason
    kept = (tmp_path / "q/lines.tsv").read_text()
    assert kept == f"{tmp_path / 'log.csv'}\t4\t{bad.reason}\t{row}\n"


def test_damaged_rows_are_written_once_however_often_the_log_is_read(read, tmp_path):
    kept = tmp_path / "lines.tsv"
    rows = [f"1,{i},a,{'?' if i % 3 == 0 else 1}\n" for i in range(30)]
    log, _ = read(HEADER + "".join(rows), max_bad_fraction=1, quarantine=kept, block_bytes=50)
    once = kept.read_text()
    assert once.count("\n") == log.damaged.count == 10
    list(log)
    assert kept.read_text() == once and log.damaged.count == 10


def test_a_pass_that_stopped_is_continued_in_the_quarantine_file(features_file, tmp_path):
    kept, file = tmp_path / "lines.tsv", tmp_path / "log.csv"
    file.write_text(HEADER + "".join(f"1,{i},a,{'?' if i % 2 else 1}\n" for i in range(30)))
    log = EventLog(
        [file], features_file(SMALL), max_bad_fraction=1, quarantine=kept, block_bytes=50
    )
    next(iter(log))
    assert 0 < kept.read_text().count("\n") < 15
    list(log)
    lines = kept.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 15


def test_many_damaged_rows_of_one_piece_are_read_in_a_moment(read):
    """Each costs its own line, not the whole piece: 4,000 of 100,000 rows took 20 s before."""
    rows = "".join(f"1,{i},a,{'?' if i % 25 == 0 else 1}\n" for i in range(100_000))
    start = time.process_time()
    log, _ = read(HEADER + rows, max_bad_fraction=1)
    assert log.damaged.count == 4000 and log.damaged.first[1].text == b"1,25,a,?"
    assert time.process_time() - start < 5


def test_every_row_is_an_event_or_damaged(read):
    draw = np.random.default_rng(1)
    rows = [f"{i % 3},{i if i % 5 else ''},a,{'x' if i % 7 == 0 else i}" for i in range(500)]
    rows += ["", "\x00", '"', "1,2"]
    text = HEADER + "".join(f"{rows[i]}\n" for i in sorted(draw.permutation(504)))
    log, pieces = read(text, max_bad_fraction=1, block_bytes=300)
    good = [i for i in range(500) if i % 3 < 2 and i % 5 and i % 7]
    assert joined(pieces, "times") == good and log.damaged.count == 504 - len(good)


def test_too_many_damaged_rows_end_it(read):
    with pytest.raises(InputError, match=r"1 or more of 3 rows .* 0.10%; .*:3:"):
        read(HEADER + "1,1,a,1\n1,1,a,?\n1,1,a,1\n")
    rows = "".join(f"1,{i},a,{'?' if i == 1500 else 1}\n" for i in range(3000))
    assert len(read(HEADER + rows)[1]) == 1  # one in 3000 is below 0.1%


def test_times_that_go_backwards_name_the_line(read):
    with pytest.raises(InputError) as error:
        read(HEADER + "1,100,a,1\n1,200,a,1\n1,?,a,1\n1,199,a,1\n", max_bad_fraction=0.5)
    said = str(error.value).partition("log.csv: ")[2]
    assert said.startswith("line 5: t is 1970-01-01 00:03:19 UTC, ")
    assert " 1970-01-01 00:03:20 UTC of line 3; " in said


def test_times_of_the_next_piece_and_file_do_not_go_backwards(read, tmp_path):
    rows = "".join(f"1,{i},a,1\n" for i in range(50))
    with pytest.raises(InputError, match=r"line 52: t is .*00:00:07.* of .*log.csv, line 51"):
        read(HEADER + rows + "1,7,a,1\n", block_bytes=10)
    log, _ = read(HEADER + rows)
    (tmp_path / "next.csv").write_text(HEADER + "1,48,a,1\n")
    log.files.append(tmp_path / "next.csv")
    with pytest.raises(InputError, match=r"next.csv: line 2: .* of .*log.csv, line 51"):
        list(log)


def test_a_file_without_a_header(read):
    features = SMALL + "columns: [y, ignored, t, a, x]\n"
    log, pieces = read("1\tz\t5\tu\t2\n0\tz\tx\tu\t2\n", "log.txt", features, max_bad_fraction=0.5)
    assert joined(pieces, "times") == [5] and log.damaged.first[0].line == 2


UTC = timezone.utc
MIDNIGHT = 978_307_200
NOON = [datetime(2001, 1, 1, 12, tzinfo=UTC), datetime(2001, 1, 1, 12, 0, 1, tzinfo=UTC)]


@pytest.mark.parametrize(
    "times",
    [
        pa.array([x.replace(tzinfo=None) for x in NOON], pa.timestamp("us")),
        pa.array(NOON, pa.timestamp("ns", tz="UTC")),
        pa.array(NOON, pa.timestamp("s", tz="America/New_York")),
        pa.array([x.timestamp() for x in NOON]),
        pa.array([int(x.timestamp()) for x in NOON]),
        pa.array([x.isoformat() for x in NOON]),
        pa.array([x.date() for x in NOON]),
    ],
    ids=lambda x: str(x.type),
)
def test_times_of_parquet(features_file, tmp_path, times):
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"y": [0, 1], "t": times, "a": [1, 2], "x": [0.5, None]}), file)
    found = joined(list(EventLog([file], features_file(SMALL))), "times")
    days = pa.types.is_date(times.type)
    assert found == ([MIDNIGHT] * 2 if days else [MIDNIGHT + 43_200, MIDNIGHT + 43_201])


def test_numbers_are_those_of_a_prepared_folder(data, log, tmp_path):
    """With `prepared`, numbers equal those that `prepare` wrote, in every row."""
    names = [f"I{i}" for i in range(1, 14)]
    columns = ["label", *names, *(f"C{i}" for i in range(1, 27)), "t"]
    timed = tmp_path / "timed.txt"
    lines = log.read_text().splitlines()
    timed.write_text("".join(f"{line}\t{i}\n" for i, line in enumerate(lines)))
    listed = f"[{', '.join(columns)}]"
    text = f"label: label\ntime: t\nprepared: {data}\ncontinuous: [{', '.join(names)}]\n"
    (tmp_path / "f.yaml").write_text(text + f"columns: {listed}\n")
    pieces = list(EventLog([timed], load_features(tmp_path / "f.yaml")))
    found = np.concatenate([piece.numbers for piece in pieces])
    folder = PreparedData.load(data)
    tables = [pq.read_table(f, columns=names) for s in ("train", "test") for f in folder.files(s)]
    wanted = np.stack(pa.concat_tables(tables).to_pandas()[names].to_numpy())
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    order = [np.lexsort(x.T) for x in (found, wanted)]  # prepare's rows are split at random
    np.testing.assert_array_equal(found[order[0]], wanted[order[1]])


def test_the_logarithm_of_a_prepared_folder(prepared, tmp_path):
    """Negative and missing values, a column of one value, and one of zeros only."""
    rows = [(i % 2, i, "a", "b", (i - 40) * 1.7 if i % 9 else "", 5, 0) for i in range(200)]
    text = "y,t,a,b,x,same,zero\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    names = ("x", "same", "zero")
    data = prepared(text, continuous=names, recipe=Recipe(log=True))
    features = f"label: y\ntime: t\nprepared: {data.path}\ncontinuous: [{', '.join(names)}]\n"
    (tmp_path / "f.yaml").write_text(features)
    [events] = EventLog([tmp_path / "t.csv"], load_features(tmp_path / "f.yaml"))
    tables = [pq.read_table(f) for s in ("train", "test") for f in data.files(s)]
    wanted = pa.concat_tables(tables).to_pandas()[list(names)].to_numpy()
    assert set(events.numbers[:, 1]) == {0.5} and len(set(events.numbers[:, 0])) > 100
    np.testing.assert_array_equal(np.sort(events.numbers, axis=0), np.sort(wanted, axis=0))


def test_a_prepared_folder_gives_its_own_columns_only(prepared, features_file):
    data = prepared("y,a,b,x\n" + "0,a,b,1\n1,a,b,2\n" * 20)
    begin = f"label: y\ntime: t\nprepared: {data.path}\n"
    with pytest.raises(InputError, match=r"line 4: 'z': .*: no continuous column 'z'"):
        features_file(begin + "continuous: [z]\n")
    with pytest.raises(InputError, match=r"line 4: 'x': .*the transform"):
        features_file(begin + "continuous: [{name: x, transform: none}]\n")


def test_avazu(real, features_file):
    features = features_file(
        "label: click\ntime: {name: hour, format: '%y%m%d%H'}\nkey: id\n"
        "categorical: [hour, C1, site_id, device_ip]\n"
    )
    log = EventLog([real / "avazu_9k.csv.gz"], features, max_bad_fraction=0)
    pieces = list(log)
    assert log.events == 8999
    keys = np.concatenate([piece.keys for piece in pieces])
    assert len(np.unique(keys)) == 8999  # numbers beyond 64 bits are hashed
    assert {int(t) for piece in pieces for t in piece.times} == {1413849600}  # the first hour


@pytest.mark.thorough
def test_flights(real, features_file):
    """Few delays are 0 or 1 minutes; all other rows are set aside."""
    features = features_file("label: delay\ntime: date\ncategorical: [origin, destination]\n")
    log = EventLog([real / "flights_3m.parquet"], features, max_bad_fraction=1)
    last = 0
    for events, _ in zip(log, range(20)):
        assert last <= events.times[0] and (np.diff(events.times) >= 0).all()
        last = events.times[-1]
    assert last > 978_307_260 and log.damaged.count > log.events > 0
    assert log.damaged.first[0].reason == "delay is 33, neither 0 nor 1"
