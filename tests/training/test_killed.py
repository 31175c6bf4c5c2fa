"""kill -9 in the middle of a write: the next --resume leaves nothing half-written."""

import shutil
import signal
import subprocess
import sys

import pytest
from run_weights import assert_same_bits, metrics_of, without_times

from cowclip_merlin.cli import main

pytestmark = pytest.mark.system

KILLED = """
import os, signal, sys
from pathlib import Path
from cowclip_merlin.cli import main
from cowclip_merlin.system import files

def replace(source, target):
    if Path(target).name == "metrics.csv":
        os.kill(os.getpid(), signal.SIGKILL)
    os.rename(source, target)

files.os.replace = replace
main(sys.argv[1:])
"""
ARGUMENTS = (
    "--model", "deepfm", "--batch-size", "256", "--base-batch-size", "64", "--mlp", "8",
    "--epochs", "1", "--seed", "5", "--checkpoint-every", "2", "--device", "cpu",
    "--update", "dense",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(data, make_once):
    """The run of the first day, a whole one of the second day, and one that was killed then.

    It was killed when it wrote its first metrics, after some checkpoints.
    """

    def make(folder):
        words = ["train", str(data), *ARGUMENTS, "--out"]
        again = ["--from", str(folder / "first")]
        assert main([*words, str(folder / "first")]) == 0
        assert main([*words, str(folder / "whole"), *again]) == 0
        killed = [sys.executable, "-c", KILLED, *words, str(folder / "killed"), *again]
        assert subprocess.run(killed, capture_output=True).returncode == -signal.SIGKILL

    return make_once("killed", make)


def test_a_killed_run_goes_on_and_loses_nothing(data, runs, tmp_path):
    """From its own weights, not again from those of the first day."""
    out = shutil.copytree(runs / "killed", tmp_path / "run")
    (left,) = out.glob(".metrics.csv.*.tmp")
    half = out / "checkpoints" / ".9.12ab34cd.tmp"  # a checkpoint is written in such a folder
    (half / "whole").mkdir(parents=True)
    (half / "whole" / "weights.0.bin").write_bytes(b"half")
    again = ["--from", str(runs / "first"), "--resume"]
    assert main(["train", str(data), "--out", str(out), *ARGUMENTS, *again]) == 0
    names = {path.name for path in out.rglob("*")}
    assert left.name not in names and half.name not in names
    assert {"metrics.csv", "config.json", "manifest.json"} <= names
    assert_same_bits(runs / "whole", out)
    assert without_times(metrics_of(runs / "whole")) == without_times(metrics_of(out))


def test_files_of_the_user_stay(data, runs, tmp_path):
    out = shutil.copytree(runs / "first", tmp_path / "run")
    mine = [out / ".notes.tmp", out / ".notes.12.tmp", out / "my_temp" / "a"]
    mine += [out / "checkpoints" / name / "a" for name in ("my_temp", ".best.tmp")]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    # Removes what the run itself left.
    assert main(["train", str(data), "--out", str(out), *ARGUMENTS, "--resume"]) == 0
    assert all(path.read_text() == "mine" for path in mine)


def test_a_run_without_a_checkpoint_says_what_to_delete(data, runs, tmp_path, capsys):
    """What the error of --resume says must not be refused in turn."""
    out = shutil.copytree(runs / "killed", tmp_path / "run")
    shutil.rmtree(out / "checkpoints")  # as if it were killed before the first one
    assert main(["train", str(data), "--out", str(out), *ARGUMENTS, "--resume"]) == 2
    error = capsys.readouterr().err
    assert "no checkpoint" in error and f"delete {out} " in error
