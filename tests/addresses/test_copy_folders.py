"""Which local copies are deleted, and when: never those that a process uses."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from cowclip_merlin.addresses import copies, local_folder
from cowclip_merlin.errors import InputError

A, B, C = (f"memory://a/{name}" for name in "abc")
HOLDER = """
import sys
from cowclip_merlin.addresses import local_folder
print(local_folder(sys.argv[1], "marker"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def put(memory):
    def put(address, content=b"1"):
        memory.pipe_file(f"{address.removeprefix('memory:/')}/marker", content)
        return address

    return put


@pytest.fixture
def ended(monkeypatch):
    """Copies are used by processes that have ended."""
    monkeypatch.setattr(copies, "_hold", lambda folder, inode: None)


def copied(address):
    return local_folder(address, "marker")


def unused_for(folder, days):
    then = time.time() - days * 86_400
    os.utime(folder, (then, then))


def test_a_new_version_takes_the_place_of_others(put, ended):
    other, first = copied(put(B)), copied(put(A))
    second = copied(put(A, b"2"))
    assert not first.parent.exists() and other.exists()
    assert (second / "marker").read_bytes() == b"2"


def test_what_nobody_has_used_for_a_week_goes(put, ended):
    everything = copies.all_copies()
    old, used, new = copied(put(A)), copied(put(B)), everything / "kept-x"
    left = everything / "passing-_killed0"  # of a killed process
    for folder in (new, left):
        folder.mkdir()
    for folder in (old.parent, used.parent, new, left):
        unused_for(folder, copies.UNUSED_DAYS + 1)
    assert copied(B) == used  # once more
    copied(put(C))
    assert used.exists() and new.exists()
    assert not old.parent.exists() and not left.exists()


def test_what_has_other_names_stays(put, ended):
    """It is not of this package, whatever its age."""
    everything = copies.all_copies()
    others = [everything / name for name in ("photos", "tmpab12cd34", "passing-", f"{'0' * 16}-a")]
    for folder in others:
        folder.mkdir()
        (folder / "a").touch()
        unused_for(folder, 99)
    copied(put(A))
    assert all((folder / "a").exists() for folder in others)


def test_a_link_among_the_copies_is_not_followed(put, ended, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/a").touch()
    unused_for(tmp_path / "precious", 99)
    link = copies.all_copies() / f"{'0' * 16}-{'1' * 16}"
    link.symlink_to(tmp_path / "precious")
    copied(put(A))
    assert (tmp_path / "precious/a").exists()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where the folder of all copies would be."""
    monkeypatch.setattr(copies.tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"cowclip-{os.getuid()}"


def test_a_link_in_place_of_the_folder_is_refused(put, place, tmp_path):
    """Its old folders stay, also those with the names of copies."""
    home = tmp_path / "home"
    old = [home / "photos", home / f"{'0' * 16}-{'1' * 16}"]
    for folder in old:
        folder.mkdir(parents=True)
        unused_for(folder, 99)
    place.symlink_to(home)
    with pytest.raises(InputError, match=f"^{place}: is no folder, maybe a link to one; remove "):
        copied(put(A))
    assert all(folder.exists() for folder in old)
    assert {folder.name for folder in home.iterdir()} == {folder.name for folder in old}


def test_a_folder_of_others_is_refused(put, place, monkeypatch):
    place.touch()
    with pytest.raises(InputError, match="is no folder"):
        copied(put(A))
    place.unlink()
    place.mkdir(mode=0o700)
    place.chmod(0o750)
    with pytest.raises(InputError, match="is open to other users; remove it, or set TMPDIR"):
        copied(put(A))
    place.chmod(0o700)
    copied(put(A))
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    other = place.with_name(f"cowclip-{owner + 1}")
    other.mkdir(mode=0o700)
    with pytest.raises(InputError, match=f"^{other}: belongs to another user; set TMPDIR"):
        copied(A)


def test_a_copy_in_use_stays(put):
    first = copied(put(A))
    unused_for(first.parent, 99)
    copied(put(B))
    copied(put(A, b"2"))
    assert (first / "marker").read_bytes() == b"1"


def test_a_new_folder_is_in_use(put):
    with copies.passing_folder() as made:
        unused_for(made, 99)
        copied(put(A))
        assert made.exists()
    assert not made.exists()


def test_a_copy_that_somebody_has_changed(put, ended):
    first = copied(put(A))
    shutil.rmtree(first)
    assert copied(A) == first and first.exists()


def test_a_copy_in_use_that_somebody_has_changed_is_one_line(put):
    first = copied(put(A))
    shutil.rmtree(first)
    with pytest.raises(InputError, match=f"^{first.parent}: has no a; remove it, and try again"):
        copied(A)


def test_a_disk_without_locks_deletes_nothing(put, monkeypatch):
    def refuse(target, how):
        raise OSError("no locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    first = copied(put(A))
    second = copied(put(A, b"2"))
    assert first.exists() and second.exists()


def start(address, tmp_path):
    words = [sys.executable, "-c", HOLDER, address]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, env=os.environ | {"TMPDIR": str(tmp_path / "copies")}, **pipes)


@pytest.mark.system
def test_two_processes_share_a_copy_and_the_last_one_frees_it(tmp_path):
    (tmp_path / "copies").mkdir()
    data = tmp_path / "data"
    data.mkdir()
    (data / "marker").write_text("1")
    (data / "rows").write_bytes(bytes(1 << 22))
    address = f"file://{data}"
    both = [start(address, tmp_path) for _ in range(2)]
    first, same = (process.stdout.readline().strip() for process in both)
    assert first == same and os.path.exists(f"{first}/rows")
    (everything,) = (tmp_path / "copies").iterdir()
    assert len(list(everything.iterdir())) == 1
    both[0].communicate()
    (data / "marker").write_text("22")
    second = start(address, tmp_path)
    newer = second.stdout.readline().strip()
    assert newer != first and os.path.exists(f"{first}/rows")  # one process uses it
    both[1].kill()
    both[1].communicate()
    (data / "marker").write_text("333")
    third = start(address, tmp_path)
    third.stdout.readline()
    assert not os.path.exists(first) and os.path.exists(f"{newer}/rows")
    for process in (second, third):
        process.communicate()
