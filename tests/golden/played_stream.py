"""The files of a stream: joined examples, join state, journal, snapshots, sync topic.

The log comes in two parts, so that the joiner and the trainer stop, and go on, once.
"""

import re
import sqlite3
from pathlib import Path

from record import ROWS, sha

from cowclip_merlin.cli import main
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.sync.sync_message import SyncMessage

JOIN = "join --impressions impressions --actions actions --to examples --features events.csv.yaml"
JOIN += " --window 10min --negatives 0.5 --state join.state --until-end"
TRAIN = "train --from examples --to sync --features events.csv.yaml --out stream --model deepfm"
TRAIN += " --batch-size 64 --mlp 16,16 --seed 7 --max-wait 0 --sync-every 86400 --dense-every 86400"
TRAIN += " --snapshot-every 0 --until-end"
BY_CLOCK = {"metrics.csv", "train.log"}


def record() -> dict[str, str]:
    """Run the stream in the working directory; return name -> SHA-256."""
    generate = f"generate --drift --rows {2 * ROWS} --days 1 --seed 1 --out events.csv"
    assert main(generate.split()) == 0
    with Path("events.csv.yaml").open("a", encoding="utf-8") as features:
        features.write("key: request\n")
    header, *lines = Path("events.csv").read_text(encoding="utf-8").splitlines()
    lines = [f"{line},r{i}" for i, line in enumerate(lines)]
    for number, part in enumerate((lines[:ROWS], lines[ROWS:])):
        file = Path(f"part{number}.csv")
        file.write_text("\n".join([f"{header},request", *part, ""]), encoding="utf-8")
        logs = "--impressions impressions --actions actions --features events.csv.yaml"
        run(f"produce {file} {logs} --delay 30 --seed 7")
        run(JOIN)
        run(TRAIN)
    files = [x for x in Path("stream").rglob("*") if x.is_file() and x.name not in BY_CLOCK]
    found = {f"streams: weights {x}": sha(without_clock(x.read_bytes())) for x in files}
    for log in ("impressions", "actions", "examples"):
        found |= {f"streams: file {x}": sha(x.read_bytes()) for x in Path(log).glob("*.log")}
    found["streams: file join.state"] = state(Path("join.state"))
    return found | {"streams: weights sync": messages("sync")}


def without_clock(data: bytes) -> bytes:
    """The content of a file without the times of steps."""
    return re.sub(rb'"now": \d+', b'"now": 0', data)


def run(arguments: str) -> None:
    """Run a command of `cowclip online`."""
    assert main(["online", *arguments.split()]) == 0, arguments


def state(file: Path) -> str:
    """Hash the tables of a join, with the examples that wait to be written."""
    with sqlite3.connect(file) as connection:
        return sha("\n".join(connection.iterdump()).encode())


def messages(folder: str) -> str:
    """Hash the messages to servers, without times and paths."""
    log = FileLog(folder)
    found = []
    for message in log.read(log.start(), 1 << 20):
        decoded = SyncMessage.decode(message.value)
        info = {k: v for k, v in decoded.info.items() if k not in ("run", "time")}
        arrays = [f"{name} {sha(array.tobytes())}" for name, array in decoded.arrays.items()]
        found.append(f"{decoded.kind} {decoded.generation} {decoded.seq} {info} {arrays}")
    return sha("\n".join(found).encode())
