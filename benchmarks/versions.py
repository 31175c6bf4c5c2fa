"""Compare the speed of two versions of this project: this one and another checkout.

    python benchmarks/versions.py --against DIR [--rows 100000] [--runs 5]
        [--cases prepare] [--json FILE] [--overwrite]

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

from cowclip_merlin.checks import check_at_least_one, check_unique, one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import option, parse_names
from cowclip_merlin.types import JsonObject
from harness.benchmark import Benchmark
from harness.processes import COWCLIP, timed
from harness.rounds import in_turn, ratios
from harness.tables import markdown

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
class VersionsSettings:
    """What is compared.

    Attributes:
        against: folder of the other checkout.
        rows: rows of the generated logs.
        runs: runs of each case and version.
        cases: what is run, of `CASES`.

    Raises:
        InputError: if a number is out of range, or the other checkout has no environment.
    """

    against: Path = option(help="folder of the other checkout", metavar="DIR")
    rows: int = option(100_000, "of the generated logs")
    runs: int = option(5, "of each case and version")
    cases: tuple[str, ...] = option(tuple(CASES), "what is run, in this order", convert=parse_names)

    def __post_init__(self) -> None:
        """Reject what cannot be compared."""
        check_at_least_one({"--rows": self.rows, "--runs": self.runs})
        for case in self.cases:
            one_of("--cases", case, CASES)
        check_unique({"--cases": self.cases})
        for i, case in enumerate(self.cases):
            if case in NEEDS and NEEDS[case] not in self.cases[:i]:
                raise InputError(f"--cases: {case} reads what {NEEDS[case]} writes; put that first")
        if not _python(self.against).exists():
            raise InputError(f"{_python(self.against)} is missing: run `make venv` in that folder")


def _python(folder: Path) -> Path:
    return folder.resolve() / ".venv" / "bin" / "python"


def measure(settings: VersionsSettings) -> JsonObject:
    """Run every case of both versions in turn, in folders of their own."""
    pythons = {"this": sys.executable, "other": str(_python(settings.against))}
    with TemporaryDirectory() as work:
        logs = {
            "criteo.txt": ["--seed", "11"],
            "events.csv": ["--seed", "1", "--drift", "--days", "1"],
        }
        for name, more in logs.items():
            out = ["--out", str(Path(work) / name), "--rows", str(settings.rows)]
            timed([sys.executable, "-c", COWCLIP, "generate", *out, *more], Path(work) / "log.txt")
        _add_keys(Path(work) / "events.csv")
        runs = {
            (case, version): partial(
                _run, case, python, Path(work) / version, first=case == settings.cases[0]
            )
            for case in settings.cases
            for version, python in pythons.items()
        }
        found = in_turn(runs, settings.runs, progress=True)
    cases = {
        case: {version: found[case, version] for version in pythons} for case in settings.cases
    }
    commits = {"this": _commit(Path(__file__).parent), "other": _commit(settings.against)}
    return {"rows": settings.rows, "commits": commits, "cases": cases}


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
    seconds, peak, cpu = timed([python, *code], log, folder=folder)
    return {"cpu_seconds": round(cpu, 2), "seconds": round(seconds, 2), "peak_mb": round(peak)}


def _commit(folder: Path) -> str:
    """Return the commit of a checkout, with a sign for files that differ from it."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def text(result: JsonObject) -> str:
    """Return the medians of both versions, and the ratio of each round, as a Markdown table."""
    rows = []
    for case, versions in result["cases"].items():
        for unit, digits in (("cpu_seconds", 2), ("peak_mb", 0)):
            this, other = ([each[unit] for each in versions[who]] for who in ("this", "other"))
            medians = [f"{statistics.median(each):,.{digits}f}" for each in (this, other)]
            share = sorted(ratios(this, other))
            spread = f"{statistics.median(share):.2f} ({share[0]:.2f} to {share[-1]:.2f})"
            rows.append([case, unit.replace("_", " "), *medians, spread])
    head = ("case", "what", "this", "other", "this / other")
    return markdown(head, "llrrr", rows)


BENCHMARK = Benchmark(
    script=__file__,
    about=__doc__,
    settings=VersionsSettings,
    measure=measure,
    text=text,
    device=False,
)

if __name__ == "__main__":
    BENCHMARK.main()
