"""Time one process: its seconds, peak memory and CPU seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from cowclip_merlin.errors import InputError

COWCLIP = "import sys; from cowclip_merlin.cli import main; sys.exit(main(sys.argv[1:]))"
"""Code for `python -c`: the command `cowclip` of the Python that runs it."""


def timed(
    command: list[str], log: Path, *, folder: Path | None = None
) -> tuple[float, float, float]:
    """Measure the seconds, the peak memory in MB and the CPU seconds of one process.

    Args:
        command: command of the process.
        log: file for its output.
        folder: its working directory; None: that of this process.

    Raises:
        InputError: if the process failed; the message has its last line.
    """
    started = time.perf_counter()
    with log.open("w", encoding="utf-8") as words:
        # In a separate process group, so that only this process receives Ctrl-C.
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=words, start_new_session=True
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    if status:
        last = (log.read_text(encoding="utf-8").strip().splitlines() or ["it printed no error"])[-1]
        raise InputError(f"{log.stem}: a run failed: {last}")
    seconds, cpu = time.perf_counter() - started, usage.ru_utime + usage.ru_stime
    return seconds, usage.ru_maxrss / 1024, cpu
