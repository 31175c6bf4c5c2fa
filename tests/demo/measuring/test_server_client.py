import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cowclip_merlin.demo.measuring.server_client import NoAnswer, ServerClient
from cowclip_merlin.system.processes import free_ports


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200, {"path": self.path})

    def do_POST(self):
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not given["events"]:
            self.answer(503, {"detail": "no model yet"})
            return
        model = {"generation": 2, "seq": 5, "trained": 9}
        self.answer(200, {"predictions": [0.5] * len(given["events"]), "model": model})

    def answer(self, code, value):
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def port():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def test_answers(port):
    client = ServerClient(port)
    assert client.is_serving(["user"]) and client.status() == {"path": "/v1/status"}
    answer = client.predict([{"user": 1}, {"user": None}])
    assert (answer.probabilities, answer.generation, answer.seq) == ([0.5, 0.5], 2, 5)
    with pytest.raises(NoAnswer, match=r"503 .*no model yet"):
        client.predict([])
    assert client.predict([{}]).seq == 5  # over the same connection
    client.close()
    client.close()
    assert client.is_serving(["user"])
    client.close()


def test_a_server_that_is_away():
    client = ServerClient(free_ports(1)[0])
    assert not client.is_serving([])
    with pytest.raises(NoAnswer, match="ConnectionRefusedError"):
        client.status()
