"""Logs in Kafka: partitions, brokers that hang or forget, trimming, refused settings."""

import itertools
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import pytest
from log_servers import KafkaServer

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import LogUnavailable, MessagesLost
from cowclip_merlin.online.logs.open_log import open_log, open_to_append
from cowclip_merlin.system.processes import free_ports

pytestmark = pytest.mark.system

NUMBERS = itertools.count()


@pytest.fixture
def server(tmp_path):
    """A broker of its own, which a test may kill."""
    made = KafkaServer(tmp_path)
    yield made
    made.kill()


def quick(url):
    """The same address; its producer gives up soon."""
    return f"{url}&message.timeout.ms=700"


def later(call):
    """What a call gives, as soon as the broker is there."""
    until = time.monotonic() + 60
    while True:
        try:
            return call()
        except LogUnavailable:
            if time.monotonic() > until:
                raise


def test_the_partitions_of_a_topic_are_read_in_an_order_that_is_repeated(kafka_server, tmp_path):
    url = kafka_server.topic(f"many-{next(NUMBERS)}", 3)
    values = [b"%d" % i for i in range(300)]
    writer, reader = open_to_append(url), open_log(url, order=tmp_path / "order")
    assert reader.read(reader.start(), 9, wait=0.05) == [] and reader.past_gaps((0,)) == (0,)
    place, found = reader.start(), []
    for first in range(0, 300, 50):
        writer.append(values[first : first + 50])
        found += reader.read(place, 40, wait=30)
        place = found[-1].after
    while part := reader.read(place, 40):
        found += part
        place = part[-1].after
    assert sorted(m.value for m in found) == sorted(values) and place == reader.end()
    assert [m.after[0] for m in found] == [*range(1, 301)] and place == (300, 100, 100, 100)
    assert abs(found[0].time / 1000 - time.time()) < 600
    reader.close()
    again = open_log(url, order=tmp_path / "order")
    again.keep_from(found[119].after)
    repeated, place = [], found[119].after
    while part := again.read(place, 33):
        repeated += part
        place = part[-1].after
    assert repeated == found[120:]
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


def test_a_broker_that_hangs_is_unavailable_and_then_there_again(server, impatient):
    place = open_log(server.url("a"), create=True).append([b"a"])
    impatient()
    log = later(lambda: open_log(quick(server.url("a"))))
    assert [m.value for m in later(lambda: log.read((0,), 9))] == [b"a"]
    server.pause()
    for call in (
        log.end,
        log.start,
        lambda: log.read(place, 1, wait=60),
        lambda: log.append([b""]),
    ):
        with pytest.raises(LogUnavailable, match=rf"^kafka://127.0.0.1:{server.port}/a: .*running"):
            call()
    server.go_on()
    assert later(lambda: log.append([b"b"])) >= (2,)
    assert later(lambda: log.read(place, 1)) and later(lambda: log.read((0,), 1))
    log.close()


def test_a_broker_that_forgot_its_messages_is_noticed(server, impatient):
    url = server.url("a/0")  # tansu may make the topic by itself, with four partitions
    place = open_log(url, create=True).append([b"a", b"b"])
    impatient()
    log = later(lambda: open_log(quick(url)))
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


def test_a_waiting_reader_notices_the_end_of_the_broker(server, impatient):
    log, told = open_log(server.url("a"), create=True), []
    impatient()

    def wait():
        try:
            log.read((0,), 1, wait=600)
        except LogUnavailable as error:
            told.append(error)

    reader = threading.Thread(target=wait)
    reader.start()
    server.kill()
    reader.join(60)
    assert len(told) == 1


def test_messages_below_the_low_watermark_are_lost(topic, monkeypatch):
    """tansu 0.6.0 cannot delete records, so that this broker's answers are made up."""
    log = open_log(topic(), create=True)
    log.append([b"a"] * 8)
    asked, done = [], Future()
    done.set_result(None)

    class Admin:
        def delete_records(self, places, request_timeout):
            asked.extend((place.partition, place.offset) for place in places)
            return {places[0]: done}

    monkeypatch.setattr(log, "_admin", Admin())
    log.trim((0,))
    log.trim((5,))
    assert asked == [(0, 5)]
    monkeypatch.setattr(log, "_watermarks", lambda: (5, 8))
    log.trim((5,))
    assert asked == [(0, 5)] and log.start() == (5,)
    monkeypatch.setattr(log, "_consume", lambda most, wait: [])
    with pytest.raises(MessagesLost, match="begins at message 5, but message 4 "):
        log.read((4,), 1)


def test_a_message_that_is_too_large_says_what_to_change(topic):
    log = open_log(topic() + "&message.max.bytes=1000", create=True)
    with pytest.raises(InputError, match=r"max\.message\.bytes of the topic") as told:
        log.append([b"x" * 2000])
    assert not isinstance(told.value, LogUnavailable)
    assert log.append([b"x"]) == (1,)


@pytest.mark.parametrize(
    "options, words",
    [
        ("no.such.option=1", '"no.such.option"; '),
        ("acks=x", "acks"),
    ],
)
def test_wrong_options_are_one_line(topic, options, words):
    with pytest.raises(InputError) as told:
        open_log(f"{topic()}&{options}", create=True).append([b"a"])
    assert words in str(told.value) and "\n" not in str(told.value)
    assert not isinstance(told.value, LogUnavailable)


def test_passwords_are_options_and_are_not_shown():
    with pytest.raises(InputError, match="password as options") as told:
        open_log("kafka://me:secret@localhost/a")
    assert "secret" not in str(told.value)
    place = f"localhost:{free_ports(1)[0]}"
    code = (
        "from cowclip_merlin.online.logs import kafka_log\n"
        "kafka_log.TIMEOUT = 0.5\n"
        "url = 'kafka://PLACE/a?sasl.username=me&sasl.password=secret'\n"
        "try: kafka_log.KafkaLog(url)\nexcept Exception as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code.replace("PLACE", place)], capture_output=True, text=True
    )
    assert done.stdout.startswith(f"kafka://{place}/a: ") and not done.stderr
    assert "secret" not in done.stdout
