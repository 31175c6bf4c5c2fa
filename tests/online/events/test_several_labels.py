"""Several labels of an event: how messages and files are read."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stream_labels import FEATURES, TEXT, write_log

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.events.raw_events import RawLog
from cowclip_merlin.online.producing.messages import EventMessages


def message(**more):
    row = {"user": 1, "item": 2, "price": 0.5, "time": 1000, "key": "k"}
    return json.dumps(row | {"click": 1, "buy": 0, "sec": 2.5} | more).encode()


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ({}, [1, 0, 2.5]),
        ({"click": "Yes", "buy": True, "sec": -3}, [1, 1, -3]),
        ({"click": 0.0, "buy": None, "sec": " 1e3 "}, [0, None, 1000]),
        ({"click": None, "buy": "", "sec": 7}, [None, None, 7]),
        ({"click": None, "sec": None}, [None, 0, None]),
    ],
)
def test_labels_of_a_message(given, labels):
    events, damage = encode_messages([message(**given), message()], FEATURES)
    assert not damage.reasons and events.labels.dtype == np.float32
    wanted = [[np.nan if x is None else x for x in labels], [1, 0, 2.5]]
    np.testing.assert_array_equal(events.labels, np.array(wanted, np.float32))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"click": None, "buy": None, "sec": None}, "no label: click, buy, sec are missing"),
        ({"click": 2}, "click is '2', neither 0 nor 1; write 1, true or yes for a click"),
        ({"buy": "maybe"}, "buy is 'maybe', neither 0 nor 1"),
        ({"buy": [1]}, "buy is [1] (list); give a number"),
        ({"sec": True}, "sec is 'true', no label of a regression; give a finite number"),
        ({"sec": "long"}, "sec is 'long', no label of a regression"),
        ({"sec": float("nan")}, "sec is 'nan', no label of a regression"),
        ({"sec": 1e39}, "sec is '1e+39', no label of a regression"),
        ({"sec": 10**400}, "sec has hundreds of digits"),
        ({"sec": "1_000"}, "labels {'click': '1', 'buy': '0', 'sec': '1_000'} are no numbers"),
        ({"cowclip_sample_rate": 0.5}, "cowclip_sample_rate is 0.5, but there are several labels"),
    ],
)
def test_a_message_with_a_wrong_label_is_damaged(wrong, reason):
    events, damage = encode_messages([message(), message(**wrong), message(sec=None)], FEATURES)
    assert list(damage.reasons) == [1] and damage.reasons[1].startswith(reason)
    np.testing.assert_array_equal(events.labels[[0, 2]], [[1, 0, 2.5], [1, 0, np.nan]])
    row = {name: x for name, x in json.loads(message()).items() if name != "buy"}
    _, damage = encode_messages([json.dumps(row).encode()], FEATURES)
    assert damage.reasons == {0: "no 'buy'; give null for a missing value"}


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_log()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_log_of_files_and_its_messages_have_the_same_labels(log, features_file, kind):
    assert features_file(TEXT) == FEATURES
    wanted = log[["click", "buy", "sec"]].to_numpy(np.float32)
    events = [piece.labels for piece in EventLog([f"log.{kind}"], FEATURES)]
    np.testing.assert_array_equal(np.concatenate(events), wanted)
    messages = EventMessages(FEATURES, new_times=False)
    sent = [m for raw in RawLog([f"log.{kind}"], FEATURES) for m in messages.examples(raw, None)]
    read, damage = encode_messages(sent, FEATURES)
    assert not damage.reasons
    np.testing.assert_array_equal(read.labels, wanted)


def test_a_damaged_label_of_a_file_is_set_aside(log):
    lines = Path("log.csv").read_text(encoding="utf-8").splitlines()
    lines[3] = ",".join([*lines[3].split(",")[:5], "1", "2", "0.5"])
    lines[5] = ",".join([*lines[5].split(",")[:5], "", "", ""])
    Path("log.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    events = EventLog(["log.csv"], FEATURES, max_bad_fraction=0.1)
    assert sum(len(piece) for piece in events) == 1498
    reasons = [line.reason for line in events.damaged.first]
    assert reasons[0].startswith("buy is '2', neither 0 nor 1") and "no label" in reasons[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("[click, buy, sec]", "[]"), "line 1: label is []; name at least one column"),
        (("[click, buy, sec]", "[click, 7]"), "line 1: label 2 is 7; give a column's name"),
        (("[click, buy, sec]", "[click, sec, click]"), "'click' is also label; give each"),
        (("[click, buy, sec]", "[click, sec, user]"), "'user' is also label; give each"),
        (("regression: sec", "regression: time"), "line 2: `regression` 'time' is no label"),
        (("regression: sec", "regression: [click]"), "line 2: the first label 'click' is a number"),
        (("regression: sec", "regression: [[sec]]"), "line 2: regression 1 is ['sec']; give a"),
    ],
)
def test_a_features_file_is_checked(features_file, change, reason):
    with pytest.raises(InputError) as error:
        features_file(TEXT.replace(*change))
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_columns_made_in_python_are_checked():
    for wrong, reason in ((("time",), "'time' is no label"), (("click",), "label 'click' is a")):
        with pytest.raises(InputError, match=reason):
            replace(FEATURES, regression=wrong)
