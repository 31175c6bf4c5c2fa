"""Speeds of one log: appends, reads, sync messages, and the way there and back."""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from cowclip_merlin.online.logs.message_log import MessageLog, Position
from cowclip_merlin.online.logs.open_log import open_log
from cowclip_merlin.online.sync.sync_message import ROWS, SyncMessage
from cowclip_merlin.types import JsonObject

Result = JsonObject
MESSAGE_BYTES = 200
DIMENSIONS = (10, 1)
"""Widths of the embedding tables: 11 numbers for each row."""
AT_ONCE = 8  # sync messages in an append
MOST = 4096  # messages in a read

_numbers = itertools.count()


def new_address(address: str) -> str:
    """Return the address of a log beside this one that nobody has used."""
    place, question, options = address.partition("?")
    return f"{place}-{os.getpid()}-{next(_numbers)}{question}{options}"


def remove(log: MessageLog, address: str) -> None:
    """Remove the messages of a log, so that the next measurement finds as much memory."""
    if "://" not in address:
        shutil.rmtree(address)
    elif not address.startswith("kafka"):
        log.trim(log.end())
    log.close()


def messages(address: str, batch: int, seconds: float) -> Result:
    """Measure appends and reads of small messages.

    Args:
        address: of a log.
        batch: messages in an append.
        seconds: of appending.
    """
    values = [os.urandom(MESSAGE_BYTES)] * batch
    appended, read = _there_and_back(address, lambda: values, seconds)
    return {"appended_per_second": round(appended), "read_per_second": round(read)}


def sync_rows(address: str, rows: int, seconds: float) -> Result:
    """Measure how fast rows are published and followed, with their encoding and decoding.

    Args:
        address: of a log.
        rows: in a message.
        seconds: of publishing.
    """
    rng = np.random.default_rng(1)
    tables = [rng.normal(size=(rows, d)).astype(np.float32) for d in DIMENSIONS]
    arrays = {"fields": np.arange(rows), "ids": rng.integers(0, 1 << 62, rows)}
    arrays |= {f"table{i}": x for i, x in enumerate(tables)}

    def encoded() -> list[bytes]:
        made = (
            SyncMessage(kind=ROWS, generation=1, seq=i, info={"absent": 0}, arrays=arrays)
            for i in range(AT_ONCE)
        )
        return [message.encode() for message in made]

    appended, read = _there_and_back(address, encoded, seconds, SyncMessage.decode)
    size = len(encoded()[0])
    return {
        "published_rows_per_second": round(appended * rows),
        "followed_rows_per_second": round(read * rows),
        "message_bytes": size,
    }


def _there_and_back(
    address: str,
    make: Callable[[], Sequence[bytes]],
    seconds: float,
    take: Callable[[bytes], object] = len,
) -> tuple[float, float]:
    """Append for some seconds, and read all of it; return messages per second of both."""
    address = new_address(address)
    log = open_log(address, create=True)
    start, count = log.append([b"first"]), 0  # outside the clock: connections are made
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        values = make()
        log.append(values)
        count += len(values)
    log.append([b"last"])
    reader = open_log(address)
    reader.read(reader.start(), 1)
    began = time.perf_counter()
    _read(reader, start, count, take)
    read = count / (time.perf_counter() - began)
    reader.close()
    remove(log, address)
    return count / spent, read


def _read(log: MessageLog, position: Position, count: int, take: Callable[[bytes], object]) -> None:
    while count > 0:
        found = log.read(position, min(MOST, count), wait=5)
        for message in found:
            take(message.value)
        position, count = found[-1].after, count - len(found)


def echo(there: str, back: str) -> None:
    """Answer each message of one log in another one, until an empty message comes."""
    reader, writer = open_log(there, create=True), open_log(back, create=True)
    position = reader.start()
    writer.append([b"ready"])
    while True:
        for message in reader.read(position, MOST, wait=60):
            position = message.after
            if not message.value:
                return
            writer.append([message.value])


def round_trips(address: str, count: int) -> Result:
    """Measure the time until another process's answer to one message is there.

    Args:
        address: of a log.
        count: messages, one after the other.
    """
    there, back = new_address(address), new_address(address)
    writer, reader = (open_log(each, create=True) for each in (there, back))
    code = "import sys; from log_speeds.measurements import echo; echo(*sys.argv[1:])"
    folder = Path(__file__).parents[1]
    other = subprocess.Popen(
        [sys.executable, "-c", code, there, back],
        env=os.environ | {"PYTHONPATH": str(folder)},
    )
    position = reader.read(reader.start(), 1, wait=60)[0].after
    times = []
    for number in range(count):
        began = time.perf_counter()
        writer.append([b"%d" % number])
        position = reader.read(position, 1, wait=60)[0].after
        times.append(1e3 * (time.perf_counter() - began))
    writer.append([b""])
    other.wait(60)
    for log, each in ((writer, there), (reader, back)):
        remove(log, each)
    times = sorted(times[count // 10 :])  # the first ones make connections
    return {
        "median_ms": round(statistics.median(times), 3),
        "p99_ms": round(times[int(0.99 * len(times))], 3),
    }
