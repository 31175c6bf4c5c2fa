"""Signals to the launcher, and its death."""

import os
import signal
import subprocess
import sys

import pytest
from fake_workers import is_alive, wait_until

pytestmark = pytest.mark.system

LAUNCHER = """
import sys
from cowclip_merlin.launcher import LaunchSettings, Patience, TrainCall, launch
from cowclip_merlin.system.signals import exit_on_sigterm
from cowclip_merlin.training import Stopped

folder, *command = sys.argv[1:]
call = TrainCall(data=folder, settings={}, out=folder + "/run")
try:
    with exit_on_sigterm():
        processes = LaunchSettings(workers=2, restarts=3)
        launch(call, processes, command=command, patience=Patience(grace=30))
except Stopped as stop:
    print("stopped by", stop.signal_number)
except KeyboardInterrupt:
    print("interrupted")
assert not {"tensorflow", "keras", "merlin"} & set(sys.modules)
"""

CATCH = """
def caught(number, _):
    (here / f"caught-{rank}-{number}-{time.monotonic()}").touch()
signal.signal(signal.SIGINT, caught)
signal.signal(signal.SIGTERM, caught)
(here / f"ready-{rank}").touch()
"""


@pytest.fixture
def start(fake):
    """Starts a launcher in a process of its own, as a shell does; yields when its workers run."""
    started = []

    def begin(body):
        words = [sys.executable, "-c", LAUNCHER, str(fake.folder), *fake.command(CATCH + body)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        started.append(process)
        wait_until(lambda: len(list(fake.folder.glob("ready-*"))) == 2, "both workers")
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def caught(fake, rank, number):
    return len(list(fake.folder.glob(f"caught-{rank}-{number}-*")))


@pytest.mark.quick
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_goes_once_to_every_worker_which_may_finish(fake, start, number):
    body = (
        "while not list(here.glob(f'caught-{rank}-*')):\n    time.sleep(0.01)\n"
        f"wait_for('go')\ncheckpoint()\nsys.exit(128 + {int(number)})"
    )
    launcher = start(body)
    launcher.send_signal(number)
    wait_until(lambda: caught(fake, 0, number) and caught(fake, 1, number), "the signal")
    assert launcher.poll() is None, "it waits"
    fake.say("go")
    assert launcher.communicate(timeout=300)[0] == f"stopped by {int(number)}\n"
    assert caught(fake, 0, number) == caught(fake, 1, number) == 1
    assert len(fake.pids()) == 2, "a signal of the user is no reason to restart"


def test_a_second_signal_kills(fake, start):
    launcher = start("forever()")
    launcher.send_signal(signal.SIGINT)
    wait_until(lambda: caught(fake, 0, 2) and caught(fake, 1, 2), "the signal")
    launcher.send_signal(signal.SIGINT)
    assert launcher.communicate(timeout=300)[0] == "interrupted\n"
    assert not any(map(is_alive, fake.pids()))


def test_sigterm_without_a_checkpoint_is_143(fake, start):
    launcher = start("while not list(here.glob(f'caught-{rank}-*')):\n    time.sleep(0.01)\n"
                     "sys.exit(143)")  # fmt: skip
    launcher.send_signal(signal.SIGTERM)
    assert launcher.communicate(timeout=300)[0] == ""
    assert launcher.returncode == 143


def test_a_failure_while_stopping_is_named_and_not_repeated(fake, start):
    body = (
        "while not list(here.glob(f'caught-{rank}-*')):\n    time.sleep(0.01)\n"
        "sys.exit(7 if rank else 130)"
    )
    launcher = start(body)
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=300)
    assert launcher.returncode == 1, "WorkerLost"
    assert len(fake.pids()) == 2


def test_a_signal_after_the_end_of_the_training_is_no_stop(fake, start):
    launcher = start("while not list(here.glob(f'caught-{rank}-*')):\n    time.sleep(0.01)\n")
    launcher.send_signal(signal.SIGINT)
    assert launcher.communicate(timeout=300)[0] == "" and launcher.returncode == 0


def test_ctrl_c_in_a_terminal_reaches_the_workers_only_through_the_launcher(fake, start):
    launcher = start("wait_for('go')")
    for pid in fake.pids():
        assert os.getpgid(pid) == pid != os.getpgid(0)
    fake.say("go")
    assert launcher.communicate(timeout=300)[0] == "" and launcher.returncode == 0


def test_no_worker_outlives_a_killed_launcher(fake, start):
    launcher = start("forever()")
    assert len(fake.pids()) == 2 and all(map(is_alive, fake.pids()))
    launcher.kill()
    wait_until(lambda: not any(map(is_alive, fake.pids())), "the end of the workers")


def test_restarts_end_too_when_the_launcher_is_killed(fake, start):
    launcher = start("if attempt == 0: sys.exit(1)\nforever()")
    wait_until(lambda: len(fake.pids()) == 4, "the second attempt")
    launcher.kill()
    wait_until(lambda: not any(map(is_alive, fake.pids())), "the end of the workers")
