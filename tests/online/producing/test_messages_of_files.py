"""Messages of a file: rows that are left out, and times; `test_log_and_request` reads them."""

import numpy as np
import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.event_log import RawLog
from cowclip_merlin.online.producing.producer import Producer, ProduceSettings


def messages_of(file, features, log):
    """Objects of all messages of a file, read in small pieces."""
    events = RawLog([file], features, max_bad_fraction=1, block_bytes=64)
    Producer(features, ProduceSettings(), examples=log).run(events)
    return log.objects


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
    sent = [x["time"] for x in messages_of(file, features, memory_log())]
    assert sent == ["5", "soon", "9", "3", "10"]


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
