"""Workers on this machine: exit codes, output, refused arguments and GPUs."""

import socket
from dataclasses import replace

import pytest
from fake_workers import is_alive, wait_until

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError, WorkerLost
from cowclip_merlin.launcher import LaunchSettings, Patience, launch
from cowclip_merlin.training import Stopped
from cowclip_merlin.training.run_settings import RunOptions

pytestmark = pytest.mark.system


@pytest.mark.quick
def test_all_workers_run_with_their_rank_and_the_same_addresses(fake):
    fake.run("(here / f'saw-{rank}').write_text(' '.join(addresses))", workers=3)
    saw = [(fake.folder / f"saw-{rank}").read_text() for rank in range(3)]
    assert saw[0] == saw[1] == saw[2]
    assert len(set(saw[0].split())) == 3
    assert all(address.startswith("127.0.0.1:") for address in saw[0].split())


def test_much_output_is_complete(fake, capfd):
    fake.run("if rank == 0: print('\\u00e4' * 1_000_000)")
    assert capfd.readouterr().out == "ä" * 1_000_000 + "\n"


def test_wrong_input_of_all_is_told_once(fake):
    body = "print('cowclip: error: worker', rank, 'says so', file=sys.stderr); sys.exit(2)"
    with pytest.raises(InputError, match=r"^worker 0 says so$"):
        fake.run(body, workers=3)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("os.kill(os.getpid(), 15)", "killed by signal 15"),
        ("raise ValueError('out of luck')", "exit code 1: ValueError: out of luck"),
        ("print('bad thing'); sys.exit(7)", "exit code 7: bad thing"),
        ("sys.exit(7)", "exit code 7: no output"),
    ],
)
def test_the_worker_that_failed_is_named(fake, quick, body, how):
    """The other one ends only because of it, and may do so first."""
    both = (
        f"if rank == 0:\n    {body}\n"
        "print('cowclip: error: another was lost', file=sys.stderr)\nsys.exit(75)"
    )
    with pytest.raises(WorkerLost) as caught:
        fake.run(both, patience=quick)
    line = f"worker 0 of 2 on {socket.gethostname()} failed ({how})"
    assert str(caught.value).startswith(f"{line}; ") and "`restarts` 1" in str(caught.value)


def test_if_all_lost_another_the_first_is_named(fake, quick):
    body = "print('cowclip: error: no answer', file=sys.stderr); sys.exit(75)"
    with pytest.raises(WorkerLost, match=r"failed \(exit code 75: no answer\)"):
        fake.run(body, patience=quick)


def test_the_traceback_of_another_worker_is_shown(fake, quick, capfd):
    with pytest.raises(WorkerLost):
        fake.run("assert rank == 0, 'not the first'", patience=quick)
    shown = capfd.readouterr().err
    assert shown.startswith("Traceback (most") and "AssertionError: not the first" in shown


def test_others_may_end_by_themselves_after_a_failure(fake):
    body = "if rank == 1: sys.exit(1)\ntime.sleep(0.3)\n(here / 'done').touch()"
    with pytest.raises(WorkerLost, match="worker 1"):
        fake.run(body, patience=Patience(grace=60))
    assert (fake.folder / "done").exists()


def test_others_get_sigterm_after_the_grace(fake):
    body = (
        "if rank == 1:\n    wait_for('ready'); sys.exit(1)\n"
        "def end(*_):\n    (here / 'asked').touch(); os._exit(75)\n"
        "signal.signal(signal.SIGTERM, end)\n(here / 'ready').touch()\nforever()"
    )
    with pytest.raises(WorkerLost, match=r"worker 1 of 2 .*exit code 1"):
        fake.run(body, patience=Patience(grace=0.2, term=60))
    assert (fake.folder / "asked").exists()


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
        fake.run(body, patience=Patience(grace=0.1, term=0.1))
    assert fake.pids("child")
    wait_until(lambda: not any(map(is_alive, fake.pids("child"))), "the end of the child")


def test_a_worker_may_write_a_checkpoint_after_the_others_stopped(fake):
    body = "if rank == 1: sys.exit(143)\ntime.sleep(0.5)\ncheckpoint()\nsys.exit(143)"
    with pytest.raises(Stopped):
        fake.run(body, patience=Patience(grace=0.01, term=0.01, stop=60))


def test_a_worker_that_stopped_before_a_checkpoint_is_lost(fake, quick):
    with pytest.raises(WorkerLost, match=r"worker 1 .*exit code 143"):
        fake.run("sys.exit(143 if rank else 75)", patience=quick)


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (
            {"TF_CONFIG": '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}'},
            "TF_CONFIG .*already started 2",
        ),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "Slurm .*already started 4"),
        ({"SLURM_STEP_NUM_TASKS": "x"}, "SLURM_STEP_NUM_TASKS"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG is damaged"),
        ({"TF_CONFIG": "[1]"}, "TF_CONFIG is damaged"),
    ],
)
def test_a_worker_does_not_start_workers(fake, monkeypatch, environment, line):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=line):
        fake.run("")
    assert not fake.pids()


def test_a_tf_config_of_one_task_is_replaced(fake, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"chief": ["a:1"]}, "task": {}}')
    fake.run("assert len(addresses) == 2")


def use_gpus(monkeypatch, count, visible=None):
    monkeypatch.setattr(compat, "gpu_count", lambda: count)
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
    fake.call = replace(fake.call, options=RunOptions(device=device))
    fake.run("(here / f'gpu-{rank}').write_text(os.environ['CUDA_VISIBLE_DEVICES'])")
    assert [(fake.folder / f"gpu-{rank}").read_text() for rank in range(2)] == used


def test_more_workers_than_gpus_is_one_line(fake, monkeypatch):
    use_gpus(monkeypatch, 4, "0,1,-1,3")
    with pytest.raises(InputError, match=r"2 visible GPUs .*3 workers"):
        fake.run("", workers=3)


def test_a_program_that_does_not_exist_is_a_failure(fake, quick):
    with pytest.raises(WorkerLost, match="No such file or directory"):
        processes = LaunchSettings(workers=2)
        launch(fake.call, processes, command=["/no/such/program"], patience=quick)


def test_an_error_in_the_launcher_ends_the_workers(fake, monkeypatch):
    """The check that no process is left is in the fixture."""

    def fail(*_):
        wait_until(lambda: len(fake.pids()) == 2, "both workers")
        raise RuntimeError("no more")

    monkeypatch.setattr("cowclip_merlin.launcher.watch.Relay.show", fail)
    with pytest.raises(RuntimeError, match="no more"):
        fake.run("forever()")
