"""A folder has one process, also on a disk without locks."""

import errno
import os
import socket

import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.system.folders import LOCK, lock_folder

HERE = socket.gethostname()
NOBODY = 1 << 30  # above all process ids


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF])
def without_locks(request, monkeypatch):
    def refuse(*_):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr("fcntl.flock", refuse)


def test_the_file_names_the_process_and_goes_with_it(tmp_path, without_locks):
    with lock_folder(tmp_path / "run", "taken"):
        assert (tmp_path / "run" / LOCK).read_text() == f"process {os.getpid()} on {HERE}"
    assert list((tmp_path / "run").iterdir()) == []


HOLDERS = {"parent": f"process {os.getppid()} on {HERE}", "other": "process 7 on other", "": ""}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)  # no worker may see other names
def test_a_folder_that_another_process_may_have_is_refused(tmp_path, without_locks, holder):
    (tmp_path / LOCK).write_text(holder)
    with (
        pytest.raises(InputError, match=f"taken .*names {holder or 'no process yet'}; .*remove"),
        lock_folder(tmp_path, "taken"),
    ):
        pass
    assert (tmp_path / LOCK).read_text() == holder


@pytest.mark.parametrize(
    "process", [NOBODY, os.getpid()], ids=["nobody", "own"]
)  # a container has the same one again
def test_the_file_of_a_killed_process_of_this_machine_is_taken_over(
    tmp_path, without_locks, process
):
    (tmp_path / LOCK).write_text(f"process {process} on {HERE}")
    with lock_folder(tmp_path, "taken"):
        assert str(os.getpid()) in (tmp_path / LOCK).read_text()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_came_back_meanwhile_stays(tmp_path, without_locks, monkeypatch):
    """Two processes find the same old file, and one has replaced it already."""
    (tmp_path / LOCK).write_text(f"process {NOBODY} on {HERE}")

    def is_running(_):
        (tmp_path / LOCK).write_text("process 7 on other")
        return False

    monkeypatch.setattr("cowclip_merlin.system.folders._is_running", is_running)
    with pytest.raises(InputError, match="process 7 on other"), lock_folder(tmp_path, "taken"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_a_log_of_messages_needs_locks(tmp_path, without_locks):
    log = FileLog(tmp_path / "log")
    with pytest.raises(InputError, match=r"log: its disk has no locks .*use a local disk"):
        log.append([b"a"])
    assert list((tmp_path / "log").iterdir()) == []
