"""Errors of Kafka: whether waiting helps; and the packages of logs, which may be missing."""

import sys

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import open_log
from cowclip_merlin.online.logs.kafka_errors import KafkaErrors
from cowclip_merlin.online.logs.message_log import LogRefused, LogUnavailable, MessagesLost


@pytest.mark.system
def test_a_server_that_refuses_the_login_is_not_tried_again(topic, impatient):
    impatient()
    login = "security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN&sasl.username=me"
    with pytest.raises(LogRefused, match="check user and password") as told:
        open_log(f"{topic()}&{login}&sasl.password=secret")
    assert "secret" not in str(told.value) and "\n" not in str(told.value)


@pytest.mark.system
def test_a_topic_that_is_gone_is_not_waited_for(topic, monkeypatch):
    url = topic()
    log = open_log(url, create=True)
    servers, _, name = url.partition("?")[0].removeprefix("kafka://").partition("/")
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([name])[name].result(10)

    def send(values):  # tansu makes a missing topic by itself
        raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))

    monkeypatch.setattr(log, "_send", send)
    with pytest.raises(LogRefused, match="topic is gone"):
        log.append([b"a"])


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.SASL_AUTHENTICATION_FAILED, LogRefused),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, LogRefused),
        (KafkaError.TOPIC_EXCEPTION, LogRefused),
        (KafkaError._TRANSPORT, LogUnavailable),
        (KafkaError.LEADER_NOT_AVAILABLE, LogUnavailable),
        (KafkaError.NOT_ENOUGH_REPLICAS, LogUnavailable),
        (KafkaError._SSL, LogUnavailable),  # of a server that ends
        (KafkaError.OFFSET_OUT_OF_RANGE, MessagesLost),
    ],
)
def test_the_kind_of_an_error_says_whether_waiting_helps(code, kind):
    with pytest.raises(kind, match=r"^kafka://h/a: "), KafkaErrors("kafka://h/a").told():
        raise KafkaException(KafkaError(code))


def test_a_refusal_is_told_until_a_call_succeeds():
    errors, silent = KafkaErrors("kafka://h/a"), KafkaException(KafkaError(KafkaError._TRANSPORT))
    errors.note(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    refusal = KafkaError(KafkaError._AUTHENTICATION, "the server says no")
    with pytest.raises(LogRefused, match="no; check"), errors.told(lambda: errors.note(refusal)):
        raise silent
    with errors.told():
        pass
    with pytest.raises(LogUnavailable), errors.told():
        raise silent


def test_a_missing_package_is_one_line(monkeypatch):
    for scheme, package in (("redis", "redis"), ("kafka", "confluent_kafka")):
        monkeypatch.setitem(sys.modules, package, None)
        own = f"cowclip_merlin.online.logs.{scheme}"
        for name in [name for name in sys.modules if name.startswith(own)]:
            monkeypatch.delitem(sys.modules, name)
        with pytest.raises(InputError, match=r"pip install 'cowclip-merlin\[online\]'$"):
            open_log(f"{scheme}://h/a")
