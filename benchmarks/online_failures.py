"""Kill the parts of online training with SIGKILL at random moments, and check what is left.

    python benchmarks/online_failures.py [--kills 8] [--rate 1000] [--seed 1] [--files]
        [--json FILE] [--overwrite]

A generated stream goes through joiner and trainer to two servers. The logs are in a Redis server
that appends to a file; with `--files` they are in files. One after the other, the trainer, a
server, the joiner and Redis are killed at a random moment and started again. After each kill the
command waits until both servers have what came after it. Then it pauses the trainer, and both
servers must answer 10,000 requests equally, up to 1e-6. All the time the other server gets
requests, and must answer all of them.

At the end the trainer is asked to stop, and writes a snapshot. A model of this process that loads
it must answer 10,000 requests as the servers do, up to 1e-6. Each impression whose window is over
must have an example, and the trainer must have trained each example once. The command fails if not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cowclip_merlin.checks import check_at_least_one, check_positive
from cowclip_merlin.errors import InputError
from cowclip_merlin.system.hardware import processor
from harness.benchmark import Benchmark
from harness.options import option
from harness.tables import markdown
from online_service.failures import MOST_DIFFERENCE, FailureSettings, Result, measure_failures


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is killed.

    Attributes:
        kills: processes to kill.
        rate: impressions per second.
        seed: of the moments and of the stream.
        files: keep the logs in files; Redis is not killed then.

    Raises:
        InputError: a number is out of range.
    """

    kills: int = option(8, "processes to kill")
    rate: float = option(1000.0, "impressions per second")
    seed: int = option(1, "seed of the moments and of the stream")
    files: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        check_at_least_one({"--kills": self.kills})
        check_positive({"--rate": self.rate})


def add_options(parser: Any) -> None:
    parser.add_argument("--files", action="store_true", help="logs in files instead of Redis")


def measure(settings: Settings) -> Result:
    """Kill, and compare what is left.

    Raises:
        InputError: a part has failed by itself, or did not come back.
    """
    failures = FailureSettings(
        kills=settings.kills, rate=settings.rate, seed=settings.seed, redis=not settings.files
    )
    with TemporaryDirectory() as folder:
        result = measure_failures(failures, Path(folder))
    return {"what": "kill -9 of the parts of online training", "hardware": processor()} | result


def check(result: Result) -> None:
    """Raise an error if something was lost, or a server answers otherwise than the model."""
    accounts = result["accounts"]
    wrong = [each for each in result["kills"] if each["difference"] > MOST_DIFFERENCE]
    if wrong or result["offline_difference"] > MOST_DIFFERENCE:
        raise InputError(f"the servers differ: {wrong}, offline {result['offline_difference']}")
    if accounts["lost"] or accounts["trained"] + accounts["repeated"] != accounts["examples"]:
        raise InputError(f"events were lost or trained twice: {accounts}")
    if result["unanswered"]:
        raise InputError(f"{result['unanswered']} requests to the other server had no answer")


def text(result: Result) -> str:
    """A line for each kill, and the sums."""
    rows = [
        [
            each["killed"],
            f"{each['after']:.1f}",
            f"{each['back']:.1f}",
            f"{each['difference']:.1e}",
        ]
        for each in result["kills"]
    ]
    head = ["killed", "after, s", "served again after, s", "servers differ by"]
    accounts = result["accounts"]
    return "\n".join(
        [
            markdown(head, "lrrr", rows),
            f"served = offline up to {result['offline_difference']:.1e} on "
            f"{result['requests_compared']:,} requests",
            f"{accounts['lost']} of {accounts['due']:,} impressions without an example; "
            f"{accounts['trained']:,} events trained of {accounts['examples']:,} examples, "
            f"{accounts['repeated']:,} of them repeats",
            f"{result['answered']:,} requests answered by the server that was not killed, "
            f"{result['unanswered']} not",
        ]
    )


BENCHMARK = Benchmark(
    script=__file__,
    about=__doc__,
    settings=Settings,
    measure=measure,
    text=text,
    device=False,
    add_options=add_options,
    read_options=lambda args: {"files": args.files},
    check=check,
)

if __name__ == "__main__":
    BENCHMARK.main()
