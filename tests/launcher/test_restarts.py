"""Workers on this machine: restarts, the folder of the run, and taken ports."""

import fcntl
import os
import socket
import threading
from dataclasses import replace

import pytest
from fake_workers import wait_until

from cowclip_merlin.errors import WorkerLost
from cowclip_merlin.launcher import attempts, local
from cowclip_merlin.training.run_settings import RunOptions

pytestmark = pytest.mark.system

RECORD = (
    "resume = call['options']['resume']\n"
    "(here / f'call-{rank}-{attempt}').write_text(str(resume) + str(out.exists()))\n"
)


def records(fake, rank=0):
    return [file.read_text() for file in sorted(fake.folder.glob(f"call-{rank}-*"))]


def test_a_restart_without_a_checkpoint_begins_again(fake, quick, capfd):
    """The folder that the first attempt left would be refused as another run."""
    body = (
        "if attempt == 0 and rank == 0:\n    out.mkdir(); (out / 'config.json').touch()\n"
        "    (here / 'made').touch()\n"
        "wait_for('made')\n" + RECORD + "if attempt < 2 and rank == 1:\n    sys.exit(1)"
    )
    fake.run(body, restarts=2, patience=quick)
    assert records(fake) == ["FalseTrue", "FalseFalse", "FalseFalse"]
    shown = capfd.readouterr().err
    assert "restart 1 of 2 from the beginning" in shown
    assert "restart 2 of 2 from the beginning" in shown


def test_a_restart_begins_again_in_a_folder_that_existed(fake, quick):
    """Of a folder with the user's files, it removes only what the first attempt left."""
    (fake.folder / "run").mkdir()
    (fake.folder / "run/notes").touch()
    body = (
        "(here / f'found-{rank}-{attempt}').write_text(' '.join(os.listdir(out)))\n"
        "if attempt == 0:\n    wait_for('found-0-0')\n    wait_for('found-1-0')\n"
        "    (out / 'config.json').touch()\n    sys.exit(1)"
    )
    fake.run(body, restarts=1, patience=quick)
    assert (fake.folder / "found-0-1").read_text() == "notes"


def test_a_folder_of_the_user_is_never_removed(fake, quick):
    (fake.folder / "run").mkdir()
    (fake.folder / "run/notes").touch()
    with pytest.raises(WorkerLost):
        fake.run("sys.exit(1)", restarts=1, patience=quick)
    assert (fake.folder / "run/notes").exists()


def test_a_folder_that_another_process_uses_is_not_removed(fake, quick):
    body = (
        "if rank == 0:\n    out.mkdir(); (here / 'made').touch(); wait_for('locked')\n"
        "sys.exit(1) if rank == 0 else wait_for('locked')"
    )

    def lock():
        wait_until((fake.folder / "made").exists, "the folder")
        held.append(os.open(fake.folder / "run", os.O_RDONLY))
        fcntl.flock(held[0], fcntl.LOCK_EX)
        fake.say("locked")

    held = []
    thread = threading.Thread(target=lock)
    thread.start()
    with pytest.raises(WorkerLost):
        fake.run(body, patience=quick)
    thread.join()
    assert (fake.folder / "run").is_dir()
    os.close(held[0])


def test_a_lost_run_without_a_checkpoint_leaves_no_folder(fake, quick):
    with pytest.raises(WorkerLost, match="train again"):
        fake.run("out.mkdir(exist_ok=True); sys.exit(1)", patience=quick)
    assert not (fake.folder / "run").exists()


def test_a_lost_run_with_a_checkpoint_can_be_resumed(fake, quick):
    with pytest.raises(WorkerLost, match=r"after 1 restarts; .*`resume`"):
        fake.run("checkpoint(); sys.exit(1)", restarts=1, patience=quick)
    assert len(fake.pids("0")) == 2


def test_a_resumed_run_stays_resumed(fake, quick):
    fake.checkpoint()
    fake.call = replace(fake.call, options=RunOptions(resume=True))
    fake.run(RECORD + "if attempt == 0: sys.exit(1)", restarts=1, patience=quick)
    assert records(fake) == ["TrueTrue", "TrueTrue"]


def test_a_taken_port_is_no_failure(fake, quick, capfd, monkeypatch):
    """The first worker finds its port taken, as a program of its own shows."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free = local.free_ports
        given = iter([[taken.getsockname()[1], *free(1)], free(2)])
        monkeypatch.setattr(local, "free_ports", lambda count: next(given))
        body = (
            "import socket\nhost, port = addresses[rank].split(':')\n"
            "found = socket.socket()\nfound.bind((host, int(port)))\n"
        )
        fake.run(body, patience=quick)
    assert len(fake.pids("0")) == 2
    assert capfd.readouterr().err.endswith("another program took a port; starting again\n")


def test_ports_that_are_always_taken_end_in_one_line(fake, quick):
    body = "print('Address already in use', file=sys.stderr); sys.exit(1)"
    with pytest.raises(WorkerLost, match="exit code 1: Address already in use"):
        fake.run(body, patience=quick)
    assert len(fake.pids("0")) == attempts._PORT_TRIES
