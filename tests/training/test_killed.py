"""kill -9 in the middle of a write: the next --resume leaves nothing half-written."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import RunSettings, train

pytestmark = pytest.mark.system

SETTINGS = RunSettings(
    model="deepfm", epochs=1, mlp=(8,), batch_size=256, base_batch_size=64, seed=5
)
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
def killed(data, make_once):
    """A run that was killed when it wrote its first metrics, after some checkpoints."""

    def make(folder):
        command = ["train", str(data), "--out", str(folder / "run"), *ARGUMENTS]
        done = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True)
        assert done.returncode == -signal.SIGKILL

    return make_once("killed", make) / "run"


def test_what_a_killed_run_was_writing_goes_with_resume(data, killed, tmp_path):
    out = shutil.copytree(killed, tmp_path / "run")
    command = ["train", str(data), "--out", str(out), *ARGUMENTS]
    (left,) = out.glob(".metrics.csv.*.tmp")
    # TensorFlow writes a checkpoint in a folder like this one, and renames what is in it.
    (out / "checkpoints" / "ckpt-9_temp").mkdir()
    (out / "checkpoints" / "ckpt-9_temp" / "part-00000-of-00001.tempstate1").write_bytes(b"half")
    assert main([*command, "--resume"]) == 0
    names = {path.name for path in out.rglob("*")}
    assert left.name not in names and "ckpt-9_temp" not in names
    assert {"metrics.csv", "config.json", "checkpoint"} <= names


def test_files_of_the_user_stay(data, tmp_path):
    out = tmp_path / "run"
    mine = [out / ".notes.tmp", out / ".notes.12.tmp", out / "my_temp" / "a"]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    train(data, SETTINGS, out=out)
    for name in ("my_temp", "ckpt-best_temp"):
        mine.append(out / "checkpoints" / name / "a")
        mine[-1].parent.mkdir()
        mine[-1].write_text("mine")
    train(data, SETTINGS, out=out, resume=True)  # removes what the run itself left
    assert all(path.read_text() == "mine" for path in mine)


def test_a_run_without_a_checkpoint_says_what_to_delete(data, killed, tmp_path):
    """What the error of --resume says must not be refused in turn."""
    out = shutil.copytree(killed, tmp_path / "run")
    for path in (out / "checkpoints").iterdir():  # as if it were killed before the first one
        path.unlink()
    with pytest.raises(InputError, match=f"no checkpoint.* delete {out} "):
        train(data, SETTINGS, out=out, resume=True)


def test_a_kill_on_the_second_day_loses_nothing(data, tmp_path):
    """Of a run that starts from that of the first day; `--resume` starts from its own weights."""
    first, whole, killed = (str(tmp_path / name) for name in ("first", "whole", "killed"))
    assert main(["train", str(data), "--out", first, *ARGUMENTS]) == 0
    again = ["--from", first]
    assert main(["train", str(data), "--out", whole, *ARGUMENTS, *again]) == 0
    command = ["train", str(data), "--out", killed, *ARGUMENTS, *again]
    done = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert main([*command, "--resume"]) == 0
    columns = ["step", "train_loss", "test_auc", "test_log_loss"]
    expected, found = (
        pd.read_csv(Path(folder) / "metrics.csv")[columns] for folder in (whole, killed)
    )
    pd.testing.assert_frame_equal(found, expected, check_exact=True)
