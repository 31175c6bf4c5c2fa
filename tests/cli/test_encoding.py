"""Names outside of ASCII, printed where only ASCII can be."""

import os
import subprocess
import sys

import pytest

LOG = "y,Straße\n" + "0,ä\n1,ö\n" * 50


def cowclip(folder, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "cowclip_merlin", *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
    )


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "LANG": "C"}],
    ids=["ascii", "LANG=C"],
)
def test_a_name_that_cannot_be_printed_ends_nothing(tmp_path, environment):
    (tmp_path / "lög.csv").write_text(LOG, encoding="utf-8")
    command = ["prepare", "table", "lög.csv", "--out", "Dä", "--label", "y"]
    done = cowclip(tmp_path, *command, "--categorical", "Straße", **environment)
    assert done.returncode == 0, done.stderr
    assert b"100 rows in" in done.stdout
    assert (tmp_path / "Dä" / "dataset.json").is_file()
    run = ["train", "Dä", "--out", "Rü", "--model", "deepfm", "--batch-size", "32", "--mlp", "8"]
    more = ["--epochs", "1", "--diagnostics-every", "1", "--device", "cpu"]
    trained = cowclip(tmp_path, *run, *more, **environment)
    assert trained.returncode == 0, trained.stderr
    assert b"Traceback" not in trained.stderr
    shown = cowclip(tmp_path, "inspect", "Rü", **environment)
    assert shown.returncode == 0, shown.stderr
    escaped = b"Stra\\xdfe" if "PYTHONIOENCODING" in environment else "Straße".encode()
    assert escaped in shown.stdout


def test_a_file_whose_name_is_no_utf_8(tmp_path):
    name = os.fsdecode(b"l\xf6g.txt")
    strict = {"PYTHONIOENCODING": "utf-8:strict"}  # as under LANG=en_US.UTF-8
    done = cowclip(tmp_path, "generate", "--rows", "100", "--out", name, **strict)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / name).is_file()
