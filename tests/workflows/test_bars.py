"""The data sets of BARS: `prepare` against plain loops, and against FuxiCTR where it is."""

import json
import math
import os
import subprocess
from collections import Counter
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from benchmark_files import AVAZU, FILES, IDS, LABELS, NUMBERS, write
from hypothesis import given
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import RunSettings, train
from cowclip_merlin.workflows import PrepareSettings, id_to_value, prepare, read_log

PYTHON = os.environ.get("OTHERS_PYTHON")
MISSING, RARE = 1, 2
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
LEAST = {"criteo_x1": 1, "criteo_x4": 10, "avazu_x1": 1, "avazu_x4": 2}


def bucket(text):
    x = int(text or 0)
    return str(math.floor(math.log(x) ** 2) if x > 2 else x)


def day_parts(text):
    day = date(2000 + int(text[:2]), int(text[2:4]), int(text[4:6])).weekday()
    return str(int(text[6:])), WEEKDAYS[day], str(int(day >= 5))


def values_of(kind, rows):
    """Id column -> the text that gets an id, "" if it is missing, for each row."""
    if kind == "criteo_x4":
        return {c: [bucket(x) for x in rows[c]] for c in NUMBERS} | {c: [*rows[c]] for c in IDS}
    if kind == "avazu_x4":
        hour, weekday, weekend = zip(*map(day_parts, rows["hour"]))
        ids = {c: [*rows[c]] for c in AVAZU}
        return {"hour": [*hour]} | ids | {"weekday": [*weekday], "weekend": [*weekend]}
    return {c: [*rows[c]] for c in rows if c != LABELS[kind] and c not in NUMBERS}


def ids_of(train, values, least):
    """The id of each value: by frequency in the training rows, then by the text."""
    counts = Counter(filter(None, train))
    kept = sorted((x for x in counts if counts[x] >= least), key=lambda x: (-counts[x], x))
    known = {value: 3 + place for place, value in enumerate(kept)} | {"": MISSING}
    return [known.get(value, RARE) for value in values]


@pytest.fixture(scope="module", params=list(LABELS))
def benchmark(request, tmp_path_factory):
    """Kind, folder of the files, their rows by split, and the prepared folder."""
    folder = tmp_path_factory.mktemp(request.param)
    rows = write(request.param, folder / "files")
    files = {"files": (folder / "files",), "out": folder / "DATA", "partition_mb": 0.01}
    return request.param, folder, rows, prepare(PrepareSettings(kind=request.param, **files))


def parts_of(data):
    splits = [split for split in FILES if data.rows.get(split)]
    return {x: pd.concat(map(pd.read_parquet, data.files(x)), ignore_index=True) for x in splits}


def test_ids_are_those_of_a_plain_loop(benchmark):
    kind, _, rows, data = benchmark
    values = {split: values_of(kind, rows[split]) for split in FILES}
    assert data.categorical == tuple(values["train"])
    for split, found in parts_of(data).items():
        assert found[LABELS[kind]].tolist() == rows[split][LABELS[kind]].astype(int).tolist()
        for name in data.categorical:
            expected = ids_of(values["train"][name], values[split][name], LEAST[kind])
            assert found[name].tolist() == expected, (split, name)
    if LEAST[kind] > 1:
        assert any((part == RARE).to_numpy().any() for part in parts_of(data).values())


def test_numbers_of_criteo_x1_are_as_they_are(benchmark):
    kind, _, rows, data = benchmark
    assert dict(data.log_format.vectors) == dict.fromkeys(NUMBERS * (kind == "criteo_x1"), 1)
    for name in data.log_format.vectors:
        found = np.concatenate(parts_of(data)["test"][name].to_list())
        np.testing.assert_array_equal(found, rows["test"][name].astype(np.float32))


def test_new_rows_get_the_same_ids(benchmark):
    kind, folder, _, data = benchmark
    files = {"files": (folder / "files" / "test.csv",), "like": data.path}
    again = prepare(PrepareSettings(kind=kind, out=folder / "LIKE", **files))
    pd.testing.assert_frame_equal(parts_of(again)["test"], parts_of(data)["test"])


@pytest.mark.runs
def test_raw_rows_score_as_the_test_rows_do(benchmark, tmp_path):
    _, folder, rows, data = benchmark
    settings = RunSettings(model="dcn", batch_size=200, epochs=1, mlp=(4,), embedding_dim=2)
    train(data.path, settings, out=tmp_path / "RUN", device="cpu")
    scores = cc.score(tmp_path / "RUN", folder / "files/test.csv")
    scored = cc.training.evaluate_run(tmp_path / "RUN", data.path, device="cpu")
    labels = rows["test"][data.label].astype(int)
    assert cc.roc_auc(labels, scores) == pytest.approx(scored.auc)


@pytest.mark.runs
def test_an_exported_model_says_which_values_it_takes(benchmark, tmp_path, capsys):
    kind, folder, rows, data = benchmark
    settings = RunSettings(model="dcn", batch_size=400, epochs=1, mlp=(2,), embedding_dim=1)
    train(data.path, settings, out=tmp_path / "RUN", device="cpu")
    assert main(["export", str(tmp_path / "RUN"), "--out", str(tmp_path / "MODEL")]) == 0
    printed, test = capsys.readouterr().out, rows["test"]
    made = json.loads((tmp_path / "MODEL/assets.extra/columns.json").read_text()).get("made", {})
    wanted = {"criteo_x4": [*NUMBERS], "avazu_x4": ["hour", "weekday", "weekend"]}
    assert [*made] == wanted.get(kind, []) and printed.count("as prepare does") == len(
        {*made.values()}
    )
    assert "make hour as prepare does: hour of hour, 0 to 23\n" in printed or kind != "avazu_x4"
    inputs = {name: tf.constant(values) for name, values in values_of(kind, test).items()}
    for name in data.log_format.vectors:
        inputs[name] = tf.constant(test[[name]].to_numpy(np.float32))
    found = tf.saved_model.load(str(tmp_path / "MODEL")).signatures["serving_default"](**inputs)
    scores = cc.score(tmp_path / "RUN", folder / "files/test.csv")
    np.testing.assert_allclose(found["probability"], scores, atol=1e-6)


def test_triton_tells_which_columns_are_made(benchmark, tmp_path):
    kind, _, _, data = benchmark
    settings = RunSettings(model="deepfm", batch_size=400, epochs=1, mlp=(2,), embedding_dim=1)
    train(data.path, settings, out=tmp_path / "RUN", device="cpu")
    found = cc.triton.export_repository(tmp_path / "RUN", data.path, out=tmp_path / "REPO")
    wanted = {"criteo_x4": [*NUMBERS], "avazu_x4": ["hour", "weekday", "weekend"]}
    assert [*found.get("made", {})] == wanted.get(kind, [])
    assert {*wanted.get(kind, [])} <= {*found["categorical"]}


@given(st.lists(st.none() | st.integers(-9, 2**40), min_size=1, max_size=9), st.sampled_from("cj"))
def test_buckets_are_those_of_a_plain_loop(tmp_path_factory, numbers, form):
    from cowclip_merlin.workflows import LogFormat

    columns = LogFormat(kind="table", label="", categorical=("x",), buckets=("x",))
    file = tmp_path_factory.mktemp("buckets") / ("log.csv" if form == "c" else "log.jsonl")
    if form == "c":
        lines = ["x,z", *(f"{'' if x is None else x},1" for x in numbers)]
    else:
        lines = [json.dumps({"x": x}) for x in numbers]
    file.write_text("\n".join(lines) + "\n")
    assert read_log(file, columns)["x"].tolist() == [bucket(x) for x in numbers]


@pytest.mark.parametrize(
    ("kind", "column", "value", "says"),
    [
        ("criteo_x4", "I3", "1.5", "I3 is '1.5', not a whole number"),
        ("criteo_x4", "I3", "0x1f", "I3 is '0x1f', not a whole number"),
        ("criteo_x1", "I3", "high", r"I3\[0\] is 'high', not a finite"),
        ("avazu_x4", "hour", "2014102101", "hour is '2014102101', no hour; give .* 14102122"),
        ("avazu_x4", "hour", "14102124", "hour is '14102124', no hour"),
        ("avazu_x4", "hour", "14022901", "hour is '14022901', no hour"),
    ],
)  # fmt: skip
def test_damaged_values_are_told(tmp_path, kind, column, value, says):
    rows = write(kind, tmp_path / "files")["train"]
    rows.loc[7, column] = value
    rows.to_csv(tmp_path / "files" / "train.csv", index=False)
    files = {"files": (tmp_path / "files",), "out": tmp_path / "DATA"}
    with pytest.raises(InputError, match=rf"train\.csv:9: {says}"):
        prepare(PrepareSettings(kind=kind, max_bad_fraction=0, **files))
    assert not (tmp_path / "DATA").exists()


def test_other_thresholds_can_be_given(tmp_path):
    from cowclip_merlin.workflows import Recipe

    rows = write("criteo_x4", tmp_path / "files")
    names = zip(("files", "validation", "test"), FILES.values())
    files = {name: (tmp_path / "files" / f"{file}.csv",) for name, file in names}
    given = {"out": tmp_path / "DATA", "recipe": Recipe(freq_threshold=2)}
    data = prepare(PrepareSettings(kind="criteo_x4", **files, **given))
    values = values_of("criteo_x4", rows["train"])["C1"]
    assert parts_of(data)["train"]["C1"].tolist() == ids_of(values, values, 2)


@pytest.mark.system
@pytest.mark.skipif(not PYTHON, reason="OTHERS_PYTHON is not set: see benchmarks/defaults.py")
def test_fuxictr_has_the_same_vocabularies_and_ids(benchmark):
    """FuxiCTR gives missing and rare values, and a bucketed 0, one id; here they have their own."""
    kind, folder, _, data = benchmark
    script, out = Path(__file__).with_name("fuxictr_ids.py"), folder / "fuxictr.json"
    subprocess.run([PYTHON, script, kind, folder / "files", out], check=True, capture_output=True)
    theirs = json.loads(out.read_text())
    assert list(theirs["vocabularies"]) == [*data.categorical]
    parts = parts_of(data)
    for name in data.categorical:
        vocabulary = theirs["vocabularies"][name]
        texts = [shown(kind, name, value) for value in id_to_value(data, name)]
        alone = {MISSING, RARE}
        alone |= {texts.index("0")} if name in NUMBERS and "0" in texts else set()
        known = {text for place, text in enumerate(texts[3:], 3) if place not in alone}
        own = {text.removesuffix(".0"): place for text, place in vocabulary.items()}
        assert known == own.keys() - {"__PAD__", "__OOV__"}, name
        for split, file in FILES.items():
            expected = [own["__OOV__"] if x in alone else own[texts[x]] for x in parts[split][name]]
            assert theirs["rows"][file][name] == expected, (split, name)
    for name in data.log_format.vectors:
        ours = np.concatenate(parts["train"][name].to_list())
        np.testing.assert_array_equal(ours, np.float32(theirs["rows"]["train"][name]))


def shown(kind, name, value):
    """A value as FuxiCTR has it: days of the week are numbers from Sunday on."""
    if kind == "avazu_x4" and name == "weekday" and value is not None:
        return str((WEEKDAYS.index(value) + 1) % 7)
    return value
