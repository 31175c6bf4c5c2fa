"""Logs in Kafka: partitions, gaps, brokers that hang or forget, trimming, refused settings."""

import itertools
import json
import threading
import time

import pytest
from confluent_kafka import Producer
from log_servers import KafkaServer, later

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import open_log
from cowclip_merlin.online.events.columns import CategoricalColumn
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.joining.loop import join_logs
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.logs.damaged_messages import DamagedMessages
from cowclip_merlin.online.logs.message_log import LogUnavailable, MessagesLost
from cowclip_merlin.online.training.steps import EventReader
from cowclip_merlin.system.processes import free_ports

pytestmark = pytest.mark.system

NUMBERS = itertools.count()


@pytest.fixture
def server(tmp_path):
    """A broker of its own, which a test may kill."""
    made = KafkaServer(tmp_path)
    yield made
    made.kill()


def test_messages_of_partitions_have_one_order_between_two_positions(kafka_server):
    url = kafka_server.topic(f"many-{next(NUMBERS)}", 3)
    values = [b"%d" % i for i in range(300)]
    writer, reader = (open_log(url, create=create, several=True) for create in (True, False))
    assert reader.read(reader.start(), 9, wait=0.05) == [] and reader.past_gaps((0,)) == (0,)
    place, parts = reader.start(), []
    for first in range(0, 300, 50):
        writer.append(values[first : first + 50])
        parts.append(reader.read(place, 40, wait=30))
        place = parts[-1][-1].after
    while part := reader.read(place, 40):
        parts.append(part)
        place = part[-1].after
    found = [message for part in parts for message in part]
    assert sorted(m.value for m in found) == sorted(values) and place == reader.end()
    assert [m.after[0] for m in found] == [*range(1, 301)] and place == (300, 100, 100, 100)
    assert abs(found[0].time / 1000 - time.time()) < 600
    reader.close()
    again, place = open_log(url, several=True), (0,)
    for part in parts:
        assert again.between(place, part[-1].after) == part
        place = part[-1].after
    with pytest.raises(MessagesLost, match="/0: ends at message 100, but message 101 is asked"):
        again.between(place, (301, 101, 100, 100))
    thread = threading.Timer(0.2, lambda: writer.append([b"late"]))
    thread.start()
    assert [m.value for m in again.read(place, 5, wait=60)] == [b"late"]
    thread.join()
    for each in (writer, again):
        each.close()


def test_a_topic_with_several_partitions_needs_one_of_them(kafka_server):
    url, _, options = kafka_server.topic(f"many-{next(NUMBERS)}", 3).partition("?")
    for create in (False, True):
        with pytest.raises(InputError, match=rf"3 partitions, .* {url}/0") as told:
            open_log(url, create=create)
        assert "\n" not in str(told.value)
    with pytest.raises(InputError, match="no partition 3; "):
        open_log(f"{url}/3", create=True)
    with pytest.raises(InputError, match="'x' is no partition"):
        open_log(f"{url}/x")
    one, other = (open_log(f"{url}/{partition}?{options}") for partition in (1, 2))
    assert one.append([b"a", b"b"]) == (2,) and other.end() == (0,)
    assert [m.value for m in one.read((0,), 1)] == [b"a"] and other.read((0,), 9) == []


def test_a_broker_that_forgot_its_messages_is_noticed(server, impatient):
    url = server.url("a/0")  # tansu may make the topic by itself, with four partitions
    place = open_log(url, create=True).append([b"a", b"b"])
    impatient()
    log = later(lambda: open_log(server.quick(url)))
    assert later(lambda: log.read(place, 1)) == []
    server.kill()
    for call in (log.end, lambda: log.read(place, 1), lambda: log.append([b""])):
        with pytest.raises(LogUnavailable, match="is the server running"):
            call()
    with pytest.raises(LogUnavailable):
        open_log(url)
    server.start()
    with pytest.raises(MessagesLost, match=r"topic is gone|ends at message 0"):
        later(lambda: log.read(place, 1))
    later(lambda: open_log(url, create=True)).close()
    with pytest.raises(MessagesLost, match="ends at message 0, but message 2 "):
        later(lambda: log.read(place, 1, wait=60))
    assert later(lambda: log.append([b"c"])) >= (1,)
    assert [m.value for m in later(lambda: log.read(log.start(), 1))] == [b"c"]
    log.close()


def test_a_message_that_is_too_large_says_what_to_change(topic):
    log = open_log(topic() + "&message.max.bytes=1000", create=True)
    with pytest.raises(InputError, match=r"max\.message\.bytes of the topic") as told:
        log.append([b"x" * 2000])
    assert not isinstance(told.value, LogUnavailable)
    assert log.append([b"x"]) == (1,)


@pytest.mark.parametrize(
    ("options", "words"), [("no.such.option=1", '"no.such.option"; '), ("acks=x", "acks")]
)
def test_wrong_options_are_one_line(topic, options, words):
    with pytest.raises(InputError) as told:
        open_log(f"{topic()}&{options}", create=True).append([b"a"])
    assert words in str(told.value) and "\n" not in str(told.value)
    assert not isinstance(told.value, LogUnavailable)


def test_passwords_are_options_and_are_not_shown(impatient, capfd):
    with pytest.raises(InputError, match="password as options") as told:
        open_log("kafka://me:secret@localhost/a")
    assert "secret" not in str(told.value)
    impatient()
    url = f"kafka://localhost:{free_ports(1)[0]}/a"
    with pytest.raises((InputError, LogUnavailable), match=rf"^{url}: (?!.*secret)"):
        open_log(f"{url}?sasl.username=me&sasl.password=secret")
    assert capfd.readouterr() == ("", "")


JOIN = JoinSettings(window=30)
JOINED = LogFeatures(
    label="click", time="time", key="request", categorical=(CategoricalColumn(name="item"),)
)


def joined_click(key, time):
    return json.dumps({"request": key, "time": time}).encode()


def joined_impression(key, time):
    return json.dumps({"request": key, "time": time, "item": f"i{key}"}).encode()


def append_in_transactions(url, *transactions):
    """Each ends with a mark that takes an offset."""
    servers, _, topic = url.partition("?")[0].removeprefix("kafka://").partition("/")
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(10)
    for values in transactions:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.commit_transaction(10)


def test_ends_of_transactions_are_passed(topic):
    url = topic()
    log = open_log(url, create=True)
    append_in_transactions(url, [b"a", b"b"], [b"c"])
    started = time.monotonic()
    found = log.read((0,), 9)
    assert [(m.after, m.value) for m in found] == [((1,), b"a"), ((2,), b"b"), ((4,), b"c")]
    assert log.end() == (5,) and log.read((4,), 9) == [] and log.read((4,), 9, wait=0.05) == []
    assert log.past_gaps((4,)) == (5,) and log.past_gaps((3,)) == (3,)
    assert log.read((5,), 9) == [] and log.past_gaps((5,)) == (5,)
    assert time.monotonic() - started < 4  # it does not wait for a message that never comes
    again = open_log(url)
    assert again.read((4,), 9) == [] and again.past_gaps((4,)) == (5,)
    append_in_transactions(url, [b"d"])
    assert [m.value for m in log.read((4,), 9, wait=5)] == [b"d"]
    assert log.start() == (0,)


def test_a_join_and_a_reader_come_to_the_end_of_transactions(topic, tmp_path):
    urls = [topic() for _ in range(3)]
    for url in urls:
        open_log(url, create=True).close()
    append_in_transactions(urls[0], *([joined_impression(f"r{i}", 100)] for i in range(4)))
    append_in_transactions(urls[1], [joined_click("r1", 101)], [joined_click("r2", 102)])
    counts = join_logs(*urls, JOINED, JOIN, state=tmp_path / "state", until_end=True)
    assert (counts.impressions, counts.clicks, counts.positives) == (4, 2, 2)
    append_in_transactions(urls[2], [json.dumps({"damaged": 1}).encode()])
    log = open_log(urls[2])
    reader = EventReader(log, JOINED, log.start(), damaged=DamagedMessages(tmp_path / "damaged"))
    batch = reader.take(reader.choose(99, wait=0.5, rest=True))
    assert len(batch) == counts.positives + counts.negatives
    assert reader.choose(1) is None and reader.at_end() and reader.lag() == 0
    assert reader.position == log.end() == (len(batch) + 2,)
