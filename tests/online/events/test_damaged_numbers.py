"""Numbers and times of damaged text are found in one pass, as one by one."""

import math
import os
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cowclip_merlin.online.events.values import parse_times
from cowclip_merlin.workflows.raw.values.numbers import float_of, numbers_of_texts

FUZZED = settings(max_examples=int(os.environ.get("FUZZ_EXAMPLES", "150")), deadline=None)
NEARLY = st.text("0123456789+-.eEinfatyINFATY()_ ", max_size=9)
NUMBERS = (
    st.floats().map(repr)
    | st.integers().map(str)
    | st.text(max_size=9)
    | NEARLY
    | st.sampled_from(["", "inf", "-Infinity", "nan", "NaN(a_1)", "nan(\u017f)", "\u0131nf"])
    | st.sampled_from(["1_0", "0x1", "1e999"])
)
TWO = st.integers(0, 99).map("{:02d}".format)
DATES = st.builds(
    lambda year, month, day, clock, zone: f"{year:04d}-{month:02d}-{day:02d}{clock}{zone}",
    st.sampled_from([0, 1600, 1677, 1699, 1700, 1900, 1970, 2000, 2024, 2106, 2199, 2200, 9999]),
    st.integers(0, 13),
    st.integers(0, 32) | st.integers(28, 31),
    st.lists(TWO, max_size=3).map(lambda parts: ("T" if len(parts) == 2 else " ") + ":".join(parts))
    | st.just(""),
    st.sampled_from(["", "Z", "z", ".5", ".123456789", ".1234567890", ".", ".25Z", " Z"])
    | st.builds("{}{}{}{}".format, st.sampled_from("+-"), TWO, st.sampled_from([":", ""]), TWO)
    | st.builds("{}{}".format, st.sampled_from("+-"), TWO),
)


def cast_one_by_one(column, kind):
    """Arrow's cast of each value by itself; null where it refuses one."""

    def cast(value):
        try:
            return pa.array([value], pa.string()).cast(kind)
        except pa.ArrowInvalid:
            return pa.nulls(1, kind)

    return pa.concat_arrays([pa.nulls(0, kind), *map(cast, column.to_pylist())])


def times_one_by_one(column):
    """As `parse_times`, by Arrow alone, of dates in the range of its nanoseconds."""
    text = pc.utf8_trim(column, " ").fill_null("")
    number = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
    zone = r"[T ][0-9][0-9].*(Z|[+-][0-9][0-9](:?[0-9][0-9])?)$"
    is_number = np.asarray(pc.match_substring_regex(text, number))
    has_zone = np.asarray(pc.match_substring_regex(text, zone)) & ~is_number
    near = np.asarray(pc.match_substring_regex(text, r"^(1[7-9]|2[01])"))
    seconds = np.full(len(text), np.nan)
    seconds[is_number] = np.floor(cast_one_by_one(text.filter(pa.array(is_number)), pa.float64()))
    for mask, kind in (
        (has_zone & near, pa.timestamp("ns", tz="UTC")),
        (~has_zone & ~is_number & near, pa.timestamp("ns")),
    ):
        values = cast_one_by_one(text.filter(pa.array(mask)), kind)
        whole = values.cast(pa.int64()).fill_null(0).to_numpy() // 1_000_000_000
        seconds[mask] = np.where(np.asarray(values.is_valid()), whole, np.nan)
    return seconds


@FUZZED
@given(st.lists(NUMBERS | st.none(), max_size=12))
@example(["1", "nan(\u212a)", "+", "x"])
def test_numbers_are_those_of_one_by_one(texts):
    column = pa.array(texts, pa.string())
    wanted = cast_one_by_one(pc.utf8_trim(column, " "), pa.float64())
    assert repr(numbers_of_texts(column).to_pylist()) == repr(wanted.to_pylist())
    for text, value in zip(texts, wanted.to_pylist()):
        found = float_of(text.strip(" ")) if text is not None else None
        assert text is None or found == value or (value in (None, found) or math.isnan(value))
        assert text is None or math.isnan(found) == (value is None or math.isnan(value))


@FUZZED
@given(st.lists(DATES | NUMBERS | st.none(), max_size=12))
@example(
    ["2001-02-29", "2000-02-29", "2001-04-31T10Z", "1700-01-01", "2199-12-31 23:59:59.999999999"]
)
def test_times_are_those_of_one_by_one(texts):
    column = pa.array(texts, pa.string())
    np.testing.assert_array_equal(parse_times(column), times_one_by_one(column))


@pytest.mark.parametrize(
    "text", ["1500-01-01", "1677-09-20", "2554-07-22", "2600-01-01", "9999-01-01"]
)
def test_dates_beyond_arrow_s_nanoseconds_are_no_times(text):
    """Arrow would begin anew: 2600 would be 2015."""
    for zone in ("", " 10:00", "T10:00Z", "T10+01"):
        assert math.isnan(parse_times(pa.array([text + zone]))[0])


def calls_of(read, column):
    """Calls of Python functions while a column is read."""
    read(column)  # a first call imports more
    calls = []
    sys.setprofile(lambda frame, event, _: calls.append(event) if event == "call" else None)
    try:
        read(column)
    finally:
        sys.setprofile(None)
    return len(calls)


@pytest.mark.parametrize(
    "text", ["2001-02-30", "2001-02-30T10Z", "1e", "+", "x", "nan(x", "2001-1-1"]
)
@pytest.mark.parametrize("read", [parse_times, numbers_of_texts])
def test_a_damaged_column_is_read_in_one_pass(read, text):
    """Not with a call for each damaged value."""
    column = pa.array([text] * 4096)
    assert calls_of(read, column) == calls_of(read, column.slice(0, 8)) > 0
