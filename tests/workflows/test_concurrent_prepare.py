"""Several processes that make the same folder, and what killed ones leave behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pandas_reference import make

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.files import atomic_folder, atomic_write
from cowclip_merlin.workflows import PreparedData, Recipe, prepare
from cowclip_merlin.workflows.ingest import Ingest

pytestmark = pytest.mark.system

STAYS = """
import sys, time
from pathlib import Path
from cowclip_merlin.system.files import {way}

with {way}(Path(sys.argv[1])) as work:
    if work.is_dir():
        (work / "data").mkdir()
    else:
        work.write_text("half")
    print(work, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def other():
    """Starts a process that makes `target` and does not end."""
    started = []

    def start(target, way="work_folder"):
        command = [sys.executable, "-c", STAYS.format(way=way), str(target)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, Path(process.stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def killed(process):
    process.kill()
    process.wait()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_that_is_being_made_is_refused_and_its_leftovers_are_removed(log, tmp_path, other):
    out = tmp_path / "data"
    process, work = other(out)
    with pytest.raises(InputError, match="data: another process is writing"):
        make(log, out)
    with pytest.raises(InputError, match="another process is writing"), atomic_folder(out):
        pass
    assert work.is_dir() and not out.exists()
    killed(process)
    assert names(tmp_path) == [work.name]
    make(log, out)
    assert names(tmp_path) == ["data"]


def test_of_two_that_began_at_once_the_first_one_stays(log, tmp_path, monkeypatch):
    out, run = tmp_path / "data", Ingest.run

    def slowly(self, *files):
        monkeypatch.setattr(Ingest, "run", run)
        result = run(self, *files)
        monkeypatch.setattr(sys.modules[prepare.__module__], "clear_leftovers", lambda _: None)
        make(log, out, recipe=Recipe(log=True))
        return result

    monkeypatch.setattr(Ingest, "run", slowly)
    with pytest.raises(InputError, match="data: another process has created"):
        make(log, out)
    assert PreparedData.load(out).recipe.log and names(tmp_path) == ["data"]


def test_what_was_replaced_by_a_killed_process_comes_back(log, tmp_path, other):
    out = tmp_path / "data"
    made = make(log, out)
    process, work = other(out)
    out.rename(work / "replaced")  # killed between the two renames of --overwrite
    killed(process)
    with pytest.raises(InputError, match="data: already exists"):
        make(log, out)
    assert PreparedData.load(out).fingerprint == made.fingerprint
    assert names(tmp_path) == ["data"]


def test_half_a_file_of_a_killed_process_is_removed(tmp_path, other):
    target = tmp_path / "a.json"
    process, half = other(target, "atomic_write")
    with atomic_write(target) as temporary:  # while the other one lives, both may write
        temporary.write_text("one")
    assert half.exists()
    killed(process)
    mine = [tmp_path / ".a.json.notes.tmp", tmp_path / ".a.json.tmp"]
    for file in mine:
        file.write_text("the user's own")
    with atomic_write(target) as temporary:
        temporary.write_text("two")
    assert target.read_text() == "two"
    assert names(tmp_path) == [*(file.name for file in mine), "a.json"]


WRITES = """
import sys
from cowclip_merlin.system.files import write_json

for number in range(400):
    write_json(sys.argv[1], {"number": number})
"""


def test_two_processes_can_write_one_file(tmp_path):
    command = [sys.executable, "-c", WRITES, str(tmp_path / "a.json")]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert names(tmp_path) == ["a.json"]


def test_a_killed_prepare_leaves_what_the_next_one_removes(log, tmp_path):
    out = tmp_path / "data"
    command = [sys.executable, "-m", "cowclip_merlin", "prepare", "criteo", str(log)]
    process = subprocess.Popen([*command, "--out", str(out)])
    while process.poll() is None and not list(tmp_path.glob(".data.*")):
        time.sleep(0.02)
    os.kill(process.pid, 9)
    process.wait()
    assert len(names(tmp_path)) == 1
    make(log, out)
    assert names(tmp_path) == ["data"]
