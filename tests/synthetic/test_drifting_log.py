"""The log that drifts, and the stream with its events."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.events.values import MISSING
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.synthetic.drifting_log import (
    COLUMNS,
    DAY,
    FIELDS,
    ITEM,
    ITEM_LIFE,
    MISSING_PRICES,
    START,
    DriftingTruth,
    generate_drifting,
)
from cowclip_merlin.synthetic.drifting_stream import DriftingStream, write_stream_features

ROWS = 60_000


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log, what is known about it, its table and its truth."""
    path = tmp_path_factory.mktemp("drift") / "log.csv"
    facts = generate_drifting(path, rows=ROWS, days=6, seed=5)
    return path, facts, pd.read_csv(path), DriftingTruth(ROWS, 6, 5)


def truth_of(truth, start=0, stop=ROWS):
    rows = np.arange(start, stop, dtype=np.uint64)
    return rows, (truth.times(rows), truth.ids(rows), truth.prices(rows))


def test_columns_times_and_missing_values(log):
    _, facts, frame, _ = log
    assert tuple(frame.columns) == COLUMNS and len(frame) == facts.rows == ROWS
    assert frame["click"].isin([0, 1]).all() and frame["click"].mean() == facts.click_rate
    assert abs(facts.click_rate - 0.2) < 0.01
    assert frame["time"].is_monotonic_increasing and frame["time"].iloc[0] == START
    assert set((frame["time"] - START) // DAY) == set(range(6))
    assert (frame["hour"] == 1 + (frame["time"] - START) % DAY // 3600).all()
    for name, share in {"site": 0.03, "price": MISSING_PRICES, "user": 0, "item": 0}.items():
        assert abs(frame[name].isna().mean() - share) < 0.01, name
    assert frame["item"].str.fullmatch(r"i\d+").all()
    assert sum(frame[field.name].nunique() for field in FIELDS) == facts.distinct_ids


def test_items_come_every_day_and_go(log):
    _, facts, frame, _ = log
    day = (frame["time"] - START) // DAY
    first, last = day.groupby(frame["item"]).agg(["min", "max"]).T.to_numpy()
    assert (last - first).max() <= ITEM_LIFE
    for d in range(1, 6):
        assert 0.5 * facts.new_items < (first == d).sum() <= 1.5 * facts.new_items
        new = frame["item"][day == d].isin(frame["item"][day < d])
        assert 0.2 < 1 - new.mean() < 0.8  # rows with an item that came that day
    assert len(frame["item"][day == 0].unique()) > facts.new_items  # older ones from the start


def test_effects_turn_and_keep_their_size(log):
    truth = log[3]
    ids = np.arange(1, 5001)
    for f, field in enumerate(FIELDS):
        now, quarter, half = (
            truth.effects(f, ids, np.full(5000, day))
            for day in np.array([0, 1, 2]) * field.period / 4
        )
        assert abs(np.std(now) / field.std - 1) < 0.05
        assert abs(np.std(quarter) / field.std - 1) < 0.05
        assert abs(np.corrcoef(now, quarter)[0, 1]) < 0.05
        np.testing.assert_allclose(half, -now, atol=1e-9)


def test_the_best_auc_is_that_of_the_true_probabilities(log):
    path, facts, frame, truth = log
    _, columns = truth_of(truth)
    p, clicks = truth.probabilities(*columns), frame["click"]
    assert facts.bayes_auc == pytest.approx(roc_auc_score(clicks, p), abs=1e-12)
    assert facts.bayes_log_loss == pytest.approx(log_loss(clicks, p), abs=1e-12)
    assert abs((clicks - p).mean()) < 4 * np.sqrt((p * (1 - p)).mean() / ROWS)  # calibrated
    from_day_4 = frame["time"] >= START + 4 * DAY
    wanted = roc_auc_score(clicks[from_day_4], p[from_day_4])
    assert facts.bayes_auc_from_day[4] == pytest.approx(wanted, abs=1e-12)
    assert len(facts.bayes_auc_from_day) == 6 and facts.bayes_auc_from_day[0] == facts.bayes_auc
    assert json.loads(path.with_name("log.csv.json").read_text())["bayes_auc"] == facts.bayes_auc


def test_the_truth_of_a_day_ago_is_worse_and_of_two_days_worse_still(log):
    _, _, frame, truth = log
    _, (times, ids, prices) = truth_of(truth, 40_000)
    aucs = [
        roc_auc_score(frame["click"][40_000:], truth.probabilities(times - back * DAY, ids, prices))
        for back in (0, 1, 2)
    ]
    assert aucs[0] > aucs[1] + 0.02 > aucs[2] + 0.04


def learn(ids, clicks, table, rate=0.1):
    """A step of logistic regression; an id's gradient is divided by the root of its count."""
    wrong = clicks - 1 / (1 + np.exp(-table[ids].sum(axis=1)))
    count = np.bincount(ids.ravel(), minlength=len(table))
    np.add.at(table, ids, rate * wrong[:, None] / np.sqrt(count[ids]))


def test_a_model_that_goes_on_learning_beats_one_that_stops(log):
    _, facts, frame, truth = log
    _, (_, ids, _) = truth_of(truth)
    ids = ids + np.cumsum([0, *np.array(truth.sizes[:-1]) + 1])
    clicks, cut = frame["click"].to_numpy(), 40_000  # of day 4
    table, scores = np.zeros(ids.max() + 1), {"stopped": [], "goes on": []}
    for start in range(0, ROWS, 500):  # each piece is scored before it is learned
        piece = slice(start, start + 500)
        if start == cut:
            stopped = table.copy()
        if start >= cut:
            scores["stopped"].append(stopped[ids[piece]].sum(axis=1))
            scores["goes on"].append(table[ids[piece]].sum(axis=1))
        learn(ids[piece], clicks[piece], table)
    aucs = [roc_auc_score(clicks[cut:], np.concatenate(score)) for score in scores.values()]
    assert 0.6 < aucs[0] < aucs[1] - 0.04 < facts.bayes_auc_from_day[4] - 0.04


def test_any_chunk_size_gives_the_same_log(tmp_path):
    for name, chunk in (("a", 1000), ("b", 77), ("c", 10_000)):
        generate_drifting(tmp_path / f"{name}.csv", rows=1000, days=2, seed=1, chunk_rows=chunk)
    a, b, c = ((tmp_path / f"{name}.csv").read_bytes() for name in "abc")
    assert a == b == c
    generate_drifting(tmp_path / "d.csv.gz", rows=1000, days=2, seed=1)
    assert gzip.decompress((tmp_path / "d.csv.gz").read_bytes()) == a
    generate_drifting(tmp_path / "e.tsv", rows=1000, days=2, seed=1)
    assert (tmp_path / "e.tsv").read_bytes() == a.replace(b",", b"\t")
    generate_drifting(tmp_path / "f.csv", rows=1000, days=2, seed=2)
    assert (tmp_path / "f.csv").read_bytes() != a


def test_the_features_file_fits_the_log(log):
    path, _, frame, _ = log
    features = load_features(path.with_name("log.csv.yaml"))
    assert features.inputs == COLUMNS[2:]
    assert features.categorical[ITEM].rules.ttl == (ITEM_LIFE + 1) * DAY
    events = EventLog([path], features, max_bad_fraction=0)
    pieces = list(events)
    ids = np.concatenate([piece.ids.values for piece in pieces])
    labels = np.concatenate([piece.labels for piece in pieces])
    assert events.events == ROWS and labels.tolist() == frame["click"].tolist()
    assert np.concatenate([p.times for p in pieces]).tolist() == frame["time"].tolist()
    np.testing.assert_array_equal(ids[:, 0], frame["user"])
    assert ((ids[:, 3] == MISSING) == frame["site"].isna()).all()
    for f, field in enumerate(FIELDS):
        assert len(np.unique(ids[:, f])) == frame[field.name].nunique(dropna=False)


def test_the_command(tmp_path, capsys):
    out = str(tmp_path / "log.csv")
    assert main(["generate", "--drift", "--rows", "500", "--days", "2", "--out", out]) == 0
    facts = json.loads((tmp_path / "log.csv.json").read_text())
    printed = capsys.readouterr().out
    assert "500 rows in 2 days" in printed and f"AUC {facts['bayes_auc']:.5f}" in printed
    assert f"{out}.yaml: its features file" in printed


def test_a_tiny_log(tmp_path):
    assert generate_drifting(tmp_path / "a.csv", rows=1, days=100).bayes_auc == 0.5


def test_facts_are_written_last(tmp_path, monkeypatch):
    """Whoever finds them finds the whole log; those of an earlier log do not stay."""

    def killed(*_, **__):
        raise KeyboardInterrupt

    path = tmp_path / "log.csv"
    for seed in (1, 2):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("cowclip_merlin.synthetic.drifting_log.features_text", killed)
            generate_drifting(path, rows=500, seed=seed, overwrite=seed == 2)
        assert [file.name for file in sorted(tmp_path.iterdir())] == (
            ["log.csv"] if seed == 1 else ["log.csv", "log.csv.yaml"]
        )
        made = generate_drifting(path, rows=500, seed=seed, overwrite=True)
        assert json.loads((tmp_path / "log.csv.json").read_text())["bayes_auc"] == made.bayes_auc


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


def test_the_command_of_a_stream(tmp_path, capsys):
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
