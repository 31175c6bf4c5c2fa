"""Speed of message logs: in files, in Redis Streams and in Kafka.

    python benchmarks/message_logs.py [--logs FOLDER,redis://HOST/NAME,kafka://HOST/NAME]
        [--batches 1 100 4096] [--rows 1024 4096] [--seconds 0.5] [--round-trips 300]
        [--rounds 3] [--json FILE] [--overwrite]

Start the servers first; docs/production.md says how. The benchmark makes new logs beside the
addresses in --logs: other names, which begin with theirs.

- messages of 200 bytes, `--batches` of them in an append, and reads of at most 4,096
- sync messages of `--rows` rows of 11 numbers, 8 in an append, with encoding and decoding
- there and back: one message, and the answer of another process in another log

Nothing waits for a disk: a power failure may cost the newest messages. Medians of the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from cowclip_merlin.checks import check_at_least_one
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import option
from harness.benchmark import Benchmark
from harness.rounds import in_turn
from harness.tables import markdown
from log_speeds.measurements import Result, messages, round_trips, sync_rows


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """What is measured.

    Attributes:
        logs: addresses.
        batches: messages in an append.
        rows: rows in a sync message.
        seconds: of appending in each measurement.
        round_trips: messages there and back.
        rounds: of all measurements.

    Raises:
        InputError: a number is too small.
    """

    logs: tuple[str, ...] = option(("build/bench-log",), "addresses of logs")
    batches: tuple[int, ...] = option((1, 100, 4096), "messages in an append", nargs="+")
    rows: tuple[int, ...] = option((1024, 4096), "rows in a sync message", nargs="+")
    seconds: float = option(0.5, "seconds of appending in each measurement")
    round_trips: int = option(300, "messages there and back")
    rounds: int = option(3, "rounds of all measurements")

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        numbers = {"--batches": self.batches, "--rows": self.rows, "--rounds": self.rounds}
        check_at_least_one(numbers)
        if self.round_trips < 10:
            raise InputError(f"--round-trips is {self.round_trips}: give at least 10")
        if not 0 < self.seconds < 3600:
            raise InputError(f"--seconds is {self.seconds}: give a number above 0 and below 3600")


def cases(settings: LogSettings) -> dict[tuple[str, str, int], Callable[[], Result]]:
    """All measurements, by log, name and size."""
    found: dict[tuple[str, str, int], Callable[[], Result]] = {}
    for log in settings.logs:
        for n in settings.batches:
            found[log, "messages", n] = lambda log=log, n=n: messages(log, n, settings.seconds)
        for n in settings.rows:
            found[log, "sync rows", n] = lambda log=log, n=n: sync_rows(log, n, settings.seconds)
        found[log, "there and back", 1] = lambda log=log: round_trips(log, settings.round_trips)
    return found


def measure(settings: LogSettings) -> Result:
    """All of it."""
    turns = in_turn(cases(settings), settings.rounds, progress=True)
    results = []
    for (log, what, size), values in turns.items():
        median = {key: statistics.median(value[key] for value in values) for key in values[0]}
        results.append({"log": _shown(log), "what": what, "size": size, **median, "rounds": values})
    return {"what": "message logs", "results": results}


def text(result: Result) -> str:
    """The results as text: a table for each kind of measurement."""
    parts = []
    for what, columns in COLUMNS.items():
        rows = [
            (r["log"], f"{r['size']:,}", *(_number(r[key]) for key in columns.values()))
            for r in result["results"]
            if r["what"] == what
        ]
        head = (what, SIZES[what], *columns)
        parts.append(markdown(head, "lr" + "r" * len(columns), rows))
    return "\n\n".join(parts)


def _shown(log: str) -> str:
    """Return the kind of a log and its name on its server, which may tell how it is set up.

    >>> _shown("redis://:secret@127.0.0.1:6379/everysec"), _shown("build/bench-log")
    ('redis everysec', 'files')
    """
    kind, found, address = log.partition("://")
    return f"{kind} {address.rpartition('/')[2].partition('?')[0]}" if found else "files"


def _number(value: float | str | None) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


SIZES = {
    "messages": "messages in an append",
    "sync rows": "rows in a message",
    "there and back": "messages",
}
COLUMNS = {
    "messages": {"appended/s": "appended_per_second", "read/s": "read_per_second"},
    "sync rows": {
        "published rows/s": "published_rows_per_second",
        "followed rows/s": "followed_rows_per_second",
    },
    "there and back": {"median, ms": "median_ms", "99th percentile, ms": "p99_ms"},
}

BENCHMARK = Benchmark(
    script=__file__,
    about=__doc__,
    settings=LogSettings,
    measure=measure,
    text=text,
    device=False,
)

if __name__ == "__main__":
    BENCHMARK.main()
