"""Load a server of `cowclip online serve` with wrk while its model is synced.

DeepFM with an MLP of 400-400-400 is trained on a generated log. Then each sync sends rows with
unchanged values, new ids, and ids that are gone: the server works as after training, and the right
answers are known. A client checks answers all the time. The last case has more connections than
the server answers at one time. The command fails if an answer is wrong or a request is lost.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.system.processes import free_ports, start, wait_for, wait_or_kill
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.types import Json, JsonObject
from harness import Benchmark, output_of, table
from serving_parts.synced_model import TTL, SyncedModel, repeated

LONGEST_START = 180.0  # seconds
SCRIPT = """
local bodies, headers = {}, {["Content-Type"] = "application/json"}
for line in io.lines(os.getenv("BODIES")) do bodies[#bodies + 1] = line end
local i = 0
request = function()
  i = i % #bodies + 1
  return wrk.format("POST", "/v1/predict", headers, bodies[i])
end
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\\n{"requests": %d, "seconds": %f, ', summary.requests,
    summary.duration / 1e6))
  io.write(string.format('"p50": %f, "p99": %f, "max": %f, ', latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, latency.max / 1e3))
  io.write(string.format('"errors": %d, "lost": %d}\\n', e.status,
    e.connect + e.read + e.write + e.timeout))
end
"""


@dataclass(frozen=True, kw_only=True)
class LoadSettings(Settings):
    """How a server is loaded."""

    seconds: float = option(20.0, "seconds of each case", above=0)
    sync_every: float = option(1.0, "seconds between syncs", above=0)
    sync_rows: int = option(10_000, "rows of each sync, about", at_least=1)
    events: int = option(200_000, "events of the generated log", at_least=1)
    max_requests: int = option(64, "requests that the server answers at one time", at_least=1)
    seed: int = option(1, "seed of the log and the model")


class Case(NamedTuple):
    """One load.

    Attributes:
        events: of each request.
        connections: at one time.
        synced: whether the model is synced meanwhile.
        begins: whether the trainer starts again meanwhile, so that the server loads a snapshot.
    """

    events: int
    connections: int
    synced: bool = True
    begins: bool = False


CASES = (
    Case(1, 1, synced=False),
    Case(1, 1),
    Case(1, 1, begins=True),
    Case(1, 8),
    Case(64, 1),
    Case(64, 4),
    Case(1024, 2),
)
"""All loads but the one above the limit, which is the last."""


class Server:
    """`cowclip online serve` on a free port, and a client that checks its answers.

    Attributes:
        answers: that were right.
        wrong: answers that differ by more than 1e-6, and other responses than 503.
        oldest_sync: largest age of the last sync that the server told, in seconds.
    """

    def __init__(self, log: Path, options: Sequence[str], out: Path) -> None:
        self.answers, self.wrong, self.oldest_sync = 0, 0, 0.0
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "cowclip_merlin", "online", "serve", "--from", str(log)]
        with open(out, "wb") as stream:
            self._process = start([*command, "--port", str(port), *options], stdout=stream)

        def is_ready() -> bool:
            with suppress(OSError):
                return self.ask("/ready")[0] == 200
            return False

        if not wait_for(is_ready, self._process, LONGEST_START):
            self.stop()
            raise InputError(f"the server does not start: {out.read_text('utf-8')[-300:]}")

    def ask(self, path: str, content: Json = None) -> tuple[int, Json]:
        """Status and JSON of a response."""
        body = None if content is None else json.dumps(content).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def check(self, model: SyncedModel) -> None:
        """Ask for some events, and for the status."""
        first = random.randrange(len(model.requests) - 8)
        part = slice(first, first + random.randint(1, 8))
        status, answer = self.ask("/v1/predict", {"events": model.requests[part]})
        if status == 200:
            right = bool(np.abs(answer["predictions"] - model.expected[part]).max() <= 1e-6)
            self.answers, self.wrong = self.answers + right, self.wrong + (not right)
        else:
            self.wrong += status != 503
        sync = self.ask("/v1/status")[1]["sync"]
        self.oldest_sync = max(self.oldest_sync, sync["age_seconds"] or 0.0)

    def stop(self) -> None:
        """End it by SIGTERM."""
        self._process.terminate()
        wait_or_kill(self._process, 60)


def find_wrk() -> str:
    """Return the path of wrk."""
    if program := shutil.which("wrk"):
        return program
    raise InputError("wrk is not installed; install it, for example by apt-get install wrk")


def run_wrk(
    url: str, bodies: Sequence[bytes], connections: int, seconds: float, folder: Path
) -> JsonObject:
    """Send requests one after the other on each connection."""
    script, file = folder / "load.lua", folder / "bodies"
    script.write_text(SCRIPT, encoding="utf-8")
    file.write_bytes(b"\n".join(bodies) + b"\n")
    options = ["-t", 1, "-c", connections, "-d", f"{max(round(seconds), 1)}s", "--timeout", "30s"]
    command = [find_wrk(), *options, "-s", script, url]
    return json.loads(output_of("wrk", command, env={"BODIES": str(file)}).splitlines()[-1])


def measure(settings: LoadSettings) -> JsonObject:
    """Run all cases on one server."""
    find_wrk()
    set_up_tensorflow(settings.seed, "cpu")
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = SyncedModel(
            folder, events=settings.events, rows=settings.sync_rows, seed=settings.seed
        )
        model.sync()
        options = ["--max-requests", str(settings.max_requests)]
        server = Server(folder / "sync", options, folder / "server.log")
        try:
            return _measure(settings, model, server, folder)
        finally:
            server.stop()
            model.close()


def _measure(
    settings: LoadSettings, model: SyncedModel, server: Server, folder: Path
) -> JsonObject:
    for _ in range(TTL + 2):  # until as many ids go as come
        model.sync()
    cases = (*CASES, Case(1, 3 * settings.max_requests))
    found = [_run(case, settings, model, server, folder) for case in cases]
    if server.wrong or any(each["lost"] for each in found):
        raise InputError(f"{server.wrong} wrong answers; {found}")
    status = server.ask("/v1/status")[1]
    if status["model"]["generation"] != 2 or status["log"]["gaps"]:
        raise InputError(f"the server does not follow the new model: {status['log']}")
    del status["log"]["name"]  # a temporary folder
    return {
        "what": "load of a server while its model is synced",
        "rows": model.num_rows,
        "checked_answers": server.answers,
        "wrong_answers": server.wrong,
        "cases": found,
        "status": status,
    }


def _run(
    case: Case, settings: LoadSettings, model: SyncedModel, server: Server, folder: Path
) -> JsonObject:
    bodies = model.bodies(case.events, 200)
    server.oldest_sync = 0.0
    every = settings.sync_every if case.synced else 1e9
    half = int(settings.seconds / settings.sync_every / 2) if case.begins else None
    with (
        model.syncing(every, begin_at=half) as took,
        repeated(lambda: server.check(model), lambda: 0.05),
    ):
        found = run_wrk(server.url, bodies, case.connections, settings.seconds, folder)
    answered = found["requests"] - found["errors"]
    return {
        **case._asdict(),
        "answered_per_second": round(answered / found["seconds"], 1),
        "events_per_second": round(case.events * answered / found["seconds"]),
        **{f"{name}_ms": round(found[name], 2) for name in ("p50", "p99", "max")},
        "answered": answered,
        "refused": found["errors"],
        "lost": found["lost"],
        "syncs": len(took),
        "oldest_sync_seconds": round(server.oldest_sync, 2),
        "server_megabytes": server.ask("/v1/status")[1]["memory_megabytes"],
    }


COLUMNS = {
    "events": "{events:,}",
    "connections": "{connections:,}",
    "synced": "{synced}",
    "new model": "{begins}",
    "answers/s": "{answered_per_second:,.0f}",
    "events/s": "{events_per_second:,}",
    "p50, ms": "{p50_ms:.1f}",
    "p99, ms": "{p99_ms:.1f}",
    "max, ms": "{max_ms:.1f}",
    "refused": "{refused:,}",
    "oldest sync, s": "{oldest_sync_seconds:.1f}",
    "memory, MB": "{server_megabytes:,.0f}",
}


def text(result: JsonObject) -> str:
    """The result as a table."""
    checked = f"{result['checked_answers']:,} checked answers, {result['wrong_answers']} wrong"
    return f"{table(COLUMNS, result['cases'])}\n{checked}; {result['rows']:,} ids with a row"


BENCHMARK = Benchmark(about=__doc__, settings=LoadSettings, measure=measure, text=text)
