"""A trainer and a server without a model, which do what the demo sees of the real ones.

    python fake_parts.py train EXAMPLES SYNCS RUN
    python fake_parts.py serve EXAMPLES SYNCS PORT

The trainer "trains" by reading, and notes a snapshot in a file. The server knows the users of the
examples that a sync has told it of, and predicts 0.9 for them and 0.1 for others.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cowclip_merlin.online import FileLog
from cowclip_merlin.online.sync.sync_message import GENERATION, SYNCED, SyncMessage


def train(examples, syncs, run):
    snapshot = Path(run)
    before = json.loads(snapshot.read_text(encoding="utf-8")) if snapshot.exists() else None
    generation, trained, position = before or (0, 0, list(examples.start()))
    generation, seq = generation + 1, 0
    snapshot.write_text(json.dumps([generation, trained, position]), encoding="utf-8")

    def send(kind, **info):
        nonlocal seq
        message = SyncMessage(kind=kind, generation=generation, seq=seq, info=info)
        syncs.append([message.encode()])
        seq += 1

    send(GENERATION, run=run, snapshot=trained)
    while True:
        messages = examples.read(tuple(position), most=4096)
        if messages:
            position, trained = list(messages[-1].after), trained + len(messages)
        lag = examples.end()[0] - position[0]
        state = {"trained": trained, "position": position, "lag": lag, "time": time.time()}
        send(SYNCED, **state, rows=trained // 10, expired=trained // 100)
        if seq % 10 == 0:
            snapshot.write_text(json.dumps([generation, trained, position]), encoding="utf-8")
        time.sleep(0.1)


class Server:
    def __init__(self, examples, syncs):
        self.examples, self.syncs = examples, syncs
        self.known, self.read, self.version = set(), examples.start(), None

    def follow(self):
        place = self.syncs.start()
        while True:
            for message in self.syncs.read(place, most=64, wait=0.02):
                place = message.after
                sync = SyncMessage.decode(message.value)
                if sync.kind == SYNCED:
                    self.learn(sync.info["position"][0])
                    self.version = {"generation": sync.generation, "seq": sync.seq}
                    self.info = sync.info

    def status(self):
        if self.version is None:
            return {"state": "waiting", "model": None, "sync": None, "requests": {}}
        now, info = time.time(), self.info
        sync = {name: info[name] for name in ("rows", "expired")}
        sync |= {"trainer_lag": info["lag"], "age_seconds": now - info["time"]}
        return {
            "state": "serving", "time": now, "sync": sync | {"event_age_seconds": 0.5},
            "model": self.version | {"trained": info["trained"]},
            "requests": {"p50_milliseconds": 1.0, "p99_milliseconds": 2.0},
        }  # fmt: skip

    def learn(self, until):
        while self.read[0] < until:
            for message in self.examples.read(self.read, most=until - self.read[0]):
                self.read = message.after
                self.known.add(json.loads(message.value)["user"])


def serve(examples, syncs, port):
    server = Server(examples, syncs)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["events"]
            predictions = [0.9 if row["user"] in server.known else 0.1 for row in rows]
            content = {"predictions": predictions, "model": server.version}
            self.answer(200 if server.version else 503, content)

        def do_GET(self):
            self.answer(200, server.status())

        def answer(self, code, content):
            value = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(value)))
            self.end_headers()
            self.wfile.write(value)

        def log_message(self, *_):
            pass

    threading.Thread(target=server.follow, daemon=True).start()
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    part, examples, syncs, last = sys.argv[1:]
    {"train": train, "serve": serve}[part](FileLog(examples), FileLog(syncs), last)
