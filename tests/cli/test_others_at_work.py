"""A folder that another process has, and a scheduler that does not answer, are one line."""

import fcntl
import os

import distributed

from cowclip_merlin.cli import main


def test_no_such_scheduler(tmp_path, monkeypatch, capsys):
    connect = distributed.Client
    monkeypatch.setattr(
        distributed, "Client", lambda at, timeout, **more: connect(at, timeout="1s", **more)
    )
    (tmp_path / "t.csv").write_text("y,a\n" + "0,u\n1,v\n" * 50)
    words = ["--label", "y", "--categorical", "a", "--scheduler", "127.0.0.1:1"]
    command = ["prepare", "table", str(tmp_path / "t.csv"), "--out", str(tmp_path / "out"), *words]
    assert main(command) == 2
    told = capsys.readouterr().err.splitlines()
    assert "error: --scheduler 127.0.0.1:1: no Dask scheduler answers" in told[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_second_training_into_the_same_folder_is_refused(data, tmp_path, capsys):
    run = tmp_path / "out"
    run.mkdir()
    first = os.open(run, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    command = ["train", str(data), "--out", str(run), "--model", "deepfm", "--batch-size", "256"]
    command += ["--mlp", "8", "--epochs", "1"]
    try:
        assert main(command) == 2
    finally:
        os.close(first)
    (told,) = capsys.readouterr().err.splitlines()
    assert "out: another process" in told
    assert main(command) == 0
