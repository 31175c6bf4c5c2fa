"""Files and folders are written completely or not at all, and a folder has one process."""

import errno
import os
import socket
import sys
from itertools import count

import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import FileLog
from cowclip_merlin.system.files import atomic_folder, atomic_write, check_writable
from cowclip_merlin.system.folders import LOCK, lock_folder
from cowclip_merlin.system.records import append_rows, write_rows

# Valid itself, but the temporary name beside it is too long. It fails for root, too, whom no
# rights stop.
NAME = "n" * 250


def test_a_folder_that_cannot_be_made_is_the_users(tmp_path):
    with pytest.raises(OSError) as failure, atomic_folder(tmp_path / NAME):
        pass
    assert failure.value.filename == str(tmp_path / NAME)


def write_file(path):
    with atomic_write(path) as temporary:
        temporary.write_text("whole")


def write_folder(path):
    with atomic_folder(path) as temporary:
        temporary.mkdir()
        (temporary / "part").write_text("whole")


def interrupted_at(number, run, path):
    """Run as if Ctrl-C came before a line of `system`; return whether there was such a line."""
    lines = count()

    def trace(frame, event, _):
        if "cowclip_merlin/system/" not in frame.f_code.co_filename:
            return None
        if event == "line" and next(lines) == number:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run(path)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize(
    ("run", "whole"),
    [(write_file, ["a"]), (write_folder, ["a", "a/part"]), (check_writable, [])],
)
def test_ctrl_c_at_any_line_leaves_all_or_nothing(run, whole, tmp_path):
    for number in count():
        folder = tmp_path / str(number)
        folder.mkdir()
        interrupted = interrupted_at(number, run, folder / "a")
        left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
        assert left in ([], whole)
        if not interrupted:
            break
    assert number > 8 and left == whole


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_rows_follow_the_columns(tmp_path, end):
    file, columns = tmp_path / "a.csv", ("x", "y")
    append_rows(file, columns, [{"x": 1, "y": "a,b"}], line_end=end)
    append_rows(file, columns, [{"y": 2}, {"x": None, "y": "ä"}], line_end=end)
    appended = file.read_bytes()
    assert appended.decode().split(end) == ["x,y", '1,"a,b"', ",2", ",ä", ""]
    rows = [{"x": 1, "y": "a,b"}, {"y": 2}, {"x": None, "y": "ä"}]
    write_rows(file, columns, rows, line_end=end)
    assert file.read_bytes() == appended


def test_a_line_that_was_cut_anywhere_is_dropped(tmp_path):
    file, columns = tmp_path / "a.csv", ("x", "y")
    for number in range(2):
        append_rows(file, columns, [{"x": number, "y": "text"}])
    whole = file.read_bytes()
    for size in range(len(whole) + 1):
        file.write_bytes(whole[:size])
        append_rows(file, columns, [{"x": 9, "y": 9}])
        lines = file.read_text().splitlines()
        kept = max(whole[:size].count(b"\n"), 1)
        assert lines == [*whole.decode().splitlines()[:kept], "9,9"]


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
