"""Child processes end with their parent, and with all that they have started."""

import os
import subprocess
import sys
import time

import pytest

from cowclip_merlin.system.processes import start, wait_for, wait_or_kill

pytestmark = pytest.mark.system

FAMILY = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, "up", flush=True)
time.sleep(600)
"""
PARENT = """
import os, sys
from cowclip_merlin.system.processes import start
print(start([sys.executable, "-c", "import time; time.sleep(600)"], stdout=1).pid, flush=True)
os.kill(os.getpid(), 9)
"""


def ends(pid):
    """Whether a process that is no child of this one ends within some time."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def test_a_stubborn_process_is_killed_with_what_it_has_started(tmp_path):
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = start([sys.executable, "-c", FAMILY], stdout=file)
    assert wait_for(lambda: out.read_text().endswith("up\n"), process, 30)
    process.terminate()
    wait_or_kill(process, 0.2)
    assert process.returncode == -9 and ends(int(out.read_text().split()[0]))


def test_it_ends_with_its_parent():
    command = [sys.executable, "-c", PARENT]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -9 and ends(int(done.stdout))


def test_waiting_ends_with_the_process(tmp_path):
    options = {"folder": tmp_path, "environment": os.environ | {"CODE": "3"}}
    code = "import os; print(os.getcwd(), flush=True); os._exit(int(os.environ['CODE']))"
    process = start([sys.executable, "-c", code], stdout=subprocess.PIPE, **options)
    assert wait_for(lambda: False, process, 30) is None
    assert process.communicate() == (f"{tmp_path}\n".encode(), None) and process.returncode == 3


def test_waiting_ends_after_some_time():
    process = start([sys.executable, "-c", "import time; time.sleep(600)"], stdout=2)
    assert wait_for(lambda: False, process, 0.05) is None and process.poll() is None
    wait_or_kill(process, 0)


def test_a_missing_program_ends_with_an_error():
    process = start(["no-such-program"], stdout=subprocess.PIPE)
    assert b"No such file" in process.communicate(timeout=30)[0] and process.returncode == 1
