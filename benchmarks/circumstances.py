"""What the JSON of every benchmark says besides its result, and how a benchmark ends."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cowclip_merlin.system.files import write_json
from cowclip_merlin.system.hardware import hardware
from cowclip_merlin.system.versions import versions


def command_line(script: str, arguments: Sequence[str] | None) -> str:
    """The command; folders from the root on are cut, since they say nothing elsewhere.

    >>> command_line("benchmarks/baseline.py", ["--rows", "9", "--json=/some/where/a.json"])
    'python benchmarks/baseline.py --rows 9 --json=a.json'
    """
    given = sys.argv[1:] if arguments is None else arguments
    words = [re.sub(r"^(--[\w-]+=)?/.*/", r"\1", word) for word in given]
    return shlex.join(["python", f"benchmarks/{Path(script).name}", *words])


def circumstances(
    script: str,
    arguments: Sequence[str] | None,
    load: float,
    *,
    machine: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Command, date, hardware, versions, and how busy the machine was before.

    Args:
        script: `__file__` of the benchmark.
        arguments: those of `main`; None for the process's own.
        load: mean of running processes in the minute before the first measurement.
        machine: the hardware, where TensorFlow is not to be asked for it.
    """
    return {
        "command": command_line(script, arguments),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "load_before": load,
        "hardware": hardware() if machine is None else dict(machine),
        "versions": versions(),
    }


def finish(result: Mapping[str, Any], shown: str, file: Path | None) -> None:
    """Print the result and write it, each even if the other cannot be done.

    Args:
        result: with its circumstances.
        shown: the result as text.
        file: for the JSON; None for none.
    """
    try:
        print(shown)
        print(f"{result['hardware']}, TensorFlow {result['versions'].get('tensorflow')}")
        sys.stdout.flush()
    finally:
        if file is not None:
            write_json(file, result)


def load_now() -> float:
    """Mean of running processes in the last minute."""
    return round(os.getloadavg()[0], 2)
