"""Answers of the HTTP interface: predictions, status, metrics, pages and the token."""

import json
import re

import numpy as np
import pytest
from http_clients import URL, client_of
from prometheus_client.parser import text_string_to_metric_families

from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.logs.message_log import LogUnavailable
from cowclip_merlin.serving.live.follower import Follower


def test_predictions_are_those_of_the_trainer(served, client, rows, events):
    made, follower = served
    for first in range(0, 64, 8):
        answer = client.post(URL, json={"events": rows[first : first + 8]})
        assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
        wanted = made.trainer.predict(events.filter(slice(first, first + 8)))
        assert np.abs(np.array(answer.json()["predictions"]) - wanted).max() <= 1e-6
    version = follower.model.version
    assert answer.json()["model"] == {
        "generation": 1,
        "seq": version.seq,
        "trained": 512,
        "event_time": made.event_time,
    }


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", URL, 405), ("PUT", URL, 405), ("GET", "/v1/nothing", 404), ("POST", "/", 405)],
)
def test_other_addresses_and_methods(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert path in answer.json()["error"] and "/docs" in answer.json()["error"]


def test_the_status_has_the_models_numbers(served, client, rows):
    made, follower = served
    client.post(URL, json={"events": rows[:2]})
    status = client.get("/v1/status").json()
    assert status["state"] == "serving" and status["problem"] is None
    assert status["model"]["rows"] == made.trainer.table.num_rows
    assert status["model"]["categorical"] == [c.name for c in made.trainer.features.categorical]
    assert status["model"]["continuous"] == ["price"]
    assert status["sync"]["auc"] == 0.71 and 0 <= status["sync"]["age_seconds"] < 600
    assert status["log"]["messages_behind"] == 0 and status["log"]["messages"] > 3
    assert status["requests"]["answers"]["200"] > 0 and status["requests"]["running"] == 0
    assert 0 < status["requests"]["p50_milliseconds"] <= status["requests"]["p99_milliseconds"]
    assert 1 < status["memory_megabytes"] < 30_000
    assert "," not in json.dumps(follower.model.row_bytes)


def test_the_history_has_the_page_s_samples(client):
    samples = client.get("/v1/history").json()
    assert samples and {"time", "rows", "auc", "memory", "behind"} <= set(samples[0])


def test_metrics_are_those_of_prometheus(served, client, rows):
    made, _ = served
    before = client.get("/v1/status").json()["requests"]
    client.post(URL, json={"events": rows[:3]})
    client.post(URL, content=b"x", headers={"Content-Type": "application/json"})
    text = client.get("/metrics").text
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values["cowclip_ready",] == 1
    assert values["cowclip_model_rows",] == made.trainer.table.num_rows
    assert values["cowclip_progressive_auc",] == 0.71
    assert values["cowclip_scored_events_total",] == before["events"] + 3
    assert values["cowclip_requests_total", "200"] == before["answers"].get("200", 0) + 1
    assert values["cowclip_requests_total", "400"] == before["answers"].get("400", 0) + 1
    assert values["cowclip_request_seconds_count",] == values["cowclip_requests_total", "200"]
    assert (
        values["cowclip_request_seconds_bucket", "+Inf"] == values["cowclip_requests_total", "200"]
    )


def test_pages_load_nothing_from_elsewhere(client):
    for path in ("/", "/docs"):
        page = client.get(path)
        assert page.status_code == 200 and "text/html" in page.headers["content-type"]
        assert "http://" not in page.text and "https://" not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_has_every_element_that_its_script_asks_for(client, path):
    text = client.get(path).text
    there = set(re.findall(r'\bid="([\w-]+)"', text))
    panels = re.findall(r'\{id: "(\w+)", title', text)  # the script makes three elements of each
    there |= {f"{panel}{part}" for panel in panels for part in ("", "-note", "-chart")}
    asked = re.findall(r'(?:\$|write)\("([\w-]+)"', text)
    assert len(asked) >= 5 and set(asked) <= there
    links = {a or b for a, b in re.findall(r'<a href="(.+?)"|(?:get|fetch)\("(/.+?)"', text)}
    assert len(links) >= 3
    assert not [link for link in links if client.get(link).status_code == 404]


def test_the_interface_is_described(client):
    spec = client.get("/openapi.json").json()
    assert set(spec["paths"]) == {URL, "/v1/status", "/v1/history", "/metrics", "/ready"}
    predict = spec["paths"][URL]["post"]
    assert set(predict["responses"]) == {
        "200", "400", "401", "408", "413", "415", "421", "422", "503",
    }  # fmt: skip
    assert "events" in predict["requestBody"]["content"]["application/json"]["schema"]["properties"]


@pytest.mark.parametrize("path", ["/v1/status", "/v1/history", "/metrics", URL])
def test_a_token_is_asked_for(served, rows, path):
    with client_of(served[1], token="s3cret") as client:
        for headers in (
            {},
            {"authorization": "s3cret"},
            {"authorization": "Bearer wrong"},
            {"authorization": "Bearer s3cret "},
            {"authorization": "Basic s3cret"},
            {"authorization": "Bearer \xe4"},
        ):
            headers = {k: v.encode("latin-1") for k, v in headers.items()}
            answer = client.request("POST" if path == URL else "GET", path, headers=headers)
            if headers != {"authorization": b"Bearer s3cret "}:  # spaces at the end do not count
                assert answer.status_code == 401, headers
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "Authorization: Bearer" in answer.json()["error"]
        good = {"authorization": "Bearer s3cret"}
        assert client.get(path, headers=good).status_code in (200, 404, 405)
        assert client.post(URL, json={"events": rows[:1]}, headers=good).status_code == 200
        for public in ("/", "/docs", "/openapi.json", "/ready"):
            assert client.get(public).status_code == 200


def test_without_a_model_it_says_why(tmp_path, rows):
    follower = Follower(lambda: FileLog(tmp_path / "sync"))
    follower.step()
    with client_of(follower) as client:
        answer = client.post(URL, json={"events": rows[:1]})
        assert answer.status_code == 503 and answer.headers["retry-after"] == "5"
        assert "no snapshot" in answer.json()["error"]
        assert client.get("/ready").status_code == 503
        status = client.get("/v1/status").json()
        assert status["state"] == "waiting" and status["model"] is None
        assert "no snapshot yet" in status["problem"]
        assert "cowclip_ready 0.0" in client.get("/metrics").text


def test_a_broker_that_is_away_shows_in_the_status(served, rows):
    made, _ = served

    class Away(FileLog):
        gone = False

        def read(self, *arguments):
            if self.gone:
                raise LogUnavailable("redis://host: no answer")
            return super().read(*arguments)

    log = Away(made.log.name)
    follower = Follower(lambda: log)
    while follower.step():
        pass
    while follower.step():
        pass
    log.gone = True
    follower.step()
    with client_of(follower) as client:
        assert client.post(URL, json={"events": rows[:1]}).status_code == 200
        assert client.get("/v1/status").json()["problem"] == "redis://host: no answer"
    log.gone = False
    follower.step()
    with client_of(follower) as client:
        assert client.get("/v1/status").json()["problem"] is None


def test_passwords_are_not_shown(served):
    with client_of(served[1], log_name="redis://me:secret@host:6379/model") as client:
        assert "secret" not in client.get("/v1/status").text
