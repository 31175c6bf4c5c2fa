"""The join equals a merge by pandas, whatever the order of arrival."""

import json
import re
from dataclasses import replace

import merged
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from joining import (
    ACTIONS,
    FEATURES,
    IMPRESSIONS,
    examples_of,
    feed,
    impression,
    logs_of,
    open_joiner,
    run_to_end,
    stream,
)

from cowclip_merlin.online.events.columns import CategoricalColumn, ContinuousColumn
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.events.values import text_id
from cowclip_merlin.online.joining import loop
from cowclip_merlin.online.joining.flink import statements
from cowclip_merlin.online.joining.settings import JoinSettings

KEYS = st.sampled_from("abcd")
MESSAGES = st.lists(st.tuples(KEYS, st.integers(0, 60)), max_size=14)
SETTINGS = st.builds(
    JoinSettings,
    window=st.integers(1, 12),
    late=st.integers(0, 8),
    lateness=st.integers(0, 9),
    negatives=st.sampled_from([1.0, 0.5]),
    seed=st.integers(0, 3),
)
ORDER = st.lists(st.tuples(st.sampled_from([IMPRESSIONS, ACTIONS]), st.integers(1, 3)), max_size=20)


@given(MESSAGES, MESSAGES, SETTINGS, ORDER, st.integers(1, 3))
@hypothesis_settings(max_examples=100)
def test_equals_a_merge_in_any_order_of_arrival(
    tmp_path_factory, impressions, clicks, settings, order, slices
):
    logs = logs_of(impressions, clicks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cowclip_merlin.online.joining.joiner.CLOSED_AT_ONCE", slices)
        counts = feed(logs, settings, tmp_path_factory.mktemp("join"), order)
    expected, expected_counts = merged.join(impressions, clicks, settings)
    assert examples_of(logs[2]) == expected
    assert counts == expected_counts


NAMES = st.sampled_from(["klick\u00e9", "click", "cowclip_late"]) | st.text(max_size=3)
VALUES = st.none() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=2), max_size=2)
ROWS = st.lists(st.dictionaries(NAMES, VALUES), min_size=3, max_size=3)
FORMS = st.fixed_dictionaries({"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 1])})
LABELS = st.sampled_from(["click", "klick\u00e9"])
BLANKS = st.text(" \t\n\r", max_size=2)


@given(ROWS, LABELS, FORMS, BLANKS, BLANKS, st.sampled_from(["utf-8", "utf-8-sig", "utf-16-be"]))
@hypothesis_settings(max_examples=60)
def test_an_example_has_the_bytes_of_its_impression_and_then_further_columns(
    tmp_path_factory, rows, label, form, before, after, coding
):
    """As Flink writes it, but in place of columns with the same names."""
    settings, features = JoinSettings(window=60, late=60), replace(FEATURES, label=label)
    rows = [row | {"request": f"r{i}", "time": 100, "item": 1} for i, row in enumerate(rows)]
    texts = [f"{before}{json.dumps(row, **form)[:-1]}{after}}}{after}" for row in rows]
    logs = logs_of([], [("r0", 101), ("r1", 161)])
    logs[0].values += [text.encode(coding) for text in texts]
    run_to_end(logs, settings, tmp_path_factory.mktemp("join"), features=features)
    more = {"cowclip_sample_rate": 1.0}
    more = [{label: 1} | more, {label: 0} | more, {label: 0} | more]
    more.append({label: 1, "cowclip_sample_rate": 1.0, "cowclip_late": 1})
    wanted = [(i, rows[i], each) for i, each in zip((0, 1, 2, 1), more)]
    found = {(row["request"], row[label]): value for value in logs[2].values
             for row in [json.loads(value)]}  # fmt: skip
    assert len(found) == len(logs[2].values) == 4
    for i, row, columns in wanted:
        value = found[f"r{i}", columns[label]]
        pairs = json.loads(value, object_pairs_hook=list)
        assert dict(pairs) == row | columns and len(pairs) == len(row | columns)
        if label == "click" and coding == "utf-8" and not {*more[3]} & {*row}:
            assert value.decode() in by_flink(settings, features, texts[i])


def by_flink(settings, features, text):
    """The examples that the expressions of the Flink job make of an impression."""
    join = statements("i", "a", "e", features, settings, until_end=True)[-1]
    made = re.findall(r"REGEXP_REPLACE\(i.message, '(.*?)', '(.*?)'\)", join)
    assert len(made) == 3
    return [re.sub(pattern, end, text) for pattern, end in made]


SHUFFLED = JoinSettings(window=30, late=20, lateness=8, negatives=0.3)


@pytest.mark.parametrize("seed", range(4))
def test_equals_a_merge_on_shuffled_delayed_repeated_streams(tmp_path, seed):
    impressions, clicks = stream(seed, 600, SHUFFLED)
    logs = logs_of(impressions, clicks)
    counts = run_to_end(logs, SHUFFLED, tmp_path)
    expected, expected_counts = merged.join(impressions, clicks, SHUFFLED)
    assert examples_of(logs[2]) == expected
    assert counts == expected_counts
    assert all(counts[name] for name in counts if not name.startswith("damaged"))
    joiner, store = open_joiner(logs, SHUFFLED, tmp_path)
    assert joiner.sizes() == (0, 0)
    store.close()


@pytest.mark.parametrize("after", [0, 1])
def test_a_key_is_remembered_until_the_last_moment(tmp_path, after):
    """The newest messages are such that the repeat is as old as a message may be."""
    settings = JoinSettings(window=10, late=5, lateness=3)
    again = 100 + settings.kept + after
    impressions, clicks = [("a", 100), ("x", again + 3), ("a", again)], [("y", again + 3)]
    logs = logs_of(impressions, clicks)
    counts = feed(logs, settings, tmp_path, [(IMPRESSIONS, 2), (ACTIONS, 1), (IMPRESSIONS, 1)])
    assert counts["repeated_impressions"] == 1 - after
    assert counts == merged.join(impressions, clicks, settings)[1]


def test_a_click_in_the_window_may_come_after_one_beyond_it(tmp_path):
    settings = JoinSettings(window=10, late=5, lateness=3)
    clicks = [("a", 112), ("a", 109), ("b", 109), ("b", 112), ("c", 112), ("c", 112)]
    impressions = [(key, 100) for key in "abc"]
    logs = logs_of(impressions, clicks)
    counts = run_to_end(logs, settings, tmp_path)
    assert (counts["positives"], counts["late_positives"], counts["repeated_clicks"]) == (2, 1, 3)
    assert counts == merged.join(impressions, clicks, settings)[1]


def test_a_click_is_a_positive_at_once(tmp_path):
    logs = logs_of([("a", 100), ("b", 100)], [("a", 101)])
    joiner, store = open_joiner(logs, JoinSettings(window=600), tmp_path)
    joiner.take(IMPRESSIONS, logs[0].read((0,), 10))
    assert not logs[2].values
    joiner.take(ACTIONS, logs[1].read((0,), 10))
    assert examples_of(logs[2]) == [("a", 100, 1, None)]
    store.close()


def test_a_click_waits_for_its_impression(tmp_path):
    logs = logs_of([("a", 100)], [("a", 101), ("a", 95), ("a", 89)])
    joiner, store = open_joiner(logs, JoinSettings(window=600, lateness=10), tmp_path)
    joiner.take(ACTIONS, logs[1].read((0,), 10))
    assert joiner.sizes() == (0, 3)
    joiner.take(IMPRESSIONS, logs[0].read((0,), 10))
    assert examples_of(logs[2]) == [("a", 100, 1, None)]
    counts = joiner.counts
    # The click at 89 counts as one at 91, since it is more than 10 s behind the one at 101.
    assert (counts.positives, counts.early_clicks, counts.repeated_clicks) == (1, 2, 2)
    store.close()


def test_columns_of_the_log_are_not_taken_for_those_of_the_join(tmp_path):
    """An impression's `sample_rate` and `late`, named in the features file or not."""
    more = {"sample_rate": 0.25, "late": 1}
    shown = [json.loads(impression(f"r{i}", 100)) | more for i in range(4)]
    logs = logs_of([], [("r0", 101)])
    logs[0].values += [json.dumps(row).encode() for row in shown]
    run_to_end(logs, JoinSettings(window=60), tmp_path)
    named = replace(
        FEATURES,
        categorical=(*FEATURES.categorical, CategoricalColumn(name="late")),
        continuous=(ContinuousColumn(name="sample_rate"),),
    )
    plain = replace(FEATURES, label="late")
    keys = [text_id(f"r{i}") for i in range(4)]
    for features in (FEATURES, named, plain):
        events, damage = encode_messages(logs[2].values, features)
        assert not damage.reasons and events.offsets is None
        assert sorted(events.keys.tolist()) == sorted(keys)
    assert encode_messages(logs[2].values, named)[0].numbers[0, 0] == pytest.approx(np.log(1.25))


def test_examples_come_in_the_order_of_their_times_though_logs_are_read_in_turns(
    tmp_path, monkeypatch
):
    """One impression a second, and a click on each fifth: of 50 examples each has both labels."""
    monkeypatch.setattr(loop, "READ_AT_ONCE", 200)
    shown = [(f"r{i}", 1000 + i) for i in range(1500)]
    logs = logs_of(shown, [(key, time + 2) for key, time in shown[::5]])
    run_to_end(logs, JoinSettings(window=20, lateness=5), tmp_path)
    labels = [json.loads(value)["click"] for value in logs[2].values]
    counts = [sum(labels[first : first + 50]) for first in range(0, 1450, 50)]
    assert len(labels) == 1500 and min(counts) > 0 and max(counts) < 25


def test_the_state_stays_bounded(tmp_path):
    """Five times the messages, the same greatest size of the state."""
    settings = JoinSettings(window=20, late=10, lateness=5)
    sizes, files = {}, {}
    for requests in (2_000, 10_000):
        folder = tmp_path / str(requests)
        folder.mkdir()
        logs = logs_of(*stream(6, requests, settings))
        joiner, store = open_joiner(logs, settings, folder)
        largest = 0
        while joiner.positions[IMPRESSIONS] != logs[0].end():
            name = min(joiner.newest, key=lambda n: joiner.newest[n] or 0)
            log = logs[name == ACTIONS]
            messages = log.read(joiner.positions[name], 200)
            if messages:
                joiner.take(name, messages)
            else:
                messages = logs[0].read(joiner.positions[IMPRESSIONS], 200)
                joiner.take(IMPRESSIONS, messages)
            joiner.advance([IMPRESSIONS, ACTIONS])
            largest = max(largest, *joiner.sizes())
        store.close()
        sizes[requests], files[requests] = largest, (folder / "state").stat().st_size
    assert sizes[10_000] <= 1.3 * sizes[2_000]
    assert files[10_000] <= 1.5 * files[2_000]


def test_a_join_goes_on_after_its_end(tmp_path):
    logs = logs_of([("a", 100)], [])
    settings = JoinSettings(window=60)
    run_to_end(logs, settings, tmp_path)
    more = logs_of([("b", 200), ("c", 200)], [("c", 210)])
    logs[0].values += more[0].values
    logs[1].values += more[1].values
    counts = run_to_end(logs, settings, tmp_path)
    assert examples_of(logs[2]) == [("a", 100, 0, None), ("b", 200, 0, None), ("c", 200, 1, None)]
    assert (counts["positives"], counts["negatives"], counts["impressions"]) == (1, 2, 3)
