"""Snapshots of online training at an address, and servers that load them from there."""

import json

import numpy as np
import pytest

from cowclip_merlin.batch import Ids
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.online import FileLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.serving.live.follower import Follower
from cowclip_merlin.tables.snapshot import copy_snapshot, load_snapshot, numbers, save_snapshot

FEATURES = "label: click\ntime: time\ncategorical: [user]\ncontinuous: [price]\n"
ASKED = Events(
    ids=Ids(np.arange(50, dtype=np.int64)[:, None]), numbers=np.ones((50, 1), np.float32)
)


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.system)])
def files(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def bucket(files):
    return "memory://logs" if files.protocol == "memory" else "s3://logs"


def write_events(first, end):
    log = FileLog("EVENTS")
    rows = (
        {"click": i % 3 == 0, "time": 1_700_000_000 + i, "user": i % 50} for i in range(first, end)
    )
    log.append([json.dumps(row | {"price": 0.5}).encode() for row in rows])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yaml").write_text(FEATURES)
    write_events(0, 200)
    return tmp_path


def train(address, *more, out="RUN", code=0):
    words = ["--from", "EVENTS", "--features", "f.yaml", "--out", out, "--to", f"SYNC-{out}"]
    words += ["--model", "deepfm", "--batch-size", "32", "--mlp", "8", "--capacity", "1000"]
    words += ["--snapshots", address, "--until-end"]
    assert main(["online", "train", *words, *more]) == code


def served(run=None):
    follower = Follower(lambda: FileLog("SYNC-RUN"), run=run)
    while follower.step():
        pass
    assert follower.problem is None
    return follower.model.predict(ASKED)


@pytest.mark.thorough
def test_servers_load_what_is_there(folder, files, bucket, capsys):
    address = f"{bucket}/online/a"
    train(address)
    write_events(200, 300)
    train(address)
    (folder / "RUN").rename(folder / "GONE")  # servers of another machine do not see it
    found, expected = served(), served(folder / "GONE")
    np.testing.assert_array_equal(found.probabilities, expected.probabilities)
    assert found.version.info["trained"] == 300
    assert not list((folder / "copies").glob("*/*"))  # what was loaded is not kept
    (folder / "GONE").rename(folder / "RUN")
    capsys.readouterr()
    train(address, out="OTHER", code=2)
    assert f"{address}: holds another run; use another --snapshots" in capsys.readouterr().err
    assert sorted(numbers(f"{address}/snapshots")) == sorted(numbers("RUN/snapshots"))


def test_a_wrong_address_is_refused_at_the_start(folder, memory, monkeypatch, capsys):
    def fail(*files):
        raise PermissionError("Forbidden")

    monkeypatch.setattr(memory, "put_file", fail)
    train("memory://logs/a", code=2)
    told = capsys.readouterr().err
    assert "memory://logs/a/config.json: no permission (Forbidden)" in told


def test_a_copy_that_fails_later_does_not_stop_the_training(folder, memory, monkeypatch, capsys):
    put = type(memory).put_file

    def fail(files, source, target):
        if "/snapshots/0/" not in target and "/snapshots/" in target:
            raise OSError("the network is away")
        put(files, source, target)

    monkeypatch.setattr(type(memory), "put_file", fail)  # each thread has its own object
    train("memory://logs/a")
    out = capsys.readouterr().out
    assert "the network is away" in out and "servers are not told of snapshot 200" in out
    assert "trained 200 events" in out and numbers("memory://logs/a/snapshots") == [0]
    assert served().version.info["trained"] == 200


def test_a_restart_does_not_wait_for_the_address(folder, memory, monkeypatch, capsys):
    """Whichever of its calls fail besides the copying."""
    train("memory://logs/a")

    def fail(*files, **options):
        raise OSError("the network is away")

    for trained, call in ((300, "put_file"), (400, "find"), (500, "cat_file")):
        write_events(trained - 100, trained)
        with monkeypatch.context() as away:
            for name in ("put_file", call):
                away.setattr(type(memory), name, fail)
            capsys.readouterr()
            train("memory://logs/a")
        out = capsys.readouterr().out
        said = "the network is away); check the address, your keys and the network; training goes"
        assert said in out and f"trained {trained} events" in out
        assert sorted(numbers("memory://logs/a/snapshots")) == [0, 200]
    write_events(500, 600)
    (folder / "RUN/config.json").write_text((folder / "RUN/config.json").read_text() + "\n")
    train("memory://logs/a")
    assert sorted(numbers("memory://logs/a/snapshots")) == [500, 600]
    assert served().version.info["trained"] == 600
    there = memory.cat_file("/logs/a/config.json")
    assert there == (folder / "RUN/config.json").read_bytes()


def saved(folder, number, value):
    save_snapshot(folder, number, {"n": np.array(value)}, None, keep=9)


def test_copies_are_those_of_the_newest(memory, tmp_path):
    address = "memory://logs/snapshots"
    for number in (1, 2, 3):
        saved(tmp_path, number, number)
        copy_snapshot(tmp_path, number, address, keep=2)
    assert sorted(numbers(address)) == [2, 3] and load_snapshot(address).arrays["n"] == 3
    memory.pipe_file("/logs/snapshots/9/n.bin", b"half")  # of a killed process
    assert sorted(numbers(address)) == [2, 3]
    with pytest.raises(InputError, match="snapshots/9: no such folder with a manifest"):
        load_snapshot(address, 9)
    copy_snapshot(tmp_path, 2, address, keep=2)  # the run went back
    assert numbers(address) == [2] and not memory.find("/logs/snapshots/9")
    saved(tmp_path / "again", 2, 7)  # of the same number, with other values
    copy_snapshot(tmp_path / "again", 2, address, keep=2)
    assert load_snapshot(address, 2).arrays["n"] == 7
