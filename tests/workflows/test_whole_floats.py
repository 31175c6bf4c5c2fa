"""47.0 is the id 47 from every file, frame, message and request, unless a column keeps its text."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin.cli import main
from cowclip_merlin.online import EventLog, encode_requests, load_features
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.events.values import text_id
from cowclip_merlin.workflows import PrepareSettings, prepare, value_to_id
from cowclip_merlin.workflows.raw.values.value_text import whole_text, whole_texts

TEXTS = ["47", "47.0", "47.00", "-0.0", "0", "007.0", "47.5", "1e3", "9007199254740991.0"]
READ = ["47", "47", "47", "0", "0", "007.0", "47.5", "1e3", "9007199254740991"]
FORMS = st.from_regex(r"-?[0-9]{0,17}\.?0{0,3}", fullmatch=True) | st.text(max_size=4)


@given(number=st.integers(-(2**54), 2**54), zeros=st.integers(1, 3))
def test_whole_floats_below_two_to_53_have_their_digits(number, zeros):
    text = f"{number}.{'0' * zeros}"
    assert whole_text(text) == (str(number) if abs(number) < 2**53 else text)


@given(texts=st.lists(st.none() | FORMS, max_size=9), start=st.integers(0, 3))
def test_a_column_is_read_as_its_texts(texts, start):
    expected = [None if text is None else whole_text(text) for text in texts][start:]
    changed = [text for text, new in zip(texts[start:], expected) if text != new]
    column = pa.array(texts, pa.string())[start:]
    lists = pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column)
    for given_, back in (
        (column, list),
        (pa.chunked_array([column]), list),
        (lists, lambda x: x[0]),
    ):
        found, first = whole_texts(given_)
        assert back(found.to_pylist()) == expected and first == (changed or [""])[0]
    coded, _ = whole_texts(column.dictionary_encode())
    assert coded.to_pylist() == expected
    assert len(set(coded.dictionary.to_pylist())) == len(coded.dictionary)


def table(out, file, **more):
    settings = {"files": [file], "out": out, "kind": "table", "label": "y", "categorical": ("a",)}
    return prepare(PrepareSettings(**(settings | more)))


def csv(path, values, name="a"):
    pd.DataFrame({"y": [i % 2 for i in range(len(values))], name: values}).to_csv(path, index=False)
    return path


def ids_of(data):
    return pd.concat(map(pd.read_parquet, data.files("train") + data.files("test")))["a"].to_list()


def test_texts_of_a_csv_file(tmp_path, capsys):
    data = table(tmp_path / "data", csv(tmp_path / "log.csv", TEXTS * 9))
    assert set(value_to_id(data, "a")) == set(READ)
    assert (
        "\na: 47.0 read as 47, as pandas writes it; --text a keeps text\n"
        in capsys.readouterr().out
    )
    counts = cc.workflows.read_counts(data, "a").slice(3)
    known = data.files("train")
    assert sum(counts["count"].to_pylist()) == sum(pq.read_metadata(f).num_rows for f in known)


def test_a_column_that_keeps_its_text(tmp_path, capsys):
    words = ["--label", "y", "--categorical", "a", "--text", "a"]
    file = csv(tmp_path / "log.csv", TEXTS * 9)
    assert main(["prepare", "table", str(file), "--out", f"{tmp_path}/data", *words]) == 0
    data = cc.workflows.PreparedData.load(tmp_path / "data")
    assert set(value_to_id(data, "a")) == set(TEXTS) and data.log_format.text == ("a",)
    new = table(tmp_path / "new", file, like=data.path, label=None, categorical=())
    assert set(value_to_id(new, "a")) == set(TEXTS)
    assert "read as" not in capsys.readouterr().out
    assert set(cc.workflows.read_log(file, data)["a"]) == set(TEXTS)


def test_every_file_and_frame_gives_the_same_ids(tmp_path):
    values = [None if i % 7 == 3 else float(i % 5) for i in range(70)]
    data = table(tmp_path / "data", csv(tmp_path / "log.csv", values))
    assert sorted(value_to_id(data, "a")) == list("01234")
    rows = pd.read_csv(tmp_path / "log.csv")
    rows.to_parquet(tmp_path / "numbers.parquet")
    texts = pd.read_csv(tmp_path / "log.csv", dtype={"a": str})
    texts.to_parquet(tmp_path / "texts.parquet")
    for name, frame in (("numbers", rows), ("texts", texts)):
        lines = frame.to_json(orient="records", lines=True, double_precision=1)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    expected = [None if x is None else str(int(x)) for x in values]
    for name in ("log.csv", "numbers.parquet", "texts.parquet", "numbers.jsonl", "texts.jsonl"):
        assert cc.workflows.read_log(tmp_path / name, data)["a"].to_list() == expected
        again = table(tmp_path / f"of-{name}", tmp_path / name)
        assert ids_of(again) == ids_of(data)


def test_several_values_per_row_and_shared_tables(tmp_path):
    rows = pd.DataFrame({"y": [0, 1] * 20, "a": ["7", "7.0"] * 20, "b": ["7.0|8", "8.0|"] * 20})
    rows.to_csv(tmp_path / "log.csv", index=False)
    more = {"categorical": ("a", "b"), "multi": ("b",), "share_embedding": ("b=a",)}
    data = table(tmp_path / "data", tmp_path / "log.csv", **more)
    assert sorted(value_to_id(data, "a")) == ["7", "8"]
    kept = table(tmp_path / "kept", tmp_path / "log.csv", **more, text=("a",))
    assert sorted(value_to_id(kept, "b")) == ["7", "7.0", "8", "8.0"]


def test_events_messages_and_requests(tmp_path):
    (tmp_path / "f.yaml").write_text(
        "label: y\ntime: t\nkey: k\ncategorical: [a, {name: b, text: true}]\n"
    )
    features = load_features(tmp_path / "f.yaml")
    row = {"y": 1, "t": 5, "k": 9.0, "a": 47.0, "b": "47.0"}
    pd.DataFrame([row]).to_csv(tmp_path / "log.csv", index=False)
    pd.DataFrame([row]).to_parquet(tmp_path / "log.parquet")
    found, damage = encode_messages([json.dumps(row).encode()], features)
    assert not damage.reasons
    logs = [next(iter(EventLog([tmp_path / n], features))) for n in ("log.csv", "log.parquet")]
    kept = logs[0].ids.values[0, 1]
    assert kept not in (47, text_id("47.0"))
    for events in (found, *logs):
        assert events.keys.tolist() == [9] and events.ids.values.tolist() == [[47, kept]]
    for value in (47, "47", "47.0", np.float32(47)):
        assert encode_requests([{"a": value, "b": "x"}], features).events.ids.values[0, 0] == 47
