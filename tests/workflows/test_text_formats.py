"""Text logs in the forms that users have: compressed, with any separator, without a header."""

import gzip
import json
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pytest

from cowclip_merlin import InputError
from cowclip_merlin.cli import main
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.workflows import LogFormat, PreparedData, read_log

FORMAT = LogFormat(kind="table", label="y", categorical=("a", "b"), continuous=("x",))
ROWS = [[i % 2, f"u{i % 5}", f"v{i % 3}", i] for i in range(40)]
OPTIONS = ["--label", "y", "--categorical", "a,b", "--continuous", "x"]


def text(separator=",", header=True, rows=ROWS):
    lines = [["y", "a", "b", "x"]] * header + rows
    return "".join(separator.join(map(str, line)) + "\n" for line in lines).encode()


def pack(kind, content):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, kind) as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


KINDS = [("gzip", ".gz"), ("bz2", ".bz2"), ("zstd", ".zst"), ("lz4", ".lz4")]


@pytest.mark.parametrize(("kind", "suffix"), KINDS)
@pytest.mark.parametrize("named", [True, False])
def test_compressed_text_is_that_text(tmp_path, kind, suffix, named):
    """The first bytes decide, and more streams may follow the first."""
    (tmp_path / "log.tsv").write_bytes(text("\t"))
    file = tmp_path / (f"packed.tsv{suffix}" if named else "packed.tsv")
    half = len(text("\t")) // 2
    file.write_bytes(pack(kind, text("\t")[:half]) + pack(kind, text("\t")[half:]))
    whole = read_log(tmp_path / "log.tsv", FORMAT, labels=True)
    assert read_log(file, FORMAT, labels=True).equals(whole) and len(whole) == len(ROWS)


@pytest.mark.parametrize(("kind", "suffix"), KINDS)
def test_a_damaged_compressed_file_is_refused(tmp_path, kind, suffix):
    file = tmp_path / f"log.csv{suffix}"
    for content in (pack(kind, text())[:-9], text()):  # cut off; not compressed at all
        file.write_bytes(content)
        with pytest.raises(InputError, match=rf"log\.csv\{suffix}: damaged {kind} file"):
            read_log(file, FORMAT)


@pytest.mark.parametrize(("kind", "suffix"), KINDS)
def test_a_log_of_events_may_be_compressed(tmp_path, kind, suffix):
    features = tmp_path / "features.yaml"
    features.write_text("label: y\ntime: x\ncategorical: [a]\n")
    (tmp_path / "log.csv").write_bytes(text())
    (tmp_path / f"log.csv{suffix}").write_bytes(pack(kind, text()))
    plain, packed = (
        list(EventLog([tmp_path / name], load_features(features)))
        for name in ("log.csv", f"log.csv{suffix}")
    )
    ids = [parts[0].ids.values.tolist() for parts in (packed, plain)]
    assert ids[0] == ids[1] and len(packed[0].labels) == len(ROWS)


def prepare(out, *files, options=OPTIONS):
    return main(["prepare", "table", *map(str, files), "--out", str(out), *map(str, options)])


def ids(folder):
    """The rows of both splits, as text."""
    data = PreparedData.load(folder)
    files = [file for split in ("train", "test") for file in data.files(split)]
    return pd.concat(map(pd.read_parquet, files), ignore_index=True)


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """A folder that was prepared from a CSV file with a header."""
    path = tmp_path_factory.mktemp("usual")
    (path / "log.csv").write_bytes(text())
    assert prepare(path / "DATA", path / "log.csv") == 0
    return path / "DATA"


def test_any_separator_and_no_header(tmp_path, usual):
    """The folder keeps both options, for `--like` and for new files without labels."""
    file, new = tmp_path / "log.txt", tmp_path / "new.dat"
    file.write_bytes(text(";", header=False))
    options = [*OPTIONS, "--separator", ";", "--columns", "y,a,b,x"]
    assert prepare(tmp_path / "DATA", file, options=options) == 0
    assert ids(tmp_path / "DATA").equals(ids(usual))
    assert prepare(tmp_path / "NEW", file, options=["--like", tmp_path / "DATA"]) == 0
    assert len(ids(tmp_path / "NEW")) == len(ROWS)
    new.write_bytes(text(";", header=False, rows=[row[1:] for row in ROWS]))
    data = PreparedData.load(tmp_path / "DATA")
    frame = read_log(new, data)
    assert frame.equals(read_log(file, data)) and frame["a"].tolist() == [row[1] for row in ROWS]


def test_the_label_need_not_come_first(tmp_path):
    given = {"file_columns": ("a", "y", "b", "x"), "header": False}
    log_format = replace(FORMAT, **given)
    rows = [[a, b, x] for _, a, b, x in ROWS]
    (tmp_path / "new.csv").write_bytes(text(header=False, rows=rows))
    frame = read_log(tmp_path / "new.csv", log_format)
    assert frame[["a", "b", "x"]].to_numpy().tolist() == rows


def test_quoted_cells_may_hold_any_separator(tmp_path):
    (tmp_path / "log.csv").write_bytes(b'y|a|b|x\n1|"p|q"|v|2\n')
    log_format = replace(FORMAT, separator="|")
    assert read_log(tmp_path / "log.csv", log_format)["a"].tolist() == ["p|q"]


def test_files_of_different_separators_in_one_call(tmp_path, usual):
    (tmp_path / "a.csv").write_bytes(text(rows=ROWS[:25]))
    (tmp_path / "c.tsv.gz").write_bytes(gzip.compress(text("\t", rows=ROWS[25:])))
    assert prepare(tmp_path / "DATA", tmp_path / "a.csv", tmp_path / "c.tsv.gz") == 0
    assert ids(tmp_path / "DATA").equals(ids(usual))


def test_a_folder_without_a_value_is_damaged(tmp_path, usual):
    value = json.loads((usual / "dataset.json").read_text())
    assert not {"separator", "columns"} & set(value["settings"])
    del value["layout"]["separator_given"]
    (tmp_path / "dataset.json").write_text(json.dumps(value))
    with pytest.raises(InputError, match=r"\(separator_given is missing\); prepare again"):
        PreparedData.load(tmp_path)
