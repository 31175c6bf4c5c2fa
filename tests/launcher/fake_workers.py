"""Workers that are short scripts: they take milliseconds to start, and fail as a test wants."""

import sys
import time
from pathlib import Path

from cowclip_merlin.launcher import LaunchSettings, TrainCall, launch

PRELUDE = """
import json, os, signal, sys, time
from pathlib import Path
config = json.loads(os.environ["TF_CONFIG"])
addresses, rank = config["cluster"]["worker"], config["task"]["index"]
call = json.loads(os.environ["COWCLIP_TRAIN_CALL"])
here, out = Path(__file__).parent, Path(call["out"])
(here / f"pid-{rank}-{os.getpid()}").touch()
attempt = len(list(here.glob(f"pid-{rank}-*"))) - 1
def checkpoint():
    (out / "checkpoints" / "1").mkdir(parents=True, exist_ok=True)
def wait_for(name):
    while not (here / name).exists():
        time.sleep(0.01)
def forever():
    while True:
        time.sleep(0.1)
"""


def wait_until(condition, what, seconds=300):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it ends now
        return False
    return state != "Z"


class Fake:
    """A script that runs as every worker, and the processes that it has become."""

    def __init__(self, folder):
        self.folder = folder
        self.script = folder / "worker.py"
        self.call = TrainCall(data=str(folder), settings={}, out=str(folder / "run"))

    def command(self, body):
        self.script.write_text(PRELUDE + body)
        return [sys.executable, "-S", str(self.script)]

    def run(self, body, *, workers=2, scheduler=None, restarts=0, patience=None):
        processes = LaunchSettings(workers=workers, scheduler=scheduler, restarts=restarts)
        launch(self.call, processes, command=self.command(body), patience=patience)

    def pids(self, rank="*"):
        return [int(file.name.split("-")[2]) for file in self.folder.glob(f"pid-{rank}-*")]

    def say(self, name):
        (self.folder / name).touch()

    def checkpoint(self):
        (self.folder / "run/checkpoints/1").mkdir(parents=True)
