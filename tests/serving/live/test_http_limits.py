"""Requests beyond the limits, and faults of the server itself."""

import asyncio
import threading

import httpx
import numpy as np
from http_clients import LIMITS, URL, client_of

from cowclip_merlin.serving.live.follower import Follower
from cowclip_merlin.serving.live.served_model import Prediction, Version
from cowclip_merlin.serving.live.web.app import make_app
from cowclip_merlin.serving.live.web.limits import ServingLimits


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
