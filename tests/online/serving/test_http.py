"""All answers of the HTTP interface."""

import asyncio
import json
import threading

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.logs.message_log import LogUnavailable
from cowclip_merlin.online.serving.follower import Follower
from cowclip_merlin.online.serving.served_model import Prediction, Version
from cowclip_merlin.online.serving.web.app import make_app
from cowclip_merlin.online.serving.web.limits import ServingLimits
from cowclip_merlin.online.serving.web.status import without_password

LIMITS = ServingLimits(max_body_bytes=4000, max_batch=8, timeout=5.0, max_requests=4)
URL = "/v1/predict"


@pytest.fixture(scope="module")
def served(tmp_path_factory, small_settings, features, events):
    """A trainer, and a follower that has its model."""
    from published import PublishedTrainer

    folder = tmp_path_factory.mktemp("served")
    made = PublishedTrainer(small_settings, features, folder / "run", FileLog(folder / "sync"))
    made.start()
    made.train(events.filter(slice(0, 512)))
    made.sync(auc=0.71)
    follower = Follower(lambda: made.log)
    while follower.step():
        pass
    follower.step()
    assert follower.model is not None
    return made, follower


def client_of(follower, limits=LIMITS, token=None, log_name="a log"):
    app = make_app(follower, limits, log_name=log_name, token=token)
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(served):
    with client_of(served[1]) as made:
        yield made


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


def body_of(row, **more):
    return json.dumps({"events": [{**row, **more}]}).encode()


JSON = {"content-type": "application/json"}
MALFORMED = {
    # body, headers, status, part of the error
    "empty body": (b"", JSON, 400, "the body is empty"),
    "no JSON": (b"hello", JSON, 400, "not JSON: Expecting value"),
    "half a body": (b'{"events": [{"user"', JSON, 400, "not JSON"),
    "two bodies": (b"{}{}", JSON, 400, "Extra data"),
    "single quotes": (b"{'events': []}", JSON, 400, "not JSON"),
    "NaN": (b'{"events": [{"price": NaN}]}', JSON, 400, "NaN is not a JSON number"),
    "Infinity": (b'{"events": [{"price": Infinity}]}', JSON, 400, "Infinity is not a JSON"),
    "-Infinity": (b'{"events": [{"price": -Infinity}]}', JSON, 400, "-Infinity is not"),
    "bytes that are not UTF-8": (b'{"events": "\xff"}', JSON, 400, "not UTF-8 at byte 12"),
    "UTF-16": ('{"events": []}'.encode("utf-16"), JSON, 400, "not UTF-8"),
    "a byte order mark": (b"\xef\xbb\xbf{}", JSON, 400, "not JSON"),
    "a zero byte": (b'{"events": "\x00"}', JSON, 400, "not JSON"),
    "deep lists": (b"[" * 3000, JSON, 400, "nested too deeply"),
    "deep objects": (b'{"a":' * 600 + b"1" + b"}" * 600, JSON, (400, 422), ""),
    "a number with 3900 digits": (b'{"events": ' + b"1" * 3900 + b"}", JSON, 422, "events is a n"),
    "a list": (b"[]", JSON, 422, 'the body has no "events"'),
    "null": (b"null", JSON, 422, 'the body has no "events"'),
    "a text": (b'"events"', JSON, 422, 'the body has no "events"'),
    "no events": (b"{}", JSON, 422, 'the body has no "events"'),
    "event, not events": (b'{"event": []}', JSON, 422, 'the body has no "events"'),
    "events is null": (b'{"events": null}', JSON, 422, "events is null; send a list"),
    "events is an object": (b'{"events": {}}', JSON, 422, "events is an object"),
    "events is a text": (b'{"events": "x"}', JSON, 422, "events is a text"),
    "events is true": (b'{"events": true}', JSON, 422, "events is true or false"),
    "no event": (b'{"events": []}', JSON, 422, "events is empty"),
    "an event is null": (b'{"events": [null]}', JSON, 422, "event 0 is null; send an object"),
    "an event is a list": (b'{"events": [[1]]}', JSON, 422, "event 0 is a list"),
    "an event is a number": (b'{"events": [7]}', JSON, 422, "event 0 is a number"),
    "an empty event": (b'{"events": [{}]}', JSON, 422, "event 0: no 'user'; give null"),
    "9 events": (b'{"events": [' + b"{}," * 8 + b"{}]}", JSON, 413, "9 events in one request"),
    "a large body": (b'{"events": "' + b"x" * 4000, JSON, 413, "larger than 4000 bytes"),
    "no content type": (b"{}", {}, 415, "Content-Type is 'none'"),
    "text": (b"{}", {"content-type": "text/plain"}, 415, "send application/json"),
    "a form": (b"a=1", {"content-type": "application/x-www-form-urlencoded"}, 415, "send app"),
    "another charset": (b"{}", {"content-type": "application/json; charset=latin-1"}, 415, "UTF-8"),
    "a compressed body": (b"{}", JSON | {"content-encoding": "gzip"}, 415, "send the body as it"),
    "a wrong length": (b"{}", JSON | {"content-length": "two"}, 400, "Content-Length 'two'"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_request_gets_one_clear_line(client, what):
    body, headers, status, text = MALFORMED[what]
    answer = client.post(URL, content=body, headers=headers)
    assert answer.status_code in (status if isinstance(status, tuple) else (status,))
    content = answer.json()
    assert set(content) <= {"error", "events"}
    assert text in content["error"] and "\n" not in content["error"]
    assert len(content["error"]) < 200


WRONG_VALUES = {
    # column, value, reason
    "a fraction as an id": ("user", 1.5, "user is 1.5 (float); give text or a whole number"),
    "a list as an id": ("user", [1], "user is [1] (list); give text or a whole number"),
    "an object as an id": ("item", {"a": 1}, "item is {'a': 1} (dict)"),
    "half a surrogate pair": ("item", "\ud800", "which UTF-8 cannot express"),
    "a huge id": ("user", 10**400, "user has hundreds of digits"),
    "a word as a number": ("price", "cheap", "price is 'cheap', not a number"),
    "an infinite number": ("price", 1e999, "price is 'inf', not a finite number"),
    "a text that is no number": ("price", "nan", "price is 'nan', not a finite number"),
    "a list as a number": ("price", [4.5], "price is [4.5] (list); give a number"),
    "true as a number": ("price", True, "price is 'true', not a number"),
}


@pytest.mark.parametrize("what", WRONG_VALUES)
def test_a_wrong_value_is_named_with_event_and_column(client, rows, what):
    column, value, reason = WRONG_VALUES[what]
    bad = {**rows[1], column: value}
    text = json.dumps({"events": [rows[0], bad, rows[2]]}).replace("Infinity", "1e999")
    answer = client.post(URL, content=text.encode(), headers=JSON)
    assert answer.status_code == 422
    assert f"event 1: {column}" in answer.json()["error"]
    assert reason in answer.json()["error"]
    (found,) = answer.json()["events"]
    assert found["event"] == 1 and reason in found["reason"]


def test_all_damaged_events_are_listed(client, rows):
    damaged = [{**row, "price": "x"} for row in rows[:4]] + [rows[4]]
    answer = client.post(URL, json={"events": damaged})
    assert answer.status_code == 422 and "3 more events are damaged" in answer.json()["error"]
    assert [each["event"] for each in answer.json()["events"]] == [0, 1, 2, 3]


def test_missing_values_and_other_columns_are_fine(client, rows):
    row = dict.fromkeys(rows[0])
    answer = client.post(URL, json={"events": [row, {**row, "more": [1]}], "other": 1})
    assert answer.status_code == 200
    assert len(set(answer.json()["predictions"])) == 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(VALUES, st.dictionaries(st.sampled_from(["user", "item", "price", "hour"]), VALUES))
def test_no_json_stops_the_server(client, rows, anything, values):
    for content in (anything, {"events": anything}, {"events": [{**rows[0], **values}]}):
        answer = client.post(URL, content=json.dumps(content).encode(), headers=JSON)
        assert answer.status_code in (200, 400, 413, 422)
        assert set(answer.json()) <= {"error", "events", "predictions", "model"}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200))
def test_no_bytes_stop_the_server(client, body):
    assert client.post(URL, content=body, headers=JSON).status_code in (400, 422)


def test_a_body_in_parts_has_the_same_limit(client, rows):
    def parts(size):
        yield body_of(rows[0])[:-2]
        yield b" " * size
        yield b"]}"

    headers = JSON | {"transfer-encoding": "chunked"}
    assert client.post(URL, content=parts(100), headers=headers).status_code == 200
    assert client.post(URL, content=parts(5000), headers=headers).status_code == 413


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
    client.post(URL, content=b"x", headers=JSON)
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
    assert values["cowclip_requests_total", "200"] == before["answers"]["200"] + 1
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


def test_the_interface_is_described(client):
    spec = client.get("/openapi.json").json()
    assert set(spec["paths"]) == {URL, "/v1/status", "/v1/history", "/metrics", "/ready"}
    predict = spec["paths"][URL]["post"]
    assert set(predict["responses"]) == {"200", "400", "401", "408", "413", "415", "422", "503"}
    assert "events" in predict["requestBody"]["content"]["application/json"]["schema"]["properties"]


@pytest.mark.parametrize("path", ["/v1/status", "/v1/history", "/metrics", "/v1/nothing", URL])
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
            answer = client.get(path, headers=headers)
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
        assert "the log names no snapshot yet" in answer.json()["error"]
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
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
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


def test_numbers_that_are_not_finite_are_not_sent(features, rows):
    follower = SlowFollower(features)
    follower.model.predict = lambda events: Prediction(
        np.array([np.nan]), follower.model.version, 0
    )
    with client_of(follower) as client:
        answer = client.post(URL, json={"events": rows[:1]})
        assert answer.status_code == 500 and "not finite" in answer.json()["error"]


def test_a_bug_is_a_500_without_details(features, rows):
    follower = SlowFollower(features)
    follower.model.predict = lambda events: 1 / 0
    with client_of(follower) as client:
        answer = client.post(URL, json={"events": rows[:1]})
        assert answer.status_code == 500
        assert answer.json() == {"error": "a bug in the server: ZeroDivisionError"}
        assert client.get("/v1/status").json()["requests"]["running"] == 0


@pytest.mark.parametrize(
    "name", ["max_body_bytes", "max_batch", "max_requests", "timeout", "threads"]
)
def test_limits_are_above_0(name):
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} is 0"):
        ServingLimits(**{name: 0})


def test_passwords_are_not_shown(served):
    with client_of(served[1], log_name="redis://me:secret@host:6379/model") as client:
        assert "secret" not in client.get("/v1/status").text
    assert without_password("kafka://host:9092/topic") == "kafka://host:9092/topic"
    assert without_password("/a/folder@home") == "/a/folder@home"
