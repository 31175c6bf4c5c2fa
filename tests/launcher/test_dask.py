"""Workers on a Dask cluster of two processes."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from distributed import Client, LocalCluster
from fake_workers import is_alive, wait_until

from cowclip_merlin.contrib import dask_side, dask_workers
from cowclip_merlin.errors import InputError, WorkerLost
from cowclip_merlin.launcher import Patience, attempts

pytestmark = pytest.mark.system


@pytest.mark.parametrize("workers", [2, None])
def test_one_process_in_every_dask_worker(fake, scheduler, workers):
    body = "(here / f'saw-{rank}').write_text(f\"{os.getppid()} {' '.join(addresses)}\")"
    fake.run(body, workers=workers, scheduler=scheduler)
    saw = [(fake.folder / f"saw-{rank}").read_text().split() for rank in range(2)]
    assert saw[0][0] != saw[1][0], "different parents"
    assert saw[0][1:] == saw[1][1:]
    hosts, ports = zip(*(address.split(":") for address in saw[0][1:]), strict=True)
    assert set(hosts) == {"127.0.0.1"} and len(set(ports)) == 2


def test_one_worker_of_two_may_be_used(fake, scheduler):
    fake.run("assert len(addresses) == 1", workers=1, scheduler=scheduler)
    assert len(fake.pids()) == 1


def test_relative_paths_become_absolute(fake, scheduler, monkeypatch):
    monkeypatch.chdir(fake.folder)
    fake.call = replace(fake.call, data=".", out="run")
    fake.run("(here / 'saw').write_text(call['data'] + ' ' + call['out'])", scheduler=scheduler)
    assert (fake.folder / "saw").read_text() == f"{fake.folder} {fake.folder}/run"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_dask_worker_is_named_and_its_child_ends(fake, scheduler, rank):
    body = f"if rank == {rank}: os.kill(os.getppid(), 9)\nforever()"
    short = Patience(grace=0.5, term=0.5)
    started = time.monotonic()
    with pytest.raises(WorkerLost, match=f"worker {rank} .*its Dask worker was lost"):
        fake.run(body, patience=short, scheduler=scheduler)
    assert time.monotonic() - started < 300
    wait_until(lambda: not any(map(is_alive, fake.pids())), "the end of the children")


def test_a_restart_waits_for_the_dask_worker_that_was_lost(fake, scheduler, quick, monkeypatch):
    """Its nanny starts it again."""
    monkeypatch.setattr(attempts, "_DASK_WAIT", 300.0)
    body = "if rank == 1 and attempt == 0:\n    os.kill(os.getppid(), 9)\n    forever()"
    body += "\nif attempt == 0: sys.exit(75)"
    fake.run(body, restarts=1, patience=quick, scheduler=scheduler)
    assert len(fake.pids()) == 4


def test_a_dask_worker_that_ends_before_it_answers_is_lost(fake, scheduler, monkeypatch):
    """Its child was quicker than the answer of the Dask worker."""

    def start(attempt, *_):
        os.kill(os.getpid(), 9)

    monkeypatch.setattr(dask_side, "start_child", start)
    with pytest.raises(WorkerLost, match=r"its Dask worker was lost"):
        fake.run("", patience=Patience(grace=0.5, term=0.5), scheduler=scheduler)


def test_too_few_workers_are_one_line(fake, scheduler):
    with pytest.raises(InputError, match=r"has 2 workers, .* 3; "):
        fake.run("", workers=3, scheduler=scheduler)
    assert not fake.pids()


def test_no_workers_are_one_line(fake):
    options = {"dashboard_address": ":0", "n_workers": 0, "silence_logs": 50}
    line = r"has 0 workers, .* 1; "
    with LocalCluster(**options) as empty, pytest.raises(InputError, match=line):
        fake.run("", workers=None, scheduler=empty.scheduler_address)


def test_a_scheduler_that_does_not_answer_is_one_line(fake):
    with pytest.raises(InputError, match=r"tcp://127\.0\.0\.1:1: no Dask scheduler"):
        fake.run("", scheduler="tcp://127.0.0.1:1")


def test_a_folder_that_a_dask_worker_does_not_see_is_one_line(fake, scheduler):
    fake.call = replace(fake.call, data="/no/such/folder")
    with pytest.raises(InputError, match=r"/no/such/folder: .* worker tcp://.* see"):
        fake.run("", scheduler=scheduler)


MODULE = "cowclip_merlin.contrib.dask_side"


def hide_module():
    sys.modules["hidden"], sys.modules[MODULE] = sys.modules.get(MODULE), None


def show_module():
    sys.modules[MODULE] = sys.modules.pop("hidden")


def test_dask_workers_without_this_package_are_one_line(fake, scheduler):
    with Client(scheduler, set_as_default=False) as client:
        client.run(hide_module)
        try:
            line = r"cannot use cowclip_merlin .*same version"
            with pytest.raises(InputError, match=line):
                fake.run("", scheduler=scheduler)
        finally:
            client.run(show_module)


def test_an_interrupt_ends_the_children(fake, scheduler, monkeypatch):
    def interrupt(*_):
        wait_until(lambda: len(fake.pids()) == 2, "both workers")
        raise KeyboardInterrupt

    monkeypatch.setattr("cowclip_merlin.launcher.watch.Relay.show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fake.run("forever()", scheduler=scheduler)


def set_lease(seconds):
    dask_side._LEASE = seconds


LAUNCHER = """
import sys
from cowclip_merlin.contrib import dask_workers
from cowclip_merlin.launcher import LaunchSettings, TrainCall, launch
dask_workers._FOLLOW = 0.2
folder, scheduler, *command = sys.argv[1:]
call = TrainCall(data=folder, settings={}, out=folder + "/run")
launch(call, LaunchSettings(workers=2, scheduler=scheduler), command=command)
"""


def test_children_end_after_a_kill_of_the_launcher(fake, scheduler):
    command = [str(fake.folder), scheduler, *fake.command("forever()")]
    with Client(scheduler, set_as_default=False) as client:
        before = dask_side._LEASE
        try:
            launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, *command])
            wait_until(lambda: len(fake.pids()) == 2, "both children")
            launcher.kill()
            launcher.wait()
            client.run(set_lease, 1.0)
            wait_until(lambda: not any(map(is_alive, fake.pids())), "their end")
        finally:
            client.run(set_lease, before)
            client.run(forget_children)


def forget_children(dask_worker):
    for attempt in list(dask_worker.__dict__.get("cowclip_children", {})):
        dask_side.end_child(attempt, dask_worker)


def test_a_launcher_in_another_thread_works(fake, scheduler):
    """Only the main thread receives signals, as in a notebook's background job."""
    errors = []

    def work():
        try:
            fake.run("", scheduler=scheduler)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(300)
    assert not errors and not thread.is_alive()


class Info:
    def __init__(self, addresses):
        self._addresses = addresses

    def scheduler_info(self):
        return {"workers": dict.fromkeys(self._addresses)}


def test_workers_of_one_machine_are_neighbors():
    client = Info(["tcp://10.0.0.2:5", "tcp://10.0.0.1:7", "tcp://10.0.0.2:3"])
    found = dask_workers.choose_workers(client, "tcp://x:1", None, 0.0)
    assert [dask_workers.host_of(each) for each in found] == ["10.0.0.1", "10.0.0.2", "10.0.0.2"]
