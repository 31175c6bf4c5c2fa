"""What a benchmark's JSON says besides its numbers."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cowclip_merlin.bench import hardware
from cowclip_merlin.errors import InputError
from cowclip_merlin.training.records import versions


def command_line(script: str, arguments: Sequence[str] | None) -> str:
    """The command; folders from the root on are cut, since they say nothing elsewhere.

    >>> command_line("benchmarks/baseline.py", ["--rows", "9", "--json=/some/where/a.json"])
    'python benchmarks/baseline.py --rows 9 --json=a.json'
    """
    given = sys.argv[1:] if arguments is None else arguments
    words = [re.sub(r"^(--[\w-]+=)?/.*/", r"\1", word) for word in given]
    return shlex.join(["python", f"benchmarks/{Path(script).name}", *words])


def circumstances(script: str, arguments: Sequence[str] | None, load: float) -> dict[str, Any]:
    """Command, date, hardware, versions, and how busy the machine was before.

    Args:
        script: `__file__` of the benchmark.
        arguments: those of `main`; None for the process's own.
        load: mean of running processes in the minute before the first measurement.
    """
    return {
        "command": command_line(script, arguments),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "load_before": load,
        "hardware": hardware(),
        "versions": versions(),
    }


def load_now() -> float:
    """Mean of running processes in the last minute."""
    return round(os.getloadavg()[0], 2)


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers between commas.

    Raises:
        InputError: it is something else.

    >>> numbers("8,1_000")
    (8, 1000)
    """
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} is no list of whole numbers like 8,16,32") from None
