"""Workers on this machine: exit codes, output, restarts, ports and GPUs."""

import fcntl
import os
import socket
import sys
import threading
import time
from dataclasses import replace

import pytest
from fake_workers import is_alive, wait_until

from cowclip_merlin.errors import InputError, WorkerLost
from cowclip_merlin.launcher import Patience, attempts, gpus, launch, local
from cowclip_merlin.training import Stopped


def run(fake, body, *, workers=2, **options):
    launch(fake.call, workers=workers, command=fake.command(body), **options)


def test_all_workers_run_with_their_rank_and_the_same_addresses(fake):
    run(fake, "(here / f'saw-{rank}').write_text(' '.join(addresses))", workers=3)
    saw = [(fake.folder / f"saw-{rank}").read_text() for rank in range(3)]
    assert saw[0] == saw[1] == saw[2]
    assert len(set(saw[0].split())) == 3
    assert all(address.startswith("127.0.0.1:") for address in saw[0].split())


def test_only_the_output_of_the_first_worker_is_shown(fake, capfd):
    run(fake, "print('out', rank); print('err', rank, file=sys.stderr)")
    assert capfd.readouterr() == ("out 0\n", "err 0\n")


def test_output_appears_while_the_worker_runs(fake, monkeypatch):
    class Stream:
        def write(self, text):
            fake.say("seen")

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stdout", Stream())
    run(fake, "if rank == 0: print('first', flush=True)\nwait_for('seen')")


def test_much_output_is_complete(fake, capfd):
    run(fake, "if rank == 0: print('\\u00e4' * 1_000_000)")
    assert capfd.readouterr().out == "ä" * 1_000_000 + "\n"


@pytest.mark.parametrize("rank", [0, 1])
def test_wrong_input_is_the_line_of_the_worker(fake, capfd, quick, rank):
    body = (
        f"if rank == {rank}:\n"
        "    print('noise\\ncowclip: error: x.txt: no such file', file=sys.stderr)\n"
        "    sys.exit(2)\n"
        "sys.exit(75)\n"
    )
    place = "" if rank == 0 else f"worker 1 on {socket.gethostname()}: "
    with pytest.raises(InputError) as caught:
        run(fake, body, patience=quick, restarts=3)
    assert type(caught.value) is InputError
    assert str(caught.value) == f"{place}x.txt: no such file"
    assert len(fake.pids()) == 2, "wrong input is not tried again"
    assert "error" not in capfd.readouterr().err


def test_wrong_input_of_all_is_told_once(fake):
    body = "print('cowclip: error: worker', rank, 'says so', file=sys.stderr); sys.exit(2)"
    with pytest.raises(InputError, match=r"^worker 0 says so$"):
        run(fake, body, workers=3)


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("os.kill(os.getpid(), 9)", "killed by signal 9"),
        ("raise ValueError('out of luck')", "exit code 1: ValueError: out of luck"),
        ("print('bad thing'); sys.exit(7)", "exit code 7: bad thing"),
        ("sys.exit(7)", "exit code 7: no output"),
        ("os.kill(os.getpid(), 15)", "killed by signal 15"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_worker_that_failed_is_named(fake, quick, body, how, rank):
    """The other one ends only because of it, and may do so first."""
    both = (
        f"if rank == {rank}:\n    {body}\n"
        "print('cowclip: error: another was lost', file=sys.stderr)\nsys.exit(75)"
    )
    with pytest.raises(WorkerLost) as caught:
        run(fake, both, patience=quick)
    line = f"worker {rank} of 2 on {socket.gethostname()} failed ({how})"
    assert str(caught.value) == f"{line}; train again, or let --restarts 1 do it"


def test_if_all_lost_another_the_first_is_named(fake, quick):
    body = "print('cowclip: error: no answer', file=sys.stderr); sys.exit(75)"
    with pytest.raises(WorkerLost, match=r"failed \(exit code 75: no answer\)"):
        run(fake, body, patience=quick)


def test_the_traceback_of_another_worker_is_shown(fake, quick, capfd):
    with pytest.raises(WorkerLost):
        run(fake, "assert rank == 0, 'not the first'", patience=quick)
    shown = capfd.readouterr().err
    assert shown.startswith("Traceback (most") and "AssertionError: not the first" in shown


def test_others_may_end_by_themselves_after_a_failure(fake):
    body = "if rank == 1: sys.exit(1)\ntime.sleep(0.3)\n(here / 'done').touch()"
    with pytest.raises(WorkerLost, match="worker 1"):
        run(fake, body, patience=Patience(grace=60))
    assert (fake.folder / "done").exists()


def test_others_get_sigterm_after_the_grace(fake):
    body = (
        "if rank == 1:\n    wait_for('ready'); sys.exit(1)\n"
        "def end(*_):\n    (here / 'asked').touch(); os._exit(75)\n"
        "signal.signal(signal.SIGTERM, end)\n(here / 'ready').touch()\nforever()"
    )
    with pytest.raises(WorkerLost, match=r"worker 1 of 2 .*exit code 1"):
        run(fake, body, patience=Patience(grace=0.2, term=60))
    assert (fake.folder / "asked").exists()


def test_a_stubborn_worker_is_killed(fake):
    body = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if rank == 1:\n    wait_for('ready'); sys.exit(1)\n"
        "(here / 'ready').touch()\nforever()"
    )
    with pytest.raises(WorkerLost, match=r"worker 1 of 2 .*exit code 1"):
        run(fake, body, patience=Patience(grace=0.2, term=0.2))


def test_processes_of_a_killed_worker_end_too(fake):
    body = (
        "import subprocess\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if rank == 1:\n    wait_for('ready'); sys.exit(1)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "(here / f'pid-child-{child.pid}').touch()\n(here / 'ready').touch()\n"
        "forever()"
    )
    with pytest.raises(WorkerLost):
        run(fake, body, patience=Patience(grace=0.1, term=0.1))
    assert fake.pids("child")
    wait_until(lambda: not any(map(is_alive, fake.pids("child"))), "the end of the child")


@pytest.mark.parametrize("code", [130, 143])
def test_a_worker_that_stopped_with_a_checkpoint_stops_all(fake, code):
    with pytest.raises(Stopped) as caught:
        run(fake, f"checkpoint(); sys.exit({code})", restarts=2)
    assert caught.value.signal_number == code - 128
    assert len(fake.pids()) == 2


def test_a_worker_may_write_a_checkpoint_after_the_others_stopped(fake):
    body = "if rank == 1: sys.exit(143)\ntime.sleep(0.5)\ncheckpoint()\nsys.exit(143)"
    with pytest.raises(Stopped):
        run(fake, body, patience=Patience(grace=0.01, term=0.01, stop=60))


def test_a_worker_that_stopped_before_a_checkpoint_is_lost(fake, quick):
    with pytest.raises(WorkerLost, match=r"worker 1 .*exit code 143"):
        run(fake, "sys.exit(143 if rank else 75)", patience=quick)


RECORD = "(here / f'call-{rank}-{attempt}').write_text(str(call['resume']) + str(out.exists()))\n"


def records(fake, rank=0):
    return [file.read_text() for file in sorted(fake.folder.glob(f"call-{rank}-*"))]


def test_a_restart_resumes_from_a_checkpoint(fake, quick, capfd):
    body = RECORD + (
        "if attempt == 0:\n    wait_for('call-0-0')\n    wait_for('call-1-0')\n"
        "    checkpoint()\n    os.kill(os.getpid(), 9)"
    )
    run(fake, body, restarts=1, patience=quick)
    assert records(fake) == ["FalseFalse", "TrueTrue"]
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and "killed by signal 9" in lines[0]
    assert lines[0].endswith("; restart 1 of 1 from the last checkpoint")


def test_a_restart_without_a_checkpoint_begins_again(fake, quick, capfd):
    """The folder that the first attempt left would be refused as another run."""
    body = (
        "if attempt == 0 and rank == 0:\n    out.mkdir(); (out / 'config.json').touch()\n"
        "    (here / 'made').touch()\n"
        "wait_for('made')\n" + RECORD + "if attempt < 2 and rank == 1:\n    sys.exit(1)"
    )
    run(fake, body, restarts=2, patience=quick)
    assert records(fake) == ["FalseTrue", "FalseFalse", "FalseFalse"]
    shown = capfd.readouterr().err
    assert "restart 1 of 2 from the beginning" in shown
    assert "restart 2 of 2 from the beginning" in shown


def test_a_folder_of_the_user_is_never_removed(fake, quick):
    (fake.folder / "run").mkdir()
    (fake.folder / "run/notes").touch()
    with pytest.raises(WorkerLost):
        run(fake, "sys.exit(1)", restarts=1, patience=quick)
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
        run(fake, body, patience=quick)
    thread.join()
    assert (fake.folder / "run").is_dir()
    os.close(held[0])


def test_a_lost_run_without_a_checkpoint_leaves_no_folder(fake, quick):
    with pytest.raises(WorkerLost, match="train again"):
        run(fake, "out.mkdir(exist_ok=True); sys.exit(1)", patience=quick)
    assert not (fake.folder / "run").exists()


def test_a_lost_run_with_a_checkpoint_can_be_resumed(fake, quick):
    with pytest.raises(WorkerLost, match=r"after 1 restarts; repeat the command with --resume"):
        run(fake, "checkpoint(); sys.exit(1)", restarts=1, patience=quick)
    assert len(fake.pids("0")) == 2


def test_a_resumed_run_stays_resumed(fake, quick):
    fake.checkpoint()
    fake.call = replace(fake.call, resume=True)
    run(fake, RECORD + "if attempt == 0: sys.exit(1)", restarts=1, patience=quick)
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
        run(fake, body, patience=quick)
    assert len(fake.pids("0")) == 2
    assert capfd.readouterr().err.endswith("another program took a port; starting again\n")


def test_ports_that_are_always_taken_end_in_one_line(fake, quick):
    body = "print('Address already in use', file=sys.stderr); sys.exit(1)"
    with pytest.raises(WorkerLost, match="exit code 1: Address already in use"):
        run(fake, body, patience=quick)
    assert len(fake.pids("0")) == attempts._PORT_TRIES


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"workers": 0}, "--workers is 0; it must be at least 1"),
        ({"workers": 2, "restarts": -1}, "--restarts is -1; it must be 0 or more"),
        ({"workers": 1, "restarts": 1}, "--restarts is 1, but there is one process only"),
        ({"workers": None, "restarts": 2}, "--restarts is 2, but there is one process only"),
    ],
)
def test_wrong_numbers_are_one_line(fake, given, line):
    with pytest.raises(InputError, match=line):
        launch(fake.call, command=fake.command(""), **given)
    assert not fake.pids()


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (
            {"TF_CONFIG": '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}'},
            "TF_CONFIG has already started 2 workers",
        ),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "Slurm has already started 4 workers"),
        ({"SLURM_STEP_NUM_TASKS": "x"}, "SLURM_STEP_NUM_TASKS"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG is damaged"),
        ({"TF_CONFIG": "[1]"}, "TF_CONFIG is damaged"),
    ],
)
def test_a_worker_does_not_start_workers(fake, monkeypatch, environment, line):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=line):
        run(fake, "")
    assert not fake.pids()


def test_a_tf_config_of_one_task_is_replaced(fake, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"chief": ["a:1"]}, "task": {}}')
    run(fake, "assert len(addresses) == 2")


def use_gpus(monkeypatch, count, visible=None):
    monkeypatch.setattr(gpus.compat, "gpu_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.parametrize(
    ("count", "visible", "device", "used"),
    [
        (0, None, "auto", ["", ""]),
        (0, "0,1", "auto", ["", ""]),
        (4, None, "auto", ["0", "1"]),
        (4, "3,1,2", "gpu", ["3", "1"]),
        (4, "GPU-a, GPU-b", "auto", ["GPU-a", "GPU-b"]),
        (4, None, "cpu", ["", ""]),
        (4, "", "auto", ["", ""]),
        (4, "-1,2,3", "auto", ["", ""]),
    ],
)
def test_every_worker_gets_one_gpu(fake, monkeypatch, count, visible, device, used):
    use_gpus(monkeypatch, count, visible)
    fake.call = replace(fake.call, device=device)
    run(fake, "(here / f'gpu-{rank}').write_text(os.environ['CUDA_VISIBLE_DEVICES'])")
    assert [(fake.folder / f"gpu-{rank}").read_text() for rank in range(2)] == used


def test_more_workers_than_gpus_is_one_line(fake, monkeypatch):
    use_gpus(monkeypatch, 4, "0,1,-1,3")
    with pytest.raises(InputError, match="has 2 visible GPUs for 3 workers"):
        run(fake, "", workers=3)


def test_a_program_that_does_not_exist_is_a_failure(fake, quick):
    with pytest.raises(WorkerLost, match="No such file or directory"):
        launch(fake.call, workers=2, command=["/no/such/program"], patience=quick)


def test_an_error_in_the_launcher_ends_the_workers(fake, monkeypatch):
    """The check that no process is left is in the fixture."""

    def fail(*_):
        wait_until(lambda: len(fake.pids()) == 2, "both workers")
        raise RuntimeError("no more")

    monkeypatch.setattr("cowclip_merlin.launcher.relay.Relay.show", fail)
    with pytest.raises(RuntimeError, match="no more"):
        run(fake, "forever()")


def test_a_failure_ends_the_attempt_in_time(fake):
    started = time.monotonic()
    with pytest.raises(WorkerLost):
        run(fake, "if rank: sys.exit(1)\nforever()", patience=Patience(grace=1, term=1))
    assert time.monotonic() - started < 30
