"""A server: time of requests, answers per second, and whether the answers are right.

load    `cowclip online serve` during syncs, with wrk
triton  an exported model in NVIDIA Triton
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.demo.processes import Processes
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.new_columns import noted
from cowclip_merlin.online.run_config import online_config
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.sync.publisher import Publisher
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.synthetic.drifting_log import generate_drifting
from cowclip_merlin.system.files import write_json
from cowclip_merlin.system.processes import free_ports
from cowclip_merlin.tables.layout import FieldRules
from cowclip_merlin.tables.snapshot import save_snapshot
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import Json, JsonObject
from harness import Benchmark, Suite, output_of, table
from serving_triton import TRITON

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


TTL = 40
"""Syncs after which an id that was not seen is gone."""

TURNS = 20
"""Syncs after which every known id was sent again."""

_BATCH = 1024
_NEW = 10**12  # first of the new ids, far from those of the log


class SyncedModel:
    """A trained model, its run folder and its sync log.

    Each sync sends a part of the known ids again, with unchanged values, and as many new ids. It
    removes the new ids whose time is over. So servers work as after training, and answers stay the
    same. `requests` are rows of the log as JSON, `expected` their probabilities.
    """

    def __init__(self, folder: Path, *, events: int, rows: int, seed: int) -> None:
        self.log, self._folder, self._rows = FileLog(folder / "sync"), folder, rows
        generate_drifting(folder / "log.csv", rows=events, days=3, seed=seed)
        features = load_features(folder / "log.csv.yaml")
        rules = FieldRules(ttl=TTL)
        columns = tuple(replace(column, rules=rules) for column in features.categorical)
        self._features = replace(features, categorical=columns)
        run = RunSettings(
            model="deepfm",
            batch_size=_BATCH,
            update="lazy",
            overrides={"embedding_lr": 1e-3, "dense_lr": 1e-3, "init_std": 0.05},
            seed=seed,
        )
        self._trainer = OnlineTrainer(OnlineSettings(run=run), self._features)
        self._events = self._train()
        self._numbers, self._clock = itertools.count(_NEW), 1
        self._write_run()
        self.requests, self.expected = self._make_requests()

    @property
    def num_rows(self) -> int:
        """Ids that have a row."""
        return self._trainer.table.num_rows

    def _train(self) -> Events:
        """Train on the log, at one moment of event time."""
        log = self._folder / "log.csv"
        events = Events.concatenate(list(EventLog([log], self._features)))
        events = replace(events, times=np.ones(len(events), np.int64))
        for first in range(0, len(events), _BATCH):
            self._trainer.train(events.filter(slice(first, first + _BATCH)))
        return events

    def _write_run(self) -> None:
        run = self._folder / "run"
        arrays = {f"trainer.{name}": x for name, x in self._trainer.state().items()}
        save_snapshot(run / "snapshots", 1, arrays, noted(self._features))
        write_json(run / "config.json", online_config(self._trainer.settings, self._features))
        self._generation, self._publisher = 0, None
        self.begin()

    def begin(self) -> None:
        """Begin a generation, as a trainer that has started again; servers load the snapshot."""
        if self._publisher is not None:
            self._publisher.close()
        self._generation += 1
        self._publisher = Publisher(self.log, self._trainer)
        self._publisher.begin(self._generation, str((self._folder / "run").resolve()), 1)
        self._publisher.wait()

    def _make_requests(self) -> tuple[list[JsonObject], npt.NDArray[np.float32]]:
        """The first events of the log; every fourth has an item that nobody has seen."""
        with open(self._folder / "log.csv", encoding="utf-8") as file:
            names, *lines = (line.rstrip("\n").split(",") for line in itertools.islice(file, 2001))
        rows = [dict(zip(names, line, strict=True)) for line in lines]
        requests = [{name: row[name] or None for name in self._features.inputs} for row in rows]
        events = self._events.filter(np.arange(len(self._events)) < len(rows))  # a copy
        column = [c.name for c in self._features.categorical].index("item")
        for i in range(0, len(rows), 4):
            requests[i]["item"], events.ids.values[i, column] = str(-i - 1), -i - 1
        return requests, self._trainer.predict(events)

    def sync(self) -> None:
        """Send the next part of the rows, and wait until the log has them."""
        table, part = self._trainer.table, self._clock % TURNS
        self._clock += 1
        known = self._events.ids.values[part::TURNS]
        most = max(self._rows // 2 // known.shape[1], 1)
        table.admit(known, self._clock)
        new = np.fromiter(self._numbers, np.int64, most * known.shape[1])
        table.admit(new.reshape(most, -1), self._clock)
        looked = 0
        while looked < table.statistics().high_water:
            looked += 100_000
            table.expire(100_000)
        info = {"trained": len(self._events), "event_time": time.time(), "auc": None, "lag": 0}
        self._publisher.sync(
            {**info, "rows": table.num_rows, "position": [0]}, dense=self._clock % 5 == 0
        )
        self._publisher.wait()

    @contextmanager
    def syncing(self, every: float, *, begin_at: int | None = None) -> Iterator[list[float]]:
        """Sync every so many seconds within the block; yields the seconds that each sync took."""
        took: list[float] = []

        def sync() -> None:
            begun = time.perf_counter()
            if len(took) == begin_at:
                self.begin()
            self.sync()
            took.append(time.perf_counter() - begun)

        with repeated(sync, lambda: max(every - (took[-1] if took else 0), 0.01)):
            yield took

    def close(self) -> None:
        """End the publisher's thread."""
        self._publisher.close()

    def bodies(self, events: int, number: int) -> list[bytes]:
        """Bodies of requests with so many events each."""
        first = [i * events % (len(self.requests) - events + 1) for i in range(number)]
        return [json.dumps({"events": self.requests[i : i + events]}).encode() for i in first]


@contextmanager
def repeated(call: Callable[[], None], pause: Callable[[], float]) -> Iterator[None]:
    """Call again and again in a thread within the block, after so many seconds each time.

    Its end raises what has ended the calls: without them, nothing was synced or checked.
    """
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(pause()):
            call()

    with ThreadPoolExecutor(1) as pool:
        calls = pool.submit(run)
        try:
            yield
        finally:
            stop.set()
        calls.result()


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
    """One load."""

    events: int  # of each request
    connections: int  # at one time
    synced: bool = True  # the model is synced meanwhile
    begins: bool = False  # the trainer starts again meanwhile, and the server loads a snapshot


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

    `wrong` counts those that differ by more than 1e-6, and other responses than 503.
    """

    def __init__(self, processes: Processes, log: Path, *options: str) -> None:
        self.answers, self.wrong, self.oldest_sync = 0, 0, 0.0
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        words = ("online", "serve", "--from", str(log), "--port", str(port), *options)
        processes.start_cowclip("server", *words)
        processes.wait_until("the server", self._is_ready, LONGEST_START)

    def _is_ready(self) -> bool:
        with suppress(OSError):
            return self.ask("/ready")[0] == 200
        return False

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
    """Load a server of `cowclip online serve` with wrk while its model is synced.

    DeepFM with an MLP of 400-400-400 is trained on a generated log. Then each sync sends rows with
    unchanged values, new ids, and ids that are gone: the server works as after training, and the
    right answers are known. A client checks answers all the time. The last case has more
    connections than the server answers at one time. The command fails if an answer is wrong or a
    request is lost.
    """
    find_wrk()
    set_up_tensorflow(settings.seed, "cpu")
    with TemporaryDirectory() as name, Processes(Path(name)) as processes:
        folder = Path(name)
        model = SyncedModel(
            folder, events=settings.events, rows=settings.sync_rows, seed=settings.seed
        )
        with closing(model):
            model.sync()
            most = str(settings.max_requests)
            server = Server(processes, folder / "sync", "--max-requests", most)
            return _measure(settings, model, server, folder)


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


LOAD = Benchmark(settings=LoadSettings, measure=measure, text=text)
SUITE = Suite(about=__doc__, script="serving.py", parts={"load": LOAD, "triton": TRITON})

if __name__ == "__main__":
    SUITE.main()
