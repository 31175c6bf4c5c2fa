"""Metrics for Prometheus, lines as JSON, and the files that use the metrics' names."""

import contextlib
import json
import logging
import re
import socket
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import report
from cowclip_merlin.online.report import MonitoringSettings, Number
from cowclip_merlin.system.records import JsonFormatter

FILES = Path(__file__).parents[2] / "containers/monitoring"
SOME = (
    Number("a", "A"), Number("x", "B", "counter", name="b"), Number("c", "C", "age"),
    Number("d", "D"),
)  # fmt: skip


def read(url):
    """Name -> value."""
    with urlopen(url) as answer:
        text = answer.read().decode()
    return {s.name: s.value for each in text_string_to_metric_families(text) for s in each.samples}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_answers_with_the_newest_numbers(host):
    lines, numbers = [], {"a": 1.5, "x": 7, "c": time.time() - 100, "d": None}
    address = f"[{host}]:0" if ":" in host else f"{host}:0"
    with MonitoringSettings(metrics=address).endpoint("x", SOME) as endpoint:
        assert host in endpoint.url and read(endpoint.url) == {}
        endpoint.tell(lambda: numbers, lines.append)
        found = read(endpoint.url)
        assert 100 <= found.pop("x_c") < 110
        assert found == {"x_a": 1.5, "x_b_total": 7}
        numbers["a"] = 2
        assert read(endpoint.url)["x_a"] == 2
    assert lines == [f"metrics for Prometheus: {endpoint.url}"]
    with pytest.raises(OSError, match="refused"):
        read(endpoint.url)


def ask(url, target, *, method="GET", host="127.0.0.1"):
    """Status and body of the answer to raw bytes."""
    port = int(url.removesuffix("/metrics").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.fixture
def told():
    """The address of an endpoint that tells a number."""
    with MonitoringSettings(metrics="0", allowed_hosts=["node"]).endpoint("x", SOME) as endpoint:
        endpoint.tell(lambda: {"a": 1.5}, lambda _: None)
        yield endpoint.url


def test_only_its_own_path_is_answered(told):
    assert ask(told, "/metrics") == ask(told, "/metrics?a=1")
    assert b"x_a 1.5" in ask(told, "/metrics")[1]
    ends = "/ // /. /.. %0A %0D%0A %00 %20 %2F ; %3B .json %E2%80%A8 \\ ~"
    for target in ("/", "/favicon.ico", "//", "*", "metrics", "/a/../metrics"):
        assert ask(told, target) == (404, b"see /metrics\n"), target
    for end in ends.split():
        assert ask(told, f"/metrics{end}") == (404, b"see /metrics\n"), end
    for method in ("POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"):
        assert b"x_a" not in ask(told, "/metrics", method=method)[1]


def test_other_names_in_host_are_refused(told):
    """As those of a page elsewhere whose name leads to this machine for a moment."""
    for host in ("localhost:9101", "10.1.2.3", "[::1]:9101", "node", "NODE:9101"):
        assert ask(told, "/metrics", host=host)[0] == 200, host
    for host in ("evil.example", "evil.example:9101", "node.evil.example", "::1"):
        status, body = ask(told, "/metrics", host=host)
        assert status == 421 and b"x_a" not in body, host
    with MonitoringSettings(metrics="localhost:0").endpoint("x", SOME) as endpoint:
        assert read(endpoint.url) == {}


def test_silent_connections_are_few_and_short(told, monkeypatch):
    port = int(told.removesuffix("/metrics").rpartition(":")[2])
    monkeypatch.setattr(report, "_SECONDS", 0.2)
    with contextlib.ExitStack() as stack:
        sent = (b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: ")
        kept = []
        for i in range(report._CONNECTIONS):
            kept.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)))
            kept[-1].sendall(sent[i % 3])
        with socket.create_connection(("127.0.0.1", port), 10) as another:
            assert another.recv(1) == b""  # at once: there are too many
        for each in kept:
            while each.recv(1 << 16):
                pass  # the answer to half a request, if there is one
    assert ask(told, "/metrics")[0] == 200


def test_without_an_address_nothing_listens():
    lines = []
    with MonitoringSettings().endpoint("x", SOME) as endpoint:
        endpoint.tell(dict, lines.append)
    assert endpoint.url is None and not lines


def test_a_port_in_use_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = MonitoringSettings(metrics=str(taken.getsockname()[1]))
        words = r"cannot listen at 127.0.0.1 port .*in use; give `metrics`"
        with pytest.raises(InputError, match=words), settings.endpoint("x", SOME):
            pass


def test_a_line_as_json():
    values = {"auc": float("nan"), "rows": 3, "factor": None}
    record = logging.LogRecord("run", logging.WARNING, "", 0, "%s é", ("a",), None)
    record.values = values
    entry = json.loads(JsonFormatter().format(record))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", entry.pop("time"))
    known = {"auc": None, "rows": 3, "factor": None}
    assert entry == {"level": "WARNING", "logger": "run", "message": "a é", "values": known}
    try:
        raise ValueError("wrong")
    except ValueError:
        record = logging.LogRecord("run", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    assert "ValueError: wrong" in json.loads(JsonFormatter().format(record))["exception"]


def known_names():
    """Every metric of trainer, joiner and server, as Prometheus stores it."""
    recorded = Path(__file__).parents[1] / "public/numbers.txt"
    return set(re.findall(r"^cowclip_\w+", recorded.read_text(encoding="utf-8"), re.M))


@pytest.mark.parametrize("file", ["alerts.yaml", "dashboard.json"])
def test_alarms_and_dashboard_name_metrics_that_exist(file):
    text = (FILES / file).read_text()
    content = yaml.safe_load(text)  # JSON is YAML, too
    used = set(re.findall(r"\bcowclip_\w+", text))
    assert content and len(used) > 8
    assert not used - known_names()


def test_the_dashboard_shows_trainer_joiner_and_servers():
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    rows = [each["title"] for each in panels if each["type"] == "row"]
    assert rows == ["Trainer", "Joiner", "Servers"]
    drawn = [each for each in panels if each["type"] != "row"]
    assert all(target["expr"] for each in drawn for target in each["targets"])
    places = [tuple(each["gridPos"].values()) for each in panels]
    assert len(set(places)) == len(places) == len({each["id"] for each in panels})


def test_prometheus_reads_the_alarms_and_three_jobs():
    config = yaml.safe_load((FILES / "prometheus.yaml").read_text())
    assert config["rule_files"] == ["alerts.yaml"]
    assert [job["job_name"] for job in config["scrape_configs"]] == ["train", "join", "serve"]
