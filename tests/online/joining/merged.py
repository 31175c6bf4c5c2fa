"""The join by pandas, as slow and obvious as can be: the reference of all tests."""

import hashlib

import pandas as pd


def with_event_times(messages, lateness):
    """Messages of one log as a frame; the time is at most so far behind an earlier one's."""
    frame = pd.DataFrame(messages, columns=["request", "time"]).astype({"time": "int64"})
    newest = frame["time"].cummax().shift(1)
    frame["event_time"] = frame["time"].where(
        ~(frame["time"] < newest - lateness), newest - lateness
    )
    return frame.astype({"event_time": "int64"})


def without_repeats(impressions, kept):
    """The impressions that count, and the number of the others."""
    newest, counting = {}, []
    for i, request, time in zip(
        impressions.index, impressions["request"], impressions["event_time"]
    ):
        if request in newest and time <= newest[request] + kept:
            continue
        newest[request] = time
        counting.append(i)
    return impressions.loc[counting], len(impressions) - len(counting)


def is_drawn(key, settings):
    digest = hashlib.sha256(f"{settings.seed}:{key}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < round(settings.negatives * 2**32)


def join(impressions, clicks, settings):
    """Examples as sorted tuples (key, time, label, late), and all counts.

    Args:
        impressions: (key, time) of each message, in the order of the log.
        clicks: as the impressions.
        settings: of the join.
    """
    window, late, lateness = settings.window, settings.late, settings.lateness
    shown = with_event_times(impressions, lateness)
    clicked = with_event_times(clicks, lateness)
    counting, repeated = without_repeats(shown, window + late + lateness)
    pairs = counting.reset_index().merge(
        clicked.reset_index(names="click"), on="request", suffixes=("", "_of_click")
    )
    after = pairs["event_time_of_click"] - pairs["event_time"]
    pairs, after = (
        pairs[after.between(-lateness, window + late)],
        after[after.between(-lateness, window + late)],
    )
    assert pairs["click"].is_unique
    in_window = set(pairs.loc[after <= window, "index"])
    too_late = set(pairs["index"]) - in_window
    examples = []
    for i, request, time in zip(counting.index, counting["request"], counting["time"]):
        if i in in_window:
            examples.append((request, time, 1, None))
            continue
        if is_drawn(request, settings):
            examples.append((request, time, 0, None))
        if i in too_late:
            examples.append((request, time, 1, 1))
    negatives = sum(label == 0 for _, _, label, _ in examples)
    counts = {
        "impressions": len(shown),
        "clicks": len(clicked),
        "damaged_impressions": 0,
        "damaged_clicks": 0,
        "repeated_impressions": repeated,
        "repeated_clicks": len(pairs) - pairs["index"].nunique(),
        "early_clicks": int((after < 0).sum()),
        "clicks_without_impression": len(clicked) - len(pairs),
        "positives": len(in_window),
        "late_positives": len(too_late),
        "negatives": negatives,
        "dropped_negatives": len(counting) - len(in_window) - negatives,
    }
    return sorted(examples, key=str), counts
