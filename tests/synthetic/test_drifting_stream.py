import json

import numpy as np
import pandas as pd
import pytest

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features_file import load_features
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.synthetic.drifting_log import generate_drifting
from cowclip_merlin.synthetic.drifting_stream import DriftingStream, write_stream_features
from cowclip_merlin.synthetic.drifting_truth import FIELDS


def columns_of(pieces):
    names = list(pieces[0].columns)
    columns = {name: [x for piece in pieces for x in piece.columns[name]] for name in names}
    labels = np.concatenate([piece.labels for piece in pieces])
    times = np.concatenate([piece.times for piece in pieces])
    return columns, labels.tolist(), times.tolist()


def test_the_stream_has_the_events_of_the_log(tmp_path):
    generate_drifting(tmp_path / "log.csv", rows=3000, days=3, seed=9)
    frame = pd.read_csv(tmp_path / "log.csv", dtype=object, keep_default_na=False)
    columns, labels, times = columns_of(list(DriftingStream(events=3000, days=3, seed=9)))
    assert [str(label) for label in labels] == frame["click"].tolist()
    assert times == columns["time"] == frame["time"].astype(int).tolist()
    for name in (*(field.name for field in FIELDS), "price"):
        text = ["" if x is None else str(x) for x in columns[name]]
        assert text == frame[name].tolist(), name


def test_pieces_seeds_and_keys():
    whole = columns_of(list(DriftingStream(events=900, days=2, seed=4)))
    assert whole == columns_of(list(DriftingStream(events=900, days=2, seed=4, piece=7)))
    other = columns_of(list(DriftingStream(events=900, days=2, seed=5)))
    assert whole[0]["user"] != other[0]["user"]
    keys = whole[0]["request"]
    assert len(set(keys) | set(other[0]["request"])) == 1800
    assert min(keys) >= 0 and max(keys) < 2**62


def test_probabilities_are_those_of_the_clicks():
    columns, labels, _ = columns_of(list(DriftingStream(events=100_000, days=2, seed=4)))
    labels, probabilities = np.array(labels), np.array(columns["probability"])
    for low in np.arange(0, 0.6, 0.1):
        inside = (probabilities >= low) & (probabilities < low + 0.1)
        error = np.sqrt(0.25 / inside.sum())
        assert abs(labels[inside].mean() - probabilities[inside].mean()) < 4 * error


def test_features_file(tmp_path):
    path = tmp_path / "f.yaml"
    write_stream_features(path, seconds_per_day=20)
    features = load_features(path)
    assert (features.label, features.time, features.key) == ("click", "time", "request")
    assert features.rules["item"].ttl == 100 and features.rules["user"].ttl == 0
    stream = next(iter(DriftingStream(events=10)))
    assert {*features.inputs} <= {*stream.columns} and "probability" not in features.inputs
    write_stream_features(path, seconds_per_day=20)
    with pytest.raises(InputError, match="is not the features file"):
        write_stream_features(path, seconds_per_day=30)
    write_stream_features(tmp_path / "g.yaml", seconds_per_day=None)
    assert load_features(tmp_path / "g.yaml").rules["item"].ttl == 0


@pytest.mark.parametrize("options", [{"events": 0}, {"events": 9, "days": 101}])
def test_numbers_out_of_range(options):
    with pytest.raises(InputError, match=r"(events|days) is \d+; "):
        DriftingStream(**options)


def test_command(tmp_path, capsys):
    imp, act, yaml = (str(tmp_path / name) for name in ("imp", "act", "f.yaml"))
    command = ["online", "produce", "--generate", "--events", "5000", "--days", "2"]
    command += ["--features", yaml, "--impressions", imp, "--actions", act, "--times", "log"]
    assert main(command) == 0
    shown, clicked = (
        [json.loads(x.value) for x in log.read(log.start(), 10_000)]
        for log in (FileLog(imp), FileLog(act))
    )
    columns, labels, _ = columns_of(list(DriftingStream(events=5000, days=2)))
    assert [x["request"] for x in shown] == columns["request"]
    wanted = {key for key, label in zip(columns["request"], labels) if label}
    assert {x["request"] for x in clicked} == wanted and len(clicked) == len(wanted)
    assert f"5,000 impressions, {len(wanted):,} clicks in" in capsys.readouterr().out
    assert load_features(yaml).rules["item"].ttl == 5 * 86_400


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--to", "log"], "no file to play; "),
        (["a.csv", "--to", "log", "--generate"], "--generate plays no file"),
        (["a.csv", "--to", "log", "--days", "3"], "--days 3: "),
        (["--generate", "--max-bad-fraction", "0.1"], "--max-bad-fraction"),
        (["a.csv", "--to", "log", "--delay", "2"], "--delay 2: "),
        (["--generate"], "--to, or both --impressions and --actions"),
        (["--generate", "--to", "log", "--rate", "-1"], "--rate is -1.0; "),
    ],
)
def test_mistakes(tmp_path, monkeypatch, capsys, options, error):
    monkeypatch.chdir(tmp_path)
    assert main(["online", "produce", "--features", "f.yaml", *options]) == 2
    said = capsys.readouterr().err
    assert error in said and said.count("\n") == 1
