"""Make and write the JSON record of a measurement: result, command, machine and versions."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from cowclip_merlin.system.files import write_json
from cowclip_merlin.system.machine import hardware, versions
from cowclip_merlin.types import Json, JsonObject


def command_line(script: str, arguments: Sequence[str] | None) -> str:
    """Return the command without absolute folders, which other machines do not have.

    Users and passwords of addresses are left out, too.

    >>> command_line("benchmarks/baseline.py", ["--rows", "9", "--json=/some/where/a.json"])
    'python benchmarks/baseline.py --rows 9 --json=a.json'
    >>> command_line("step.py loading", [])
    'python benchmarks/step.py loading'
    >>> command_line("benchmarks/message_logs.py", ["--logs", "/tmp/a,redis://:secret@host/b"])
    'python benchmarks/message_logs.py --logs a,redis://host/b'
    """
    given = sys.argv[1:] if arguments is None else arguments
    words = [",".join(map(_shared, word.split(","))) for word in given]
    name, *part = Path(script).name.split(" ")
    return shlex.join(["python", f"benchmarks/{name}", *part, *words])


def _shared(value: str) -> str:
    """Return a value without what belongs to this machine or user."""
    value = re.sub(r"^(--[\w-]+=)?/.*/", r"\1", value)
    return re.sub(r"://[^/]*@", "://", value)


def record(
    result: Mapping[str, Json], *, script: str, arguments: Sequence[str] | None, load: float
) -> JsonObject:
    """Add command, date, load of the machine, hardware and versions to a result.

    Args:
        result: result of the measurement; it may have "hardware" and more "versions".
        script: `__file__` of the benchmark, or the name of its script and its first word there.
        arguments: arguments of `main`; None: those of the process.
        load: load of the machine before the measurement; see `load_average`.
    """
    return {
        **result,
        "load_before": load,
        "command": command_line(script, arguments),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "hardware": result["hardware"] if "hardware" in result else hardware(),
        "versions": versions() | result.get("versions", {}),
    }


def print_and_write(recorded: Mapping[str, Json], text: str, file: Path | None) -> None:
    """Print a result and write it; if printing fails, the file is still written.

    Args:
        recorded: result of `record`.
        text: text to print.
        file: JSON file; None: write no file.
    """
    try:
        print(text)
        print(f"{recorded['hardware']}, TensorFlow {recorded['versions'].get('tensorflow')}")
        sys.stdout.flush()
    finally:
        if file is not None:
            write_json(file, recorded)


def load_average() -> float:
    """Return the mean number of running processes in the last minute."""
    return round(os.getloadavg()[0], 2)
