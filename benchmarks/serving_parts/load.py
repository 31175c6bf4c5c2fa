"""Load a server of `cowclip online serve` with wrk while its model is synced.

    python benchmarks/serving.py load [--seconds 20] [--sync-every 1] [--sync-rows 10000]
        [--events 200000] [--max-requests 64] [--seed 1] [--json FILE] [--overwrite]

DeepFM with an MLP of 400-400-400 is trained on a generated log. Then each sync sends rows with
unchanged values, new ids, and ids that are gone: the server works as after training, and the right
answers are known. A client checks answers all the time. The last case has more connections than
the server answers at one time. The command fails if an answer is wrong or a request is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cowclip_merlin.checks import check_at_least_one, check_positive
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import option
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.types import Json, JsonObject
from harness.benchmark import Benchmark
from harness.tables import markdown
from serving_parts.server import Checker, Server
from serving_parts.synced_model import TTL, SyncedModel
from serving_parts.wrk import find_wrk, load

Result = JsonObject


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """How a server is loaded.

    Attributes:
        seconds: of each case.
        sync_every: seconds between syncs.
        sync_rows: rows of each sync, about.
        events: of the generated log.
        max_requests: that the server answers at one time.
        seed: of the log and the model.

    Raises:
        InputError: a number is not above 0.
    """

    seconds: float = option(20.0, "seconds of each case")
    sync_every: float = option(1.0, "seconds between syncs")
    sync_rows: int = option(10_000, "rows of each sync, about")
    events: int = option(200_000, "events of the generated log")
    max_requests: int = option(64, "requests that the server answers at one time")
    seed: int = option(1, "seed of the log and the model")

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        check_positive({"--seconds": self.seconds, "--sync-every": self.sync_every})
        counts = {"--sync-rows": self.sync_rows, "--max-requests": self.max_requests}
        check_at_least_one({**counts, "--events": self.events})


@dataclass(frozen=True, kw_only=True)
class Case:
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


def cases(settings: LoadSettings) -> list[Case]:
    """All loads, the one above the limit last."""
    return [
        Case(events=1, connections=1, synced=False),
        Case(events=1, connections=1),
        Case(events=1, connections=1, begins=True),
        Case(events=1, connections=8),
        Case(events=64, connections=1),
        Case(events=64, connections=4),
        Case(events=1024, connections=2),
        Case(events=1, connections=3 * settings.max_requests),
    ]


def measure(settings: LoadSettings) -> Result:
    """Run all cases on one server.

    Raises:
        InputError: an answer is wrong, a request is lost, or wrk is not there.
    """
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


def _measure(settings: LoadSettings, model: SyncedModel, server: Server, folder: Path) -> Result:
    for _ in range(TTL + 2):  # until as many ids go as come
        model.sync()
    checker = Checker(server, model.requests, model.expected)
    found = [_run(case, settings, model, server, checker, folder) for case in cases(settings)]
    if checker.wrong or any(each["lost"] for each in found):
        raise InputError(f"{checker.wrong} wrong answers; {found}")
    status = server.ask("GET", "/v1/status")[1]
    if status["model"]["generation"] != 2 or status["log"]["gaps"]:
        raise InputError(f"the server does not follow the new model: {status['log']}")
    del status["log"]["name"]  # a temporary folder
    return {
        "what": "load of a server while its model is synced",
        "rows": model.num_rows,
        "checked_answers": checker.answers,
        "wrong_answers": checker.wrong,
        "cases": found,
        "status": status,
    }


def _run(
    case: Case,
    settings: LoadSettings,
    model: SyncedModel,
    server: Server,
    checker: Checker,
    folder: Path,
) -> Result:
    bodies = model.bodies(case.events, 200)
    checker.oldest_sync = 0.0
    every = settings.sync_every if case.synced else 1e9
    half = int(settings.seconds / settings.sync_every / 2) if case.begins else None
    with model.syncing(every, begin_at=half) as took, checker.checking():
        found = load(
            server.url,
            bodies,
            connections=case.connections,
            seconds=settings.seconds,
            folder=folder,
        )
    answered = found["requests"] - found["errors"]
    return {
        "events": case.events,
        "connections": case.connections,
        "synced": case.synced,
        "begins": case.begins,
        "answered_per_second": round(answered / found["seconds"], 1),
        "events_per_second": round(case.events * answered / found["seconds"]),
        "p50_ms": round(found["p50"], 2),
        "p99_ms": round(found["p99"], 2),
        "max_ms": round(found["max"], 2),
        "answered": answered,
        "refused": found["errors"],
        "lost": found["lost"],
        "syncs": len(took),
        "oldest_sync_seconds": round(checker.oldest_sync, 2),
        "server_megabytes": server.ask("GET", "/v1/status")[1]["memory_megabytes"],
    }


def text(result: Mapping[str, Json]) -> str:
    """The result as a table."""
    head = (
        "events", "connections", "synced", "answers/s", "events/s", "p50, ms", "p99, ms", "max, ms",
        "refused", "oldest sync, s", "memory, MB",
    )  # fmt: skip
    rows = [
        (
            f"{case['events']:,}",
            f"{case['connections']:,}",
            ("yes, new model" if case["begins"] else "yes") if case["synced"] else "no",
            f"{case['answered_per_second']:,.0f}",
            f"{case['events_per_second']:,}",
            f"{case['p50_ms']:.1f}",
            f"{case['p99_ms']:.1f}",
            f"{case['max_ms']:.1f}",
            f"{case['refused']:,}",
            f"{case['oldest_sync_seconds']:.1f}" if case["synced"] else "",
            f"{case['server_megabytes']:,.0f}",
        )
        for case in result["cases"]
    ]
    checked = f"{result['checked_answers']:,} checked answers, {result['wrong_answers']} wrong"
    return f"{markdown(head, 'rrlrrrrrrrr', rows)}\n{checked}; {result['rows']:,} ids with a row"


BENCHMARK = Benchmark(
    script="serving.py load",
    about=__doc__,
    settings=LoadSettings,
    measure=measure,
    text=text,
    device=False,
)
