"""What a reader of the messages sees equals what EventLog reads from the file."""

import csv
import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import EventLog, encode_requests
from cowclip_merlin.online.events.event_log import RawLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.values import text_id
from cowclip_merlin.online.producing.producer import Producer, ProduceSettings

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\t"))
IDS = (
    st.none()
    | TEXT
    | st.integers(-(2**66), 2**66)
    | st.sampled_from(["1.0", "01", "-0", " 1", 'say "hi"', "e\u0301", "", "null", '"', "\\", "\0"])
)
NUMBERS = st.none() | st.integers(-(2**66), 2**66) | st.floats(width=64) | st.just("two")
ROWS = st.lists(
    st.tuples(st.sampled_from([0, 1]), IDS, IDS, NUMBERS, NUMBERS), min_size=1, max_size=8
)
NAMES = ["click", "user", "item", "price", "age"]
quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def messages_of(file, features, log):
    """Objects of all messages of a file, read in small pieces."""
    events = RawLog([file], features, max_bad_fraction=1, block_bytes=64)
    Producer(features, ProduceSettings(), examples=log).run(events)
    return log.objects


def assert_read_alike(file, features, log):
    objects = messages_of(file, features, log)
    encoded = encode_requests(objects, features)
    whole = [x for i, x in enumerate(objects) if i not in encoded.damaged]
    log = EventLog([file], features, max_bad_fraction=1, block_bytes=64)
    try:
        wanted = Events.concatenate(list(log))
    except InputError as error:
        assert "no events" in str(error) and not whole
        return
    np.testing.assert_array_equal(encoded.events.ids.values, wanted.ids.values)
    np.testing.assert_array_equal(encoded.events.numbers, wanted.numbers)
    assert [x["click"] for x in whole] == wanted.labels.tolist()
    assert [int(x["time"]) for x in whole] == wanted.times.tolist()
    assert [text_id(str(x["request"])) for x in whole] == wanted.keys.tolist()


@quick
@given(rows=ROWS)
def test_text(rows, features, tmp_path, memory_log):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(["time", "request", *NAMES])
    for i, row in enumerate(rows):
        writer.writerow([100 + i, f"r{i}", *("" if x is None else x for x in row)])
    file = tmp_path / "log.csv"
    file.write_text(text.getvalue(), encoding="utf-8", newline="")
    assert_read_alike(file, features, memory_log())


def test_rows_that_are_not_whole_are_left_out_and_counted(features, tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("click,time,request,user,item,price,age\n1,5,a,7,i,1,2\n1,6,b\n2,7,c,7,i,1,2\n")
    log = RawLog([file], features, max_bad_fraction=1)
    assert [events.columns["request"] for events in log] == [["a"]]
    assert (log.rows, log.damaged.count) == (3, 2)
    with pytest.raises(InputError, match=r"log.csv: 2 .* of 3 rows are damaged"):
        list(RawLog([file], features))


def test_times_that_cannot_be_read_or_go_back_count_as_the_one_before(
    features, tmp_path, memory_log
):
    file = tmp_path / "log.csv"
    rows = "".join(f"0,{time},a,7,i,1,2\n" for time in ("5", "soon", "9", "3", "10"))
    file.write_text(f"click,time,request,user,item,price,age\n{rows}")
    log = RawLog([file], features, block_bytes=32)
    assert np.concatenate([events.times for events in log]).tolist() == [5, 5, 9, 9, 10]
    assert [x["time"] for x in messages_of(file, features, memory_log())] == [
        "5",
        "soon",
        "9",
        "3",
        "10",
    ]


def test_new_times_have_the_form_that_the_features_file_names(
    features_file, tmp_path, clock, memory_log
):
    features = features_file(
        "label: click\ntime: {name: hour, format: '%y%m%d%H'}\nkey: k\ncategorical: [user]\n"
    )
    (tmp_path / "log.csv").write_text("click,hour,k,user\n1,14102100,a,7\n")
    clock.time = 90_000.0
    logs = {"impressions": memory_log(), "actions": memory_log()}
    settings = ProduceSettings(times="now", delay=0)
    producer = Producer(features, settings, now=clock.now, wait=clock.wait, **logs)
    producer.run(RawLog([tmp_path / "log.csv"], features))
    assert logs["impressions"].objects == [{"k": "a", "hour": "70010201", "user": "7"}]
    assert logs["actions"].objects == [{"k": "a", "hour": "70010201"}]


def test_a_time_that_is_an_input_is_not_replaced(features_file, memory_log):
    features = features_file("label: click\ntime: hour\ncategorical: [hour]\n")
    with pytest.raises(InputError, match="'hour' is also an input"):
        Producer(features, ProduceSettings(times="now"), examples=memory_log())
