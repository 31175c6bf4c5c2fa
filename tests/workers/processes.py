"""Starts the workers of one training as processes of this machine."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin.system.processes import free_ports

FOLDER = Path(__file__).parent
ONE_THREAD = dict.fromkeys(
    ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    "1",
)
PORT_TAKEN = "Could not start gRPC server"
ATTEMPTS = 3  # another process may take a port between its choice and its use


@dataclass(frozen=True)
class Ended:
    """A worker that has ended: its exit code (-n after signal n), and all that it printed."""

    code: int
    output: str
    seconds: float  # after the first worker that ended


def run_script(script, *arguments, workers, timeout=3600):
    """Run a script with these words in several workers; all must end with 0."""
    ended = run_workers(workers, [str(x) for x in (script, *arguments)], timeout=timeout)
    assert [each.code for each in ended] == [0] * workers, failures(ended)


def run_calls(folder, cases, commands, rows, *, workers):
    """Let the same workers check the exchanges, train all cases, and run commands; two fit a model.

    Each writes into a folder below `folder`: exchanges, cases, commands, fitted.
    """
    given = [
        ["collectives", [str(folder / "exchanges")]],
        ["trajectories", [str(rows), str(folder / "cases"), cases]],
        *([["user_script", [str(folder / "fitted")]]] if workers == 2 else []),
        ["whole_runs", [str(folder / "commands"), commands]],
    ]
    for name in ("exchanges", "cases", "fitted", "commands"):
        (folder / name).mkdir()
    run_script(FOLDER / "one_after_another.py", json.dumps(given), workers=workers)


def run_killed(arguments, folder, *, workers):
    """Run a command of which the last worker kills itself; write killed.json: how all ended."""
    (folder / "to_be_killed").mkdir()
    command = [{"arguments": arguments, "signal": signal.SIGKILL}]
    call = [["whole_runs", [str(folder / "to_be_killed"), command]]]
    ended = run_workers(workers, [str(FOLDER / "one_after_another.py"), json.dumps(call)])
    (folder / "killed.json").write_text(json.dumps([vars(each) for each in ended]))


def failures(ended):
    """The outputs of the workers that failed, for an assertion."""
    return "\n".join(
        f"--- worker {rank}: exit code {each.code}\n{each.output[-6000:]}"
        for rank, each in enumerate(ended)
        if each.code
    )


def run_workers(workers, arguments, *, timeout=3600, **options):
    """Run Python with these arguments in several workers, and wait for all of them.

    Args:
        workers: number of processes; 1: without TF_CONFIG.
        arguments: of Python.
        timeout: seconds after which all are killed; they print their stacks.
        **options: of `subprocess.Popen`.

    Returns:
        What became of each worker, by rank.
    """
    for attempt in range(ATTEMPTS):
        ended = _run_once(workers, arguments, timeout, options)
        if attempt + 1 == ATTEMPTS or not any(PORT_TAKEN in each.output for each in ended):
            return ended


def _run_once(workers, arguments, timeout, options):
    with ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(workers)]
        started = []
        stack.callback(_kill, started)
        for output, environment in zip(outputs, environments(workers), strict=True):
            started.append(
                subprocess.Popen(
                    [sys.executable, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    **options,
                )
            )
        times = _wait(started, timeout)
        first = min(times)
        return [
            Ended(process.returncode, _text(output), at - first)
            for process, output, at in zip(started, outputs, times, strict=True)
        ]


def environments(workers):
    """The environment of each worker: one thread, no GPU, and who the workers are."""
    usual = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    usual |= ONE_THREAD | {"CUDA_VISIBLE_DEVICES": "", "PYTHONFAULTHANDLER": "1"}
    if workers == 1:
        return [usual]
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    return [
        usual
        | {
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
            )
        }
        for rank in range(workers)
    ]


def _wait(processes, timeout):
    """Wait for all; return when each one ended. After the time-out, abort those that run."""
    times, late = {}, time.monotonic() + timeout
    while len(times) < len(processes):
        for number, process in enumerate(processes):
            if number not in times and process.poll() is not None:
                times[number] = time.monotonic()
        if time.monotonic() > late:
            for process in processes:
                process.send_signal(signal.SIGABRT)  # Python prints the stacks of its threads
            late = float("inf")
        time.sleep(0.05)
    return [times[number] for number in range(len(processes))]


def _kill(processes):
    for process in processes:
        process.kill()
        process.wait()


def _text(file):
    file.seek(0)
    return file.read().decode(errors="replace")
