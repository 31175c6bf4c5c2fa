"""Answers of the HTTP interface: predictions, status, metrics, pages, token, limits, faults."""

import asyncio
import json
import re
import threading

import httpx
import numpy as np
import pytest
from http_clients import LIMITS, URL, client_of
from prometheus_client.parser import text_string_to_metric_families

from cowclip_merlin.online import FileLog
from cowclip_merlin.online.logs.message_log import LogUnavailable
from cowclip_merlin.online.served_model import Prediction, Version
from cowclip_merlin.serving.live.follower import Follower
from cowclip_merlin.serving.live.http import make_app
from cowclip_merlin.serving.live.settings import ServingLimits


def test_predictions_are_those_of_the_trainer(served, client, rows, events):
    made, follower = served
    for first in range(0, 64, 8):
        answer = client.post(URL, json={"events": rows[first : first + 8]})
        assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
        wanted = made.trainer.predict(events.filter(slice(first, first + 8)))
        assert np.abs(np.array(answer.json()["predictions"]) - wanted).max() <= 1e-6
    version = follower.model.version
    known = {"trained": 512, "event_time": made.event_time}
    assert answer.json()["model"] == {"generation": 1, "seq": version.seq} | known


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", URL, 405), ("PUT", URL, 405), ("GET", "/v1/nothing", 404), ("POST", "/", 405)],
)
def test_other_addresses_and_methods(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert path in answer.json()["error"] and "/docs" in answer.json()["error"]


def test_status_and_history_have_the_models_numbers(served, client, rows):
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
    every = values["cowclip_request_seconds_bucket", "+Inf"]
    assert every == values["cowclip_requests_total", "200"]


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


def test_a_broker_that_is_away_shows_in_the_status(served, rows, monkeypatch):
    def fail(*_):
        raise LogUnavailable("redis://host: no answer")

    log = FileLog(served[0].log.name)
    follower = Follower(lambda: log)
    while follower.step():
        pass
    with monkeypatch.context() as away:
        away.setattr(log, "read", fail)
        follower.step()
    with client_of(follower) as client:
        assert client.post(URL, json={"events": rows[:1]}).status_code == 200
        assert client.get("/v1/status").json()["problem"] == "redis://host: no answer"
        follower.step()
        assert client.get("/v1/status").json()["problem"] is None


def test_passwords_are_not_shown(served):
    with client_of(served[1], log_name="redis://me:secret@host:6379/model") as client:
        assert "secret" not in client.get("/v1/status").text


class SlowModel:
    """Answers when the test lets it."""

    def __init__(self, features):
        self.features, self.version = features, Version(1, 0, {})
        self.go, self.begun = threading.Event(), threading.Semaphore(0)

    def __len__(self):
        return 0

    row_bytes = 0

    def predict(self, events):
        self.begun.release()
        assert self.go.wait(30)
        return Prediction(np.full(len(events), 0.5), self.version, 0)


class SlowFollower(Follower):
    def __init__(self, features):
        super().__init__(lambda: None)
        self.model, self._search = SlowModel(features), None


async def many(app, rows, number):
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        tasks = [
            asyncio.create_task(client.post(URL, json={"events": rows[:1]})) for _ in range(number)
        ]
        yield tasks
        for task in tasks:
            await task


def test_more_requests_than_the_limit_are_refused_at_once(features, rows):
    follower = SlowFollower(features)
    app = make_app(follower, LIMITS, log_name="a log")

    async def run():
        async for tasks in many(app, rows, 9):
            done, running = await asyncio.wait(tasks, timeout=20, return_when="FIRST_COMPLETED")
            while len(done) < 5:
                done, running = await asyncio.wait(tasks, timeout=0.05)
            assert len(running) == 4
            for task in done:
                answer = task.result()
                assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
                assert "4 requests are running" in answer.json()["error"]
            follower.model.go.set()
            assert [(await task).status_code for task in running] == [200] * 4
        async for tasks in many(app, rows, 4):  # places are free again
            assert [(await task).status_code for task in tasks] == [200] * 4

    asyncio.run(run())


def test_a_late_answer_is_a_refusal_and_keeps_its_place(features, rows):
    follower = SlowFollower(features)
    limits = ServingLimits(max_requests=1, timeout=0.2, threads=1)
    app = make_app(follower, limits, log_name="a log")

    async def run():
        async for (task,) in many(app, rows, 1):
            answer = await task
            assert answer.status_code == 503 and "no answer within 0.2 s" in answer.json()["error"]
        async for (task,) in many(app, rows, 1):  # its thread still works
            assert "1 requests are running" in (await task).json()["error"]
        follower.model.go.set()
        for _ in range(500):
            async for (task,) in many(app, rows, 1):
                answer = await task
            if answer.status_code == 200:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the place is not free again")

    asyncio.run(run())


def test_a_body_that_does_not_come_is_a_408(served):
    app = make_app(served[1], ServingLimits(timeout=0.1), log_name="a log")

    async def receive_late():
        """The transport of httpx reads the body first, so call the application itself."""
        sent, scope = [], {
            "type": "http", "method": "POST", "path": URL, "raw_path": URL.encode(),
            "query_string": b"", "headers": [(b"content-type", b"application/json")],
            "http_version": "1.1", "scheme": "http", "server": ("server", 80),
        }  # fmt: skip

        async def receive():
            await asyncio.sleep(30)

        async def send(message):
            sent.append(message)

        await app(scope, receive, send)
        return sent

    start, body = asyncio.run(receive_late())
    assert start["status"] == 408 and b"did not come within 0.1 s" in body["body"]


def test_a_fault_of_the_model_is_a_500_without_details(features, rows):
    follower = SlowFollower(features)
    nothing = Prediction(np.array([np.nan]), follower.model.version, 0)
    follower.model.predict = lambda events: nothing
    with client_of(follower) as client:
        answer = client.post(URL, json={"events": rows[:1]})
        assert answer.status_code == 500 and "not finite" in answer.json()["error"]
    follower = SlowFollower(features)
    follower.model.predict = lambda events: 1 / 0
    with client_of(follower) as client:
        answer = client.post(URL, json={"events": rows[:1]})
        assert answer.status_code == 500
        assert answer.json() == {"error": "a bug in the server: ZeroDivisionError"}
        assert client.get("/v1/status").json()["requests"]["running"] == 0
