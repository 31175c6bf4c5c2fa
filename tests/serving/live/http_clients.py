"""Clients of the application, and its limits in these tests."""

from starlette.testclient import TestClient

from cowclip_merlin.serving.live.web.app import make_app
from cowclip_merlin.serving.live.web.limits import ServingLimits

LIMITS = ServingLimits(max_body_bytes=4000, max_batch=8, timeout=60.0, max_requests=4)
URL = "/v1/predict"


def client_of(follower, limits=LIMITS, token=None, log_name="a log"):
    app = make_app(follower, limits, log_name=log_name, token=token)
    return TestClient(app, "http://localhost", raise_server_exceptions=False)
