import os
import signal
import sys
import time

import pytest

from cowclip_merlin.demo.online import processes as module
from cowclip_merlin.demo.online.processes import Processes
from cowclip_merlin.errors import InputError

pytestmark = pytest.mark.system

FOREVER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', flush=True); time.sleep(600)",
]


@pytest.fixture
def processes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 2.0)
    return Processes(tmp_path / "logs")


def is_up(process):
    return process.log.exists() and "up" in process.log.read_text()


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, InputError])
def test_all_end_whatever_happens(processes, error):
    pids = []
    try:
        with processes:
            for name, command in (("a", FOREVER), ("b", STUBBORN)):
                process = processes.start(name, command)
                processes.wait_until(name, lambda: is_up(process), 30)  # noqa: B023
                pids.append(process._popen.pid)
            assert all(map(exists, pids))
            if error:
                raise error("stop")
    except (KeyboardInterrupt, InputError):
        assert error
    assert len(pids) == 2 and not any(map(exists, pids))


def test_a_second_signal_while_they_end(processes, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 60.0)
    with pytest.raises(KeyboardInterrupt), processes:
        process = processes.start("b", STUBBORN)
        processes.wait_until("b", lambda: is_up(process), 30)
        wait, calls = process.wait, []

        def interrupted(seconds):
            calls.append(seconds)
            if len(calls) == 1:
                raise KeyboardInterrupt
            wait(seconds)

        process.wait = interrupted
    assert calls[1:] == [0.0] and not exists(process._popen.pid)


def test_what_a_process_has_started_ends_with_it(processes):
    child = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import "
    child += "time; time.sleep(600)']); print(p.pid, 'up', flush=True); time.sleep(600)"
    with processes:
        process = processes.start("a", [sys.executable, "-c", child])
        processes.wait_until("a", lambda: is_up(process), 30)
        grandchild = int(process.log.read_text().split()[0])
        assert exists(grandchild)
    until = time.monotonic() + 30
    while exists(grandchild) and time.monotonic() < until:  # until init has taken it away
        time.sleep(0.01)
    assert _is_dead(grandchild)


def _is_dead(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_process_that_ends_by_itself_is_an_error_with_its_last_line(processes):
    fails = [sys.executable, "-c", "print('first'); print('no such log\\n'); raise SystemExit(2)"]
    with processes, pytest.raises(InputError, match=r"joiner .*code 2: no such log; "):
        processes.start("joiner", fails)
        processes.wait_until("nothing", lambda: False, 30)


@pytest.mark.parametrize(("code", "is_wrong"), [(0, False), (3, True)])
def test_a_process_that_may_finish(processes, code, is_wrong):
    with processes:
        command = [sys.executable, "-c", f"raise SystemExit({code})"]
        process = processes.start("producer", command, may_finish=True)
        process._popen.wait(30)
        if is_wrong:
            with pytest.raises(InputError, match="producer ended with code 3"):
                processes.check()
        else:
            processes.check()


def test_kill_and_start_again(processes):
    with processes:
        process = processes.start("trainer", FOREVER)
        processes.wait_until("it", lambda: is_up(process), 30)
        assert process.megabytes > 1
        process.kill()
        assert process._popen.returncode == -signal.SIGKILL and process.megabytes == 0
        processes.check()  # it was meant to end
        process.start()
        processes.wait_until("it", lambda: process.log.read_text().count("up") == 2, 30)
        assert process.is_running


def test_waiting_too_long(processes):
    with processes, pytest.raises(InputError, match=r"waited 0 s for the moon; "):
        processes.wait_until("the moon", lambda: False, 0.1)
