"""Compare the speed of two versions of this project: this one and another checkout.

The other checkout has its environment in DIR/.venv (`make venv` there). Each case is a process, and
the versions alternate. The CPU seconds of a case include its imports. `start` is the help of a
command. `decode` makes ids of joined examples, with the public function for requests. Both versions
read the same generated logs.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.types import JsonObject
from harness import COWCLIP, Benchmark, in_turn, markdown, ratios, run_timed, spread

DECODE = """
import json
import cowclip_merlin as cc
log, features = cc.online.open_log("examples"), cc.online.load_features("../events.csv.yaml")
rows = [json.loads(message.value) for message in log.read(log.start(), 1 << 30)]
assert rows
for start in range(0, len(rows), 1024):
    assert not cc.online.encode_requests(rows[start : start + 1024], features).damaged
"""
LOGS = "--impressions impressions --actions actions --features ../events.csv.yaml"
CASES = {
    "start": "online train --help",
    "bench": "bench --update exact --clip cowclip --batch-sizes 1024 --vocabulary 100000 "
    "--rounds 1 --device cpu",
    "prepare": "prepare criteo ../criteo.txt --out prepared",
    "produce": f"online produce ../events.csv {LOGS} --delay 30 --seed 7",
    "join": f"online join {LOGS} --to examples --window 10min --state join.state --until-end",
    "decode": "",
    "online": "online train --from examples --features ../events.csv.yaml --out stream "
    "--model deepfm --mlp 16,16 --batch-size 1024 --seed 7 --snapshot-every 0 --until-end",
}
"""Case -> arguments of `cowclip`."""

NEEDS = {"join": "produce", "decode": "join", "online": "join"}
"""Case -> the one whose logs it reads."""


@dataclass(frozen=True, kw_only=True)
class VersionsSettings(Settings):
    """What is compared."""

    against: Path = option(help="folder of the other checkout", metavar="DIR")
    rows: int = option(100_000, "of the generated logs", at_least=1)
    runs: int = option(5, "of each case and version", at_least=1)
    cases: tuple[str, ...] = option(
        tuple(CASES), "what is run, in this order", choices=tuple(CASES), metavar="A,B",
        unique=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Check each value, what the cases need, and the other environment."""
        super().__post_init__()
        for i, case in enumerate(self.cases):
            if case in NEEDS and NEEDS[case] not in self.cases[:i]:
                raise InputError(f"--cases: {case} reads what {NEEDS[case]} writes; put that first")
        if not self.python.exists():
            raise InputError(f"{self.python} is missing: run `make venv` in that folder")

    @property
    def python(self) -> Path:
        """The Python of the other checkout."""
        return self.against.resolve() / ".venv" / "bin" / "python"


def measure(settings: VersionsSettings) -> JsonObject:
    """Run every case of both versions in turn, in folders of their own."""
    pythons = {"this": sys.executable, "other": str(settings.python)}
    with TemporaryDirectory() as name:
        work = Path(name)
        events = ("--seed", "1", "--drift", "--days", "1")
        for log, more in {"criteo.txt": ("--seed", "11"), "events.csv": events}.items():
            words = ["generate", "--out", str(work / log), "--rows", str(settings.rows), *more]
            run_timed([sys.executable, "-c", COWCLIP, *words], work / "log.txt")
        _add_keys(work / "events.csv")
        runs = {
            (case, who): partial(_run, case, python, work / who, first=case == settings.cases[0])
            for case in settings.cases
            for who, python in pythons.items()
        }
        found = in_turn(runs, settings.runs)
    return {
        "rows": settings.rows,
        "commits": {"this": _commit(Path(__file__).parent), "other": _commit(settings.against)},
        "cases": {case: {who: found[case, who] for who in pythons} for case in settings.cases},
    }


def _add_keys(log: Path) -> None:
    """Give the events keys, to which clicks refer."""
    header, *lines = log.read_text(encoding="utf-8").splitlines()
    keyed = [f"{header},request", *(f"{line},r{i}" for i, line in enumerate(lines)), ""]
    log.write_text("\n".join(keyed), encoding="utf-8")
    with log.with_name(f"{log.name}.yaml").open("a", encoding="utf-8") as features:
        features.write("key: request\n")


def _run(case: str, python: str, folder: Path, *, first: bool) -> JsonObject:
    """Run a case once; the first one of a round begins with an empty folder."""
    if first:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    code = ["-c", COWCLIP, *CASES[case].split()] if CASES[case] else ["-c", DECODE]
    log = folder.parent / f"{folder.name} {case}.log"
    seconds, peak, cpu = run_timed([python, *code], log, folder=folder)
    return {"cpu_seconds": round(cpu, 2), "seconds": round(seconds, 2), "peak_mb": round(peak)}


def _commit(folder: Path) -> str:
    """Return the commit of a checkout, with a sign for files that differ from it."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def text(result: JsonObject) -> str:
    """Return the medians of both versions, and the ratio of each round, as a Markdown table."""
    rows = []
    for case, found in result["cases"].items():
        for unit, digits in (("cpu_seconds", 2), ("peak_mb", 0)):
            both = [[each[unit] for each in found[who]] for who in ("this", "other")]
            medians = [f"{statistics.median(each):,.{digits}f}" for each in both]
            rows.append([case, unit.replace("_", " "), *medians, spread(ratios(*both), 2)])
    return markdown(("case", "what", "this", "other", "this / other"), "llrrr", rows)


BENCHMARK = Benchmark(about=__doc__, settings=VersionsSettings, measure=measure, text=text)

if __name__ == "__main__":
    BENCHMARK.main()
